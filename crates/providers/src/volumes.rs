//! Data volumes as folders of this machine, beside the folders of boxes: one per sandbox, under its id, and those that
//! sandboxes share, under their names.

use crate::boxes::{Boxes, io_error};
use seawall_api::SandboxId;
use seawall_core::{Error, Result, ports::VolumeInfo};
use seawall_jail::tree::{remove as remove_tree, taken};
use std::{
    collections::BTreeSet,
    fs::{self, File},
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
        true => shared(boxes)?,
        false => Shared::default(),
    };
    let info = |name: String| {
        let place = volumes.join(&name);
        let in_use = match name.parse::<SandboxId>() {
            Ok(id) => boxes.of(id).exists(),
            Err(_) => shared.names.contains(&name) || shared.unknown.is_some(),
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
        Err(_) => {
            let shared = shared(boxes)?;
            if let Some(id) = shared.unknown {
                return Err(Error::conflict(format!(
                    "whether sandbox {id} uses the volume {name} is not known: it is damaged, and runs; remove it first"
                )));
            }
            shared.names.contains(name)
        }
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

/// The shared volumes that boxes have.
#[derive(Debug, Default)]
struct Shared {
    names: BTreeSet<String>,
    /// A box that runs and is damaged: it may have any of them.
    unknown: Option<SandboxId>,
}

/// A damaged box in which nothing lives keeps no volume from being removed: which one it had its sandbox's record tells.
fn shared(boxes: &Boxes) -> Result<Shared> {
    let mut shared = Shared::default();
    for id in boxes.ids()? {
        match boxes.intent(id) {
            Ok(intent) => shared.names.extend(intent.and_then(|intent| intent.spec.volume)),
            Err(_) if boxes.lives(id) => shared.unknown = Some(id),
            Err(_) => {}
        }
    }
    Ok(shared)
}
