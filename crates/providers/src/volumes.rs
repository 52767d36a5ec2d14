//! Data volumes as folders of this machine: one per sandbox, beside the folders of boxes.

use crate::boxes::{Boxes, io_error};
use seawall_api::SandboxId;
use seawall_core::{Error, Result, ports::VolumeInfo};
use seawall_jail::tree::remove as remove_tree;
use std::{fs, os::unix::fs::MetadataExt, path::Path};

pub fn list(volumes: &Path, boxes: &Boxes) -> Result<Vec<VolumeInfo>> {
    let entries = fs::read_dir(volumes).map_err(|e| io_error(volumes, e))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut ids: Vec<SandboxId> = names.filter_map(|name| name.parse().ok()).collect();
    ids.sort();
    let info = |id: SandboxId| {
        let place = volumes.join(id.to_string());
        let (in_use, bytes) = (boxes.of(id).exists(), taken(&place));
        VolumeInfo { id, place: place.display().to_string(), in_use, bytes }
    };
    Ok(ids.into_iter().map(info).collect())
}

/// Only where no box uses it.
pub fn remove(volumes: &Path, boxes: &Boxes, id: SandboxId) -> Result<()> {
    let volume = volumes.join(id.to_string());
    if boxes.of(id).exists() {
        let message = format!("sandbox {id} uses the volume; remove it with `seawall rm --volumes`");
        return Err(Error::conflict(message));
    }
    if !volume.exists() {
        return Err(Error::not_found(format!("there is no volume of sandbox {id}; see `seawall volumes`")));
    }
    remove_tree(&volume).map_err(|e| io_error(&volume, e))
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
