//! `seawall versions`, `versions rm`, `diff`, `prune` and `verify`: what the bucket has of a sandbox, which may be gone.

use super::completions::sandboxes;
use super::sync::{bar::during, read};
use crate::{duration, exit, output, session::Session};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use seawall_api::{
    files::FileName,
    http::{DroppedVersions, PruneVersions, Version},
};
use seawall_core::workspaces::Change;
use seawall_sync::versions::Verified;
use serde_json::Value;
use std::time::Duration;

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  seawall versions demo
  seawall versions rm demo 3    version 3 goes, with what no other version has of its files"
)]
pub struct VersionsArgs {
    #[command(subcommand)]
    pub what: Option<VersionsCommand>,

    /// Whose versions: an id or a name; the whole id where the sandbox is gone
    #[arg(value_name = "ID", required = true, add = sandboxes())]
    pub id: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum VersionsCommand {
    /// Delete versions; the newest stays, unless all go with `seawall rm --versions`
    Rm(VersionsRmArgs),
}

#[derive(Debug, Args)]
pub struct VersionsRmArgs {
    /// Whose versions: an id or a name; the whole id where the sandbox is gone
    #[arg(value_name = "ID", add = sandboxes())]
    pub id: String,

    /// Which ones, by their numbers or their times in milliseconds
    #[arg(value_name = "VERSION", required = true)]
    pub versions: Vec<i64>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  seawall diff demo 1704067200123          # what changed from then to now"
)]
pub struct DiffArgs {
    /// Whose versions: an id or a name; the whole id where the sandbox is gone
    #[arg(value_name = "ID", add = sandboxes())]
    pub id: String,

    /// The older one, by its number or its time in milliseconds
    #[arg(value_name = "FROM")]
    pub from: i64,

    /// The newer one [default: the newest]
    #[arg(value_name = "TO")]
    pub to: Option<i64>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  seawall prune demo --keep 10 --keep-for 30d    what is neither among the ten newest nor of the last 30 days goes

The newest version always stays. A version stays where either rule keeps it.")]
pub struct PruneArgs {
    /// Whose versions: an id or a name; the whole id where the sandbox is gone
    #[arg(value_name = "ID", add = sandboxes())]
    pub id: String,

    /// Keep so many of the newest
    #[arg(long, value_name = "N")]
    pub keep: Option<usize>,

