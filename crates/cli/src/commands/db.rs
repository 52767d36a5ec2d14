//! `seawall db`: the database, for operators.

use crate::{config::Settings, exit, output};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use seawall_stores::{
    Db,
    sql::{self, Check},
};
use serde_json::json;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  seawall db check                              do all totals agree with what they come from?
  seawall db backup /backup/seawall-monday.db   a whole copy, while everything runs
  seawall db restore /backup/seawall-monday.db  back to it; the database of now is kept beside

The database is SQLite in the data folder, or PostgreSQL where `database.url` of seawall.toml names it.")]
pub struct DbArgs {
    #[command(subcommand)]
    pub what: DbCommand,
}

#[derive(Debug, Subcommand)]
pub enum DbCommand {
    /// Bring the tables up to date; every command that uses them does so too
    Migrate,
    /// Write a whole copy to a new file, while the database is used (SQLite)
    Backup {
        /// The file, which must not exist
        to: PathBuf,
    },
    /// Put a copy in the place of the database, which nobody may use meanwhile (SQLite)
    Restore {
        /// A file that `backup` wrote
        from: PathBuf,
    },
    /// Compare all totals with the rows they come from
    Check,
}

pub async fn db(settings: &Settings, args: &DbArgs, json: bool) -> Result<i32> {
    match &args.what {
        DbCommand::Migrate => migrate(settings, json).await,
        DbCommand::Backup { to } => {
            let found = sql::backup(&open(settings).await?, to).await?;
            told(&found, json, &format!("{} is whole", to.display()))
        }
        DbCommand::Restore { from } => restore(settings, from.clone(), json).await,
        DbCommand::Check => told(&sql::check(&open(settings).await?).await?, json, "all agrees"),
    }
}

fn file(settings: &Settings) -> PathBuf {
    settings.data.join("seawall.db")
}

pub async fn open(settings: &Settings) -> Result<Db> {
    if let Some(url) = &settings.database {
        return Ok(Db::postgres(url).await?);
    }
    std::fs::create_dir_all(&settings.data)
        .with_context(|| format!("cannot make {}", settings.data.display()))?;
    Ok(Db::sqlite(&file(settings)).await?)
}

async fn migrate(settings: &Settings, json: bool) -> Result<i32> {
    let db = open(settings).await?;
    let done = db.migrated();
    if json {
        output::json(&json!({ "database": db.kind(), "from": done.from, "to": done.to }))?;
    } else if done.from == done.to {
        output::line(format!("{} is at version {}, the newest", db.kind(), done.to))?;
    } else {
        output::line(format!("{}: version {} became {}", db.kind(), done.from, done.to))?;
    }
    Ok(0)
}

async fn restore(settings: &Settings, from: PathBuf, json: bool) -> Result<i32> {
    if settings.database.is_some() {
        bail!("PostgreSQL has its own: pg_restore --clean --dbname ADDRESS FILE");
    }
    // Readable, and different each time.
    let stamp = Timestamp::now().as_millisecond().to_string();
    let (kept, found) = sql::restore(&file(settings), &from, &stamp).await?;
    if let Some(kept) = kept {
        output::note(format!("the database of before is kept: {}", kept.display()));
    }
    told(&found, json, &format!("{} is in use from now on", from.display()))
}

fn told(found: &Check, json: bool, well: &str) -> Result<i32> {
    let whole = found.wrong.is_empty();
    if json {
        let Check { conversations, turns, wrong } = found;
        output::json(
            &json!({ "ok": whole, "conversations": conversations, "turns": turns, "wrong": wrong }),
        )?;
    } else {
        for wrong in &found.wrong {
            output::line(wrong)?;
        }
        let counts = format!("{} conversations, {} turns", found.conversations, found.turns);
        output::line(&if whole {
            format!("{well}: {counts}")
        } else {
            format!("{} wrong: {counts}", found.wrong.len())
        })?;
    }
    Ok(if whole { 0 } else { exit::FAILED })
}
