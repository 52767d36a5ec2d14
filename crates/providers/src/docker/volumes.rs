//! Data volumes on the daemon.

use super::{
    daemon::{Daemon, is_conflict, is_missing},
    disks::Disks,
    labels::{self, Labels},
};
use crate::off_thread;
use bollard::{
    models::{Volume, VolumeCreateRequest},
    query_parameters::{ListContainersOptionsBuilder, ListVolumesOptionsBuilder, RemoveVolumeOptions},
};
use seawall_api::{AccountId, ErrorKind};
use seawall_core::{Error, Result, ports::VolumeInfo};
use seawall_jail::tree::taken;
use std::{path::Path, sync::Arc};

/// The volumes of an installation.
pub async fn list(daemon: &Daemon, disks: Arc<Disks>, installation: &str) -> Result<Vec<VolumeInfo>> {
    let docker = daemon.docker().await?;
    let failed = |error| daemon.failed("the volumes", error);
    let filters = ListVolumesOptionsBuilder::default().filters(&labels::filter(installation)).build();
    let found = docker.list_volumes(Some(filters)).await.map_err(failed)?.volumes.unwrap_or_default();
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let used = in_use(daemon, installation).await?;
    let info = move |volume: Volume| {
        let name = volume.labels.get(labels::VOLUME)?.clone();
        Some(VolumeInfo {
            in_use: used.contains(&volume.name),
            // The folder can be read where the daemon runs on this machine and this process is root.
            bytes: disks.taken(&volume.name).unwrap_or_else(|| taken(Path::new(&volume.mountpoint))),
            place: volume.name,
            name,
        })
    };
    off_thread(move || {
        let mut volumes: Vec<_> = found.into_iter().filter_map(info).collect();
        volumes.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(volumes)
    })
    .await
}

/// The volumes that containers of an installation have.
async fn in_use(daemon: &Daemon, installation: &str) -> Result<Vec<String>> {
    let filters = labels::filter(installation);
    let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
    let found = daemon.docker().await?.list_containers(Some(options)).await;
    let found = found.map_err(|error| daemon.failed("the containers", error))?;
    Ok(found
        .into_iter()
        .flat_map(|one| one.mounts.unwrap_or_default())
        .filter_map(|mount| mount.name)
        .collect())
}

/// Makes a volume on a file system that the daemon mounts from a device.
pub async fn make_on_device(daemon: &Daemon, labels: Labels, name: String, device: &Path) -> Result<()> {
    let options = [
        ("type", "ext4".to_owned()),
        ("device", device.display().to_string()),
        // `discard` turns deleted blocks into holes of the image.
        ("o", "nosuid,nodev,noinit_itable,discard".to_owned()),
    ];
    let what = format!("making the volume {name}");
    let request = VolumeCreateRequest {
        name: Some(name),
        driver: Some("local".to_owned()),
        driver_opts: Some(options.map(|(key, value)| (key.to_owned(), value)).into()),
        labels: Some(labels),
        ..VolumeCreateRequest::default()
    };
    let made = daemon.docker().await?.create_volume(request).await;
    made.map(drop).map_err(|error| daemon.failed(&what, error))
}

/// Whether the installation has this volume.
pub async fn exists(daemon: &Daemon, installation: &str, name: &str) -> Result<bool> {
    match find(daemon, installation, name).await? {
        Some(volume) => Ok(belongs(&volume, installation)),
        None => Ok(false),
    }
}

/// Refuses a volume that another installation on the same daemon has. Returns whether the volume exists.
pub async fn check_owner(daemon: &Daemon, installation: &str, name: &str) -> Result<bool> {
    match find(daemon, installation, name).await? {
        Some(volume) if !belongs(&volume, installation) => Err(Error::new(
            ErrorKind::AlreadyExists,
            format!(
                "the volume {} on the Docker daemon belongs to another installation of Seawall; choose another sandbox id",
                volume.name
            ),
        )),
        found => Ok(found.is_some()),
    }
}

async fn find(daemon: &Daemon, installation: &str, name: &str) -> Result<Option<Volume>> {
    match daemon.docker().await?.inspect_volume(&labels::volume_name(name, installation)).await {
        Ok(volume) => Ok(Some(volume)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(daemon.failed(&format!("the volume {name}"), error)),
    }
}

/// Removes the cache volumes of an account.
pub async fn remove_caches(daemon: &Daemon, installation: &str, account: AccountId) -> Result<()> {
    let docker = daemon.docker().await?;
    let failed = |error| daemon.failed("removing the caches of an account", error);
    let filters = ListVolumesOptionsBuilder::default().filters(&labels::filter(installation)).build();
    let found = docker.list_volumes(Some(filters)).await.map_err(failed)?.volumes.unwrap_or_default();
    let owner = account.to_string();
    let is_cache = |volume: &&Volume| {
        volume.labels.contains_key(labels::CACHE) && volume.labels.get(labels::ACCOUNT) == Some(&owner)
    };
    for volume in found.iter().filter(is_cache) {
        match docker.remove_volume(&volume.name, None::<RemoveVolumeOptions>).await {
            Err(error) if !is_missing(&error) => return Err(failed(error)),
            _ => {}
        }
    }
    Ok(())
}

fn belongs(volume: &Volume, installation: &str) -> bool {
    volume.labels.get(labels::INSTALLATION).is_some_and(|found| found == installation)
}

/// Removes a volume of the installation, and its disk. Returns false where there is none.
pub async fn remove(daemon: &Daemon, disks: Arc<Disks>, installation: &str, name: &str) -> Result<bool> {
    if !exists(daemon, installation, name).await? {
        // An operator who removes a volume by hand leaves its disk behind.
        let volume = labels::volume_name(name, installation);
        return off_thread(move || match disks.taken(&volume) {
            Some(_) => disks.remove(&volume).map(|()| true),
            None => Ok(false),
        })
        .await;
    }
    let docker = daemon.docker().await?;
    match docker.remove_volume(&labels::volume_name(name, installation), None::<RemoveVolumeOptions>).await {
        Ok(()) => {
            let volume = labels::volume_name(name, installation);
            off_thread(move || disks.remove(&volume)).await?;
            Ok(true)
        }
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) if is_conflict(&error) => {
            let message = format!("a sandbox uses the volume {name}; remove it with `seawall rm --volumes`");
            Err(Error::conflict(message).with_source(error))
        }
        Err(error) => Err(daemon.failed(&format!("removing the volume {name}"), error)),
    }
}
