//! `seawall sync`: brings a sandbox's files and its bucket to the same version.

use super::completions::sandboxes;
use super::each;
use crate::{output, session::Session};
use anyhow::{Context, Result};
use clap::Args;
use seawall_api::{SandboxId, http::SyncFiles};
use seawall_sync::{
    diff::Note,
    engine::{Direction, DryRun, SyncReport},
};
use serde::de::DeserializeOwned;
use serde_json::Value;

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
    #[arg(required = true, value_name = "ID", add = sandboxes())]
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

pub async fn sync(session: &Session, args: &SyncArgs) -> Result<i32> {
    let ask = SyncFiles { regenerate: args.regenerate, rehash: args.rehash, dry_run: args.dry_run };
    each(session, &args.ids, async |reference| {
        let id = session.find_id(reference).await?;
        let told = bar::during(session, id, session.client.sync(id, &ask)).await?;
        match args.dry_run {
            true => show_plan(session, id, &read(told)?),
            false => done(session, id, &read(told)?),
        }
    })
    .await
}

/// Reads a server's report.
pub fn read<T: DeserializeOwned>(told: Value) -> Result<T> {
    serde_json::from_value(told)
        .context("the server's report cannot be read: is it another version of seawall?")
}

/// Tells what was done; an error where something was not.
pub fn done(session: &Session, id: SandboxId, synced: &SyncReport) -> Result<()> {
    report(session, id, synced)?;
    match synced.problems.len() + synced.damaged.len() {
        0 => Ok(()),
        count => Err(anyhow::anyhow!("{count} files could not be synced, as told above; the others were")),
    }
}

pub fn report(session: &Session, id: SandboxId, report: &SyncReport) -> Result<()> {
    if session.json {
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

pub fn show_plan(session: &Session, id: SandboxId, plan: &DryRun) -> Result<()> {
    if session.json {
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

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_api::files::FileName;
    use seawall_sync::engine::{Restored, SyncStats};

    #[test]
    fn reports_survive_their_way() {
        let report = SyncReport {
            direction: Direction::Both,
            stats: SyncStats { files_uploaded: 3, duration_ms: 7, ..SyncStats::default() },
            notes: vec![Note::Conflict { path: "a".into(), kept_as: FileName(vec![b'a', 0xff]) }],
            problems: vec![("p".into(), "why".into())],
            ..SyncReport::default()
        };
        let told = serde_json::to_value(&report).unwrap();
        assert_eq!(read::<SyncReport>(told).unwrap(), report);
        let restored = Restored { from: 5, saved: SyncReport::default(), report };
        assert_eq!(read::<Restored>(serde_json::to_value(&restored).unwrap()).unwrap(), restored);
        let plan = DryRun { upload: vec!["x".into()], ignored_count: 2, ..DryRun::default() };
        assert_eq!(read::<DryRun>(serde_json::to_value(&plan).unwrap()).unwrap(), plan);
    }
}
