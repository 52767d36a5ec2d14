//! `seawall db`: the database, for operators.

use crate::{
    app::prepare_data,
    config::Settings,
    exit, output,
    serving::{Ownership, checked},
    session::Session,
};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use seawall_api::http::DatabaseCheck;
use seawall_stores::{Db, sql};
use serde_json::json;
use std::{
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

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
    /// Bring the tables up to date while no server runs; a server that starts does so too
    Migrate,
    /// Write a whole copy to a new file of this machine, while the database is in use (SQLite)
    Backup {
        /// The file, which must not exist
        to: PathBuf,
    },
    /// Put a copy in the place of the database while no server runs (SQLite)
    Restore {
        /// A file that `backup` wrote
        from: PathBuf,
    },
    /// Compare all totals with the rows they come from
    Check,
}

/// `migrate` and `restore`, which need the data folder for themselves.
pub async fn offline(settings: &Settings, args: &DbArgs, json: bool) -> Result<i32> {
    prepare_data(&settings.data)?;
    let _owned = Ownership::take_offline(&settings.data).await?;
    match &args.what {
        DbCommand::Restore { from } => restore(settings, from.clone(), json).await,
        _ => migrate(settings, json).await,
    }
}

/// `check` and `backup`, which the server does.
pub async fn db(session: &Session, args: &DbArgs) -> Result<i32> {
    match &args.what {
        DbCommand::Backup { to } => backup(session, to).await,
        _ => told(&session.client.check_database().await?, session.json, "all agrees"),
    }
}

impl DbArgs {
    /// Returns whether the command needs the data folder without a server.
    pub fn is_offline(&self) -> bool {
        matches!(self.what, DbCommand::Migrate | DbCommand::Restore { .. })
    }
}

/// Receives the copy, which the server makes and checks, and renames it when it is complete.
async fn backup(session: &Session, to: &Path) -> Result<i32> {
    if to.exists() {
        bail!("{} exists: name another file", to.display());
    }
    let mut answer = session.client.backup_database().await?;
    let draft = to.with_added_extension("making");
    let written = async {
        let mut options = std::fs::File::options();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        let mut bytes = 0;
        while let Some(part) = answer.chunk().await? {
            bytes += part.len();
            file.write_all(&part)?;
        }
        file.sync_all()?;
        std::fs::rename(&draft, to)?;
        anyhow::Ok(bytes)
    };
    let written = written.await;
    if written.is_err() {
        let _ = std::fs::remove_file(&draft);
    }
    let bytes = written.with_context(|| format!("cannot write {}", to.display()))?;
    match session.json {
        true => output::json(&json!({ "file": to, "bytes": bytes }))?,
        false => output::line(format!("{} is whole: {bytes} bytes", to.display()))?,
    }
    Ok(0)
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
    told(&checked(found), json, &format!("{} is in use from now on", from.display()))
}

fn told(found: &DatabaseCheck, json: bool, well: &str) -> Result<i32> {
    if json {
        output::json(found)?;
    } else {
        for wrong in &found.wrong {
            output::line(wrong)?;
        }
        let counts = format!("{} conversations, {} turns", found.conversations, found.turns);
        output::line(&match found.ok {
            true => format!("{well}: {counts}"),
            false => format!("{} wrong: {counts}", found.wrong.len()),
        })?;
    }
    Ok(if found.ok { 0 } else { exit::FAILED })
}
