//! Files and their versions, through a server.

use super::Remote;
use crate::{
    commands::{
        each,
        restore::{self, RestoreArgs},
        sync::{self, SyncArgs},
        versions::{self, DiffArgs, PruneArgs, VersionsArgs, VersionsCommand, VersionsRmArgs},
    },
    output,
};
use anyhow::{Context, Result};
use seawall_api::{
    files::FileName,
    http::{DroppedVersions, PruneVersions, RestoreVersion, SyncFiles, Version},
};
use seawall_core::workspaces::Change;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub async fn sync(remote: &Remote, args: &SyncArgs) -> Result<i32> {
    let ask = SyncFiles { regenerate: args.regenerate, rehash: args.rehash, dry_run: args.dry_run };
    each(remote, &args.ids, async |reference| {
        let id = remote.find(reference).await?.info.id;
        let told = remote.client.sync(id, &ask).await?;
        match args.dry_run {
            true => sync::show_plan(remote, id, &read(told)?),
            false => sync::done(remote, id, &read(told)?),
        }
    })
    .await
}

/// What a server tells of a sync.
fn read<T: DeserializeOwned>(told: Value) -> Result<T> {
    serde_json::from_value(told)
        .context("the server's report cannot be read: is it another version of seawall?")
}

pub async fn versions(remote: &Remote, args: &VersionsArgs) -> Result<i32> {
    if let Some(VersionsCommand::Rm(args)) = &args.what {
        return remove(remote, args).await;
    }
    let id = remote.find_id(args.id.as_deref().unwrap_or_default()).await?;
    let found = remote.client.versions(id).await?.items;
    if remote.json {
        output::json(&found.iter().map(as_local).collect::<Vec<_>>())?;
        return Ok(0);
    }
    let row = |each: &Version| (each.version, [each.sequence, each.files, each.bytes]);
    versions::table(found.iter().map(row)).print()?;
    Ok(0)
}

async fn remove(remote: &Remote, args: &VersionsRmArgs) -> Result<i32> {
    let id = remote.find_id(&args.id).await?;
    let mut dropped = DroppedVersions::default();
    for version in &args.versions {
        versions::add(&mut dropped, &remote.client.delete_version(id, *version).await?);
    }
    versions::show_dropped(remote.json, &dropped)
}

pub async fn prune(remote: &Remote, args: &PruneArgs) -> Result<i32> {
    args.check()?;
    let id = remote.find_id(&args.id).await?;
    let ask = PruneVersions {
        keep: args.keep.map(|count| count as u64),
        keep_for_seconds: args.keep_for.map(|time| time.as_secs()),
    };
    versions::show_dropped(remote.json, &remote.client.prune_versions(id, &ask).await?)
}

/// With the names that `seawall versions` has without a server.
fn as_local(version: &Version) -> Value {
    let Version { version, sequence, files, bytes, .. } = version;
    json!({ "seq": sequence, "timestamp": version, "files": files, "bytes": bytes })
}

pub async fn diff(remote: &Remote, args: &DiffArgs) -> Result<i32> {
    let id = remote.find_id(&args.id).await?;
    let found = remote.client.diff(id, args.from, args.to).await?.items;
    if remote.json {
        output::json(&found)?;
        return Ok(0);
    }
    for each in &found {
        let path: FileName = read(each["path"].clone())?;
        versions::show_change(change(each)?, &path)?;
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
    change.with_context(|| format!("the server tells of a change that is not known here: {difference}"))
}

pub async fn restore(remote: &Remote, args: &RestoreArgs) -> Result<i32> {
    let id = remote.find(&args.id).await?.info.id;
    let from = match &args.from {
        Some(reference) => Some(remote.find_id(reference).await?),
        None => None,
    };
    let path = args.wanted_path().map(str::to_owned);
    let ask = RestoreVersion { version: args.version, path, from };
    let told = remote.client.restore(id, &ask).await?;
    restore::show(remote, id, &read(told)?, from.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_sync::{
        diff::Note,
        engine::{Direction, DryRun, Restored, SyncReport, SyncStats},
    };

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

    #[test]
    fn changes_are_known_by_their_words() {
        for known in [Change::Added, Change::Changed, Change::Removed] {
            assert_eq!(change(&json!({ "path": "a", "change": known })).unwrap(), known);
        }
        assert!(change(&json!({ "change": "moved" })).is_err());
    }
}