    /// Keep those that are younger
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub keep_for: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Reads every body of every version again. What is damaged is told and put under quarantine: the next sync stores such a
file anew where the sandbox still has it. Ends with 1 where something is damaged.")]
pub struct VerifyArgs {
    /// Whose versions: an id or a name; the whole id where the sandbox is gone
    #[arg(value_name = "ID", add = sandboxes())]
    pub id: String,
}

pub async fn versions(session: &Session, args: &VersionsArgs) -> Result<i32> {
    if let Some(VersionsCommand::Rm(args)) = &args.what {
        return remove(session, args).await;
    }
    let id = session.find_id(args.id.as_deref().unwrap_or_default()).await?;
    let found = session.client.versions(id).await?;
    if session.json {
        output::json(&found)?;
        return Ok(0);
    }
    let row = |each: &Version| (each.version, [each.sequence, each.files, each.bytes]);
    table(found.items.iter().map(row)).print()?;
    Ok(0)
}

async fn remove(session: &Session, args: &VersionsRmArgs) -> Result<i32> {
    let id = session.find_id(&args.id).await?;
    let mut dropped = DroppedVersions::default();
    for version in &args.versions {
        add(&mut dropped, &session.client.delete_version(id, *version).await?);
    }
    show_dropped(session.json, &dropped)
}

/// One more, where several go one after the other.
fn add(all: &mut DroppedVersions, one: &DroppedVersions) {
    all.kept = one.kept;
    all.dropped.extend(&one.dropped);
    all.objects_deleted += one.objects_deleted;
    all.bytes_deleted += one.bytes_deleted;
}

fn show_dropped(json: bool, dropped: &DroppedVersions) -> Result<i32> {
    if json {
        output::json(dropped)?;
        return Ok(0);
    }
    let DroppedVersions { kept, dropped, objects_deleted, bytes_deleted } = dropped;
    output::line(format!(
        "{kept} versions stay, {} went; {objects_deleted} objects deleted, {bytes_deleted} bytes",
        dropped.len()
    ))?;
    Ok(0)
}

/// The oldest come first, the newest are shown first. Each is its time, and its number, files and bytes.
fn table(versions: impl DoubleEndedIterator<Item = (i64, [u64; 3])>) -> output::Table {
    let mut table = output::Table::new(&["VERSION", "TIME", "FILES", "BYTES"]);
    for (timestamp, [number, files, bytes]) in versions.rev() {
        let number = if number == 0 { "older".to_owned() } else { number.to_string() };
        table.row(vec![number, shown(timestamp), files.to_string(), bytes.to_string()]);
    }
    table
}

/// As milliseconds, which name it, and as people read them.
fn shown(timestamp: i64) -> String {
    match Timestamp::from_millisecond(timestamp) {
        Ok(time) => format!("{timestamp} ({time:.0})"),
        Err(_) => timestamp.to_string(),
    }
}

pub async fn diff(session: &Session, args: &DiffArgs) -> Result<i32> {
    let id = session.find_id(&args.id).await?;
    let found = session.client.diff(id, args.from, args.to).await?;
    if session.json {
        output::json(&found)?;
        return Ok(0);
    }
    for each in &found.items {
        let path: FileName = read(each["path"].clone())?;
        show_change(change(each)?, &path)?;
    }
    Ok(0)
}

fn change(difference: &Value) -> Result<Change> {
    let change = match difference["change"].as_str() {
        Some("added") => Some(Change::Added),
        Some("changed") => Some(Change::Changed),
        Some("removed") => Some(Change::Removed),
        _ => None,
    };
    change.with_context(|| format!("the server reports a change that is not known here: {difference}"))
}

fn show_change(change: Change, path: &FileName) -> Result<()> {
    let sign = match change {
        Change::Added => '+',
        Change::Changed => '~',
        Change::Removed => '-',
    };
    output::line(format!("{sign} {}", output::printable(&path.lossy())))
}

impl PruneArgs {
    fn check(&self) -> Result<()> {
        if self.keep.is_none() && self.keep_for.is_none() {
            bail!(exit::Usage("say what stays: --keep N, --keep-for TIME, or both".into()));
        }
        Ok(())
    }
}

pub async fn prune(session: &Session, args: &PruneArgs) -> Result<i32> {
    args.check()?;
    let id = session.find_id(&args.id).await?;
    let ask = PruneVersions {
        keep: args.keep.map(|count| count as u64),
        keep_for_seconds: args.keep_for.map(|time| time.as_secs()),
    };
    show_dropped(session.json, &session.client.prune_versions(id, &ask).await?)
}

pub async fn verify(session: &Session, args: &VerifyArgs) -> Result<i32> {
    let id = session.find_id(&args.id).await?;
    let verified: Verified = read(during(session, id, session.client.verify_versions(id)).await?)?;
    match session.json {
        true => output::json(&verified)?,
        false => tell(&verified)?,
    }
    Ok(if verified.damage.is_empty() { 0 } else { exit::FAILED })
}

fn tell(verified: &Verified) -> Result<()> {
    for damage in &verified.damage {
        let what = damage.path.as_ref().map_or("the whole version".into(), |path| path.lossy().into_owned());
        let versions: Vec<String> = damage.versions.iter().map(i64::to_string).collect();
        let line = format!("{what}: {} ({}; versions {})", damage.why, damage.object, versions.join(", "));
        output::line(output::printable(&line))?;
    }
    let Verified { versions, bodies, bytes, damage, quarantined } = verified;
    let counts = format!("{versions} versions, {bodies} bodies, {bytes} bytes");
    output::line(match damage.is_empty() {
        true => format!("all is whole: {counts}"),
        false => format!("{} damaged, {quarantined} newly under quarantine: {counts}", damage.len()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn changes_are_known_by_their_words() {
        for known in [Change::Added, Change::Changed, Change::Removed] {
            assert_eq!(change(&json!({ "path": "a", "change": known })).unwrap(), known);
        }
        assert!(change(&json!({ "change": "moved" })).is_err());
    }
}
