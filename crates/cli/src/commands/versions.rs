//! `seawall versions`, `versions rm`, `diff`, `prune` and `verify`: what the bucket has of a sandbox, which may be gone.

use crate::{app::App, commands::sync::bar::Bar, duration, exit, lookup, output, workspaces};
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use seawall_api::{ErrorKind, SandboxId, files::FileName, http::DroppedVersions};
use seawall_core::workspaces::{Change, Difference};
use seawall_sync::{
    engine::{Phase, Progress},
    versions::{Keep, Pruned, Verified, VersionInfo},
};
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
    #[arg(value_name = "ID", required = true)]
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
    #[arg(value_name = "ID")]
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
    #[arg(value_name = "ID")]
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
    #[arg(value_name = "ID")]
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
    #[arg(value_name = "ID")]
    pub id: String,
}

/// The sandbox may be gone: a whole id is believed.
pub async fn workspace(app: &App, reference: &str) -> Result<SandboxId> {
    match app.sandboxes.resolve(reference).await {
        Ok(id) => Ok(id),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let found = lookup::sandbox(app, reference).await;
            Ok(found.map_err(|error| error.context("of a sandbox that is gone, give the whole id"))?.id)
        }
        Err(error) => Err(error.into()),
    }
}

pub async fn versions(app: &App, args: &VersionsArgs) -> Result<i32> {
    if let Some(VersionsCommand::Rm(args)) = &args.what {
        return remove(app, args).await;
    }
    let id = workspace(app, args.id.as_deref().unwrap_or_default()).await?;
    let versions = workspaces::of(app, id).await?.versions(id).await?;
    if app.json {
        output::json(&versions)?;
        return Ok(0);
    }
    let row = |version: &VersionInfo| [version.seq, version.files, version.bytes];
    table(versions.iter().map(|version| (version.timestamp, row(version)))).print()?;
    Ok(0)
}

async fn remove(app: &App, args: &VersionsRmArgs) -> Result<i32> {
    let id = workspace(app, &args.id).await?;
    let workspaces = workspaces::of(app, id).await?;
    let mut dropped = DroppedVersions::default();
    for version in &args.versions {
        let gone = workspaces.delete_version(id, *version).await?;
        add(&mut dropped, &counted(gone));
    }
    show_dropped(app.json, &dropped)
}

/// One more, where several go one after the other.
pub fn add(all: &mut DroppedVersions, one: &DroppedVersions) {
    all.kept = one.kept;
    all.dropped.extend(&one.dropped);
    all.objects_deleted += one.objects_deleted;
    all.bytes_deleted += one.bytes_deleted;
}

fn counted(pruned: Pruned) -> DroppedVersions {
    let Pruned { kept, dropped, objects_deleted, bytes_deleted } = pruned;
    DroppedVersions { kept: kept as u64, dropped, objects_deleted, bytes_deleted }
}

pub fn show_dropped(json: bool, dropped: &DroppedVersions) -> Result<i32> {
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
pub fn table(versions: impl DoubleEndedIterator<Item = (i64, [u64; 3])>) -> output::Table {
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

pub async fn diff(app: &App, args: &DiffArgs) -> Result<i32> {
    let id = workspace(app, &args.id).await?;
    let found = workspaces::of(app, id).await?.diff(id, args.from, args.to).await?;
    if app.json {
        output::json(&found)?;
        return Ok(0);
    }
    for Difference { path, change } in found {
        show_change(change, &path)?;
    }
    Ok(0)
}

pub fn show_change(change: Change, path: &FileName) -> Result<()> {
    let sign = match change {
        Change::Added => '+',
        Change::Changed => '~',
        Change::Removed => '-',
    };
    output::line(format!("{sign} {}", output::printable(&path.lossy())))
}

impl PruneArgs {
    pub fn check(&self) -> Result<()> {
        if self.keep.is_none() && self.keep_for.is_none() {
            bail!(exit::Usage("say what stays: --keep N, --keep-for TIME, or both".into()));
        }
        Ok(())
    }
}

pub async fn prune(app: &App, args: &PruneArgs) -> Result<i32> {
    args.check()?;
    let id = workspace(app, &args.id).await?;
    let time = args.keep_for.map(|time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX));
    let keep = Keep { newest: args.keep.unwrap_or(1), younger_than: time };
    let pruned = workspaces::of(app, id).await?.prune(id, keep).await?;
    show_dropped(app.json, &counted(pruned))
}

pub async fn verify(app: &App, args: &VerifyArgs) -> Result<i32> {
    let id = workspace(app, &args.id).await?;
    let bar = Bar::new();
    bar.phase(Phase::Looking);
    let verified = workspaces::of(app, id).await?.verify(id, |bytes| bar.moved(bytes)).await;
    bar.finish();
    let verified = verified?;
    match app.json {
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
