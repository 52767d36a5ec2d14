//! `seawall sync`: brings a sandbox's files and its bucket to the same version.

use super::{each, sync::bar::Bar};
use crate::{
    app::App,
    exit,
    lookup::{self, Place},
    output, workspaces,
};
use anyhow::Result;
use clap::Args;
use seawall_api::{ErrorKind, SandboxId};
use seawall_sync::{
    diff::Note,
    engine::{Direction, DryRun, Options, SyncReport},
};
use std::sync::Arc;

pub mod bar;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  seawall sync demo                 pull what the bucket has new, push what the sandbox has
  seawall sync --dry-run demo       only show what that would do
  seawall versions demo             the versions that came of it

Nothing is lost: where both sides changed a file, the bucket's takes the path and the sandbox's stays beside it. Rules in
`.sandboxignore` (as .gitignore) leave out what was never synced. The bucket is `sync.bucket` of seawall.toml; without one,
files in the data folder.")]
pub struct SyncArgs {
    /// Which ones: ids or names
    #[arg(required = true, value_name = "ID")]
    pub ids: Vec<String>,

    /// Show what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Believe no state file: compare everything, delete nothing, write it anew
    #[arg(long)]
    pub regenerate: bool,

    /// Read every file again, also those that look unchanged
    #[arg(long)]
    pub rehash: bool,
}

pub async fn sync(app: &App, args: &SyncArgs) -> Result<i32> {
    let options = Options { regenerate: args.regenerate, rehash: args.rehash };
    each(app, &args.ids, async |reference| {
        let (info, _) = lookup::guest(app, reference).await?;
        let (workspaces, notes) = match workspaces::with_notes(app, info.id).await {
            Ok(found) => found,
            Err(error) => return Err(not_opened(app, info.id, &error, args.dry_run).await),
        };
        if args.dry_run {
            return show_plan(app, info.id, &workspaces.dry_run(info.id, options).await?);
        }
        let bar = Arc::new(Bar::new());
        let synced = workspaces.sync_with_progress(info.id, options, bar.clone()).await;
        bar.finish();
        let synced = synced?;
        notes.synced(&workspaces, synced.version.as_ref()).await;
        done(app, info.id, &synced)
    })
    .await
}

/// Tells what was done; an error where something was not.
pub fn done(app: &dyn Place, id: SandboxId, synced: &SyncReport) -> Result<()> {
    report(app, id, synced)?;
    match synced.problems.len() + synced.damaged.len() {
        0 => Ok(()),
        count => Err(anyhow::anyhow!("{count} files could not be synced, as told above; the others were")),
    }
}

/// H8: also a bucket that cannot even be opened leaves the work where it is.
async fn not_opened(app: &App, id: SandboxId, error: &anyhow::Error, dry_run: bool) -> anyhow::Error {
    let why = exit::message_of(error);
    if !dry_run && let Err(failed) = app.sandboxes.mark_unsynced(id, Some(why.clone())).await {
        return failed.into();
    }
    seawall_core::Error::new(exit::kind_of(error).unwrap_or(ErrorKind::Internal), why).into()
}

pub fn report(app: &dyn Place, id: SandboxId, report: &SyncReport) -> Result<()> {
    if app.json() {
        return output::json_line(&serde_json::json!({ "id": id, "sync": report }));
    }
    for note in &report.notes {
        output::note(output::printable(&told(note)));
    }
    for (path, why) in &report.problems {
        output::note(output::printable(&format!("not in the version: {path}: {why}")));
    }
    for (_, why) in &report.damaged {
        output::note(output::printable(&format!("not in the sandbox: {why}")));
    }
    if let Some(problem) = &report.state_problem {
        output::note(output::printable(&format!("the state file was written anew: {problem}")));
    }
    output::line(summary(report))
}

fn summary(report: &SyncReport) -> String {
    let stats = &report.stats;
    let version =
        report.version.as_ref().map_or(String::new(), |commit| format!(" (version {})", commit.timestamp));
    let word = match report.direction {
        Direction::Nothing => return format!("nothing to do{version}: {} files", stats.files_skipped),
        Direction::Pulled => "pulled",
        Direction::Pushed => "pushed",
        Direction::Both => "pulled and pushed",
    };
    let mut parts = vec![
        format!("{} downloaded", stats.files_downloaded),
        format!("{} uploaded", stats.files_uploaded),
        format!("{} deleted", stats.files_deleted + stats.files_deleted_remotely),
        format!("{} skipped", stats.files_skipped),
        format!("{} bytes", stats.bytes_transferred),
        format!("{} ms", stats.duration_ms),
    ];
    if stats.ignored + stats.special > 0 {
        parts.push(format!("{} ignored, {} special", stats.ignored, stats.special));
    }
    format!("{word}{version}: {}", parts.join(", "))
}

fn told(note: &Note) -> String {
    match note {
        Note::Conflict { path, kept_as } => {
            format!("{path} changed on both sides: the sandbox's is kept as {kept_as}")
        }
        Note::KeptChanged { path } => format!("{path} was deleted in the bucket and changed here: kept"),
        Note::Restored { path } => format!("{path} was deleted here and changed in the bucket: restored"),
    }
}

pub fn show_plan(app: &dyn Place, id: SandboxId, plan: &DryRun) -> Result<()> {
    if app.json() {
        return output::json_line(&serde_json::json!({ "id": id, "plan": plan }));
    }
    let groups = [
        ("download ", &plan.download),
        ("upload   ", &plan.upload),
        ("delete here ", &plan.delete_here),
        ("delete there", &plan.delete_there),
        ("ignored  ", &plan.ignored),
    ];
    for (word, paths) in groups {
        for path in paths {
            output::line(format!("{word} {}", output::printable(&path.lossy())))?;
        }
    }
    for note in &plan.notes {
        output::line(output::printable(&told(note)))?;
    }
    for (path, why) in &plan.problems {
        output::line(output::printable(&format!("cannot be read: {path}: {why}")))?;
    }
    if let Some(problem) = &plan.state_problem {
        output::line(output::printable(&format!("the state file would be written anew: {problem}")))?;
    }
    let (ignored, special) = (plan.ignored_count, plan.special);
    match plan.is_empty() {
        true => output::line(format!("nothing to do; {ignored} ignored, {special} special")),
        false => output::line(format!("{ignored} ignored, {special} special; nothing was done")),
    }
}
