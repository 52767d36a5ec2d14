//! `seawall restore`: brings a version back, or one file of it.

use super::{
    sync::{bar::Bar, report},
    versions::workspace,
};
use crate::{
    app::App,
    lookup::{self, Place},
    output, workspaces,
};
use anyhow::Result;
use clap::Args;
use seawall_api::{SandboxId, files::FileName};
use seawall_core::workspaces::Restore;
use seawall_sync::engine::Restored;
use std::sync::Arc;

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
    #[arg(value_name = "ID")]
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

pub async fn restore(app: &App, args: &RestoreArgs) -> Result<i32> {
    let (info, _) = lookup::guest(app, &args.id).await?;
    let from = match &args.from {
        Some(reference) => {
            let id = workspace(app, reference).await?;
            Some((id, workspaces::of(app, id).await?))
        }
        None => None,
    };
    let (others, path) = (from.is_some(), args.wanted_path().map(FileName::from));
    let wanted = Restore { version: args.version, path, from };
    let bar = Arc::new(Bar::new());
    let (workspaces, notes) = workspaces::with_notes(app, info.id).await?;
    let restored = workspaces.restore(info.id, &wanted, bar.clone()).await;
    bar.finish();
    let restored = restored?;
    notes.synced(&workspaces, restored.report.version.as_ref()).await;
    show(app, info.id, &restored, others)
}

impl RestoreArgs {
    /// Relative to the workspace.
    pub fn wanted_path(&self) -> Option<&str> {
        let path = self.path.as_deref()?;
        Some(path.trim_start_matches("/work/").trim_end_matches('/'))
    }
}

/// `others`: the files are of another sandbox, so nothing was saved before.
pub fn show(app: &dyn Place, id: SandboxId, restored: &Restored, others: bool) -> Result<i32> {
    if app.json() {
        output::json(restored)?;
        return Ok(0);
    }
    if !others {
        report(app, id, &restored.saved)?;
    }
    output::line(format!("restored from version {}", restored.from))?;
    report(app, id, &restored.report)?;
    Ok(0)
}
