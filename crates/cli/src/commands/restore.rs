//! `seawall restore`: brings a version back, or one file of it.

use super::completions::sandboxes;
use super::sync::{bar::during, read, report};
use crate::{output, session::Session};
use anyhow::Result;
use clap::Args;
use seawall_api::{SandboxId, http::RestoreVersion};
use seawall_sync::engine::Restored;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  seawall restore demo                              the newest version
  seawall restore demo --version 1704067200123      as it was then
  seawall restore demo --version 7 src/main.rs      one file of it
  seawall restore new --from 0190a5d0-…             the files of a sandbox that is gone

Nothing is lost: what is in the sandbox becomes a version first.")]
pub struct RestoreArgs {
    /// Into which sandbox: an id or a name
    #[arg(value_name = "ID", add = sandboxes())]
    pub id: String,

    /// One file or directory, relative to the workspace [default: all]
    #[arg(value_name = "PATH")]
    pub path: Option<String>,

    /// Which version, by its number or its time in milliseconds [default: the newest]
    #[arg(long, value_name = "VERSION")]
    pub version: Option<i64>,

    /// Of which sandbox [default: the same]; the whole id where it is gone
    #[arg(long, value_name = "ID")]
    pub from: Option<String>,
}

pub async fn restore(session: &Session, args: &RestoreArgs) -> Result<i32> {
    let id = session.find_id(&args.id).await?;
    let from = match &args.from {
        Some(reference) => Some(session.find_id(reference).await?),
        None => None,
    };
    let path = args.wanted_path().map(str::to_owned);
    let ask = RestoreVersion { version: args.version, path, from };
    let told = during(session, id, session.client.restore(id, &ask)).await?;
    show(session, id, &read(told)?, from.is_some())
}

impl RestoreArgs {
    /// Relative to the workspace.
    fn wanted_path(&self) -> Option<&str> {
        let path = self.path.as_deref()?;
        Some(path.trim_start_matches("/work/").trim_end_matches('/'))
    }
}

/// `others`: the files are of another sandbox, so nothing was saved before.
fn show(session: &Session, id: SandboxId, restored: &Restored, others: bool) -> Result<i32> {
    if session.json {
        output::json(restored)?;
        return Ok(0);
    }
    if !others {
        report(session, id, &restored.saved)?;
    }
    output::line(format!("restored from version {}", restored.from))?;
    report(session, id, &restored.report)?;
    Ok(0)
}
