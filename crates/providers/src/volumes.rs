//! Data volumes as folders of this machine, beside the folders of boxes: one per sandbox, under its id, and those that
//! sandboxes share, under their names.

use crate::boxes::{Boxes, io_error};
use seawall_api::SandboxId;
use seawall_core::{Error, Result, ports::VolumeInfo};
use seawall_jail::tree::remove as remove_tree;
use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::Path,
};

/// Held while a shared volume is made or removed. Boxes note their intent first, so that whoever removes one sees it.
const LOCK: &str = ".lock";

pub fn list(volumes: &Path, boxes: &Boxes) -> Result<Vec<VolumeInfo>> {
    let entries = fs::read_dir(volumes).map_err(|e| io_error(volumes, e))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| is_name(name)).collect();
    names.sort();
    // Mostly there are none.
    let shared = match names.iter().any(|name| is_shared(name)) {
        true => shared(boxes).inspect_err(|error| {
            tracing::warn!(error = %error.chain(), "which boxes use which volume is not known");
        }),
        false => Ok(BTreeSet::new()),
    };
    let info = |name: String| {
        let place = volumes.join(&name);
        let in_use = match name.parse::<SandboxId>() {
            Ok(id) => boxes.of(id).exists(),
            Err(_) => shared.as_ref().map_or(true, |shared| shared.contains(&name)),
        };
        VolumeInfo { place: place.display().to_string(), in_use, bytes: taken(&place), name }
    };
    Ok(names.into_iter().map(info).collect())
}

/// Only where no box uses it.
pub fn remove(volumes: &Path, boxes: &Boxes, name: &str) -> Result<()> {
    let volume = volumes.join(name);
    if !is_name(name) || !volume.exists() {
        return Err(Error::not_found(format!("there is no volume {name}; see `seawall volumes`")));
    }
    let lock = if is_shared(name) { Some(lock(volumes)?) } else { None };
    let in_use = match name.parse::<SandboxId>() {
        Ok(id) => boxes.of(id).exists(),
        Err(_) => shared(boxes)
            .map_err(|error| {
                Error::conflict(format!("whether a sandbox uses the volume {name} is not known"))
                    .with_source(error)
            })?
            .contains(name),
    };
    if in_use {
        let message = format!("a sandbox uses the volume {name}; remove it with `seawall rm --volumes`");
        return Err(Error::conflict(message));
    }
    // In one step: half a volume would be taken for one whose files somebody deleted.
    let aside = boxes.aside(name, "volume");
    remove_tree(&aside).map_err(|e| io_error(&aside, e))?;
    fs::rename(&volume, &aside).map_err(|e| io_error(&volume, e))?;
    drop(lock);
    remove_tree(&aside).map_err(|e| io_error(&aside, e))
}

/// Whoever makes or removes a shared volume is alone with all of them, across processes, until this is dropped.
pub fn lock(volumes: &Path) -> Result<File> {
    let path = volumes.join(LOCK);
    let locked = || {
        let file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
        file.lock()?;
        Ok(file)
    };
    locked().map_err(|error| io_error(&path, error))
}

/// As the service names them: with a dot, which no id has, and not in front.
fn is_shared(name: &str) -> bool {
    let tame = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.contains('.') && !name.starts_with('.') && name.chars().all(tame)
}

fn is_name(name: &str) -> bool {
    name.parse::<SandboxId>().is_ok() || is_shared(name)
}

/// The names that boxes have. One whose intent cannot be read may have any: nothing is known then.
fn shared(boxes: &Boxes) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for id in boxes.ids()? {
        names.extend(boxes.intent(id)?.and_then(|intent| intent.spec.volume));
    }
    Ok(names)
}

/// What a tree takes on disk. What cannot be looked at counts nothing.
fn taken(path: &Path) -> u64 {
    let Ok(found) = fs::symlink_metadata(path) else { return 0 };
    let inside: u64 = match found.is_dir() {
        true => fs::read_dir(path).into_iter().flatten().flatten().map(|entry| taken(&entry.path())).sum(),
        false => 0,
    };
    found.blocks() * 512 + inside
}
