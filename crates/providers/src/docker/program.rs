//! The guest's program, in a volume that is mounted read-only into each container.
//!
//! The volume is made once for each daemon and version of the guest. A container that never runs carries the program
//! into it, because the daemon's API writes files to containers only.

use super::{
    daemon::{Daemon, is_conflict, is_missing},
    labels,
};
use bollard::{
    body_full,
    models::{ContainerCreateBody, HostConfig, Mount, MountType, MountVolumeOptions},
    query_parameters::{
        ContainerArchiveInfoOptionsBuilder, CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder,
        UploadToContainerOptionsBuilder,
    },
};
use seawall_core::{Error, Result};
use std::{collections::HashMap, io, time::Duration};
use tokio::time::{Instant, sleep};

/// The mount point of the volume.
pub const FOLDER: &str = "/run/seawall/bin";
pub const GUEST_PATH: &str = "/run/seawall/bin/seawall-guest";
/// The last entry of the archive. Its existence shows that the guest was written completely.
const LAST: &str = "/run/seawall/bin/sudo";
/// How long another host may take to fill the volume.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);

/// The volume of this version of the guest.
pub fn volume() -> String {
    env!("SEAWALL_GUEST_NAME").to_owned()
}

/// The volume as a mount.
pub fn mount(read_only: bool) -> Mount {
    Mount {
        target: Some(FOLDER.to_owned()),
        source: Some(volume()),
        typ: Some(MountType::VOLUME),
        read_only: Some(read_only),
        volume_options: Some(MountVolumeOptions {
            no_copy: Some(true),
            labels: Some(HashMap::from([(labels::GUEST.to_owned(), env!("CARGO_PKG_VERSION").to_owned())])),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    }
}

/// Makes sure that the volume holds the guest. `image` is any image that the daemon has.
pub async fn ensure(daemon: &Daemon, image: &str) -> Result<()> {
    let docker = daemon.docker().await?;
    // The name is the lock: two hosts that filled the volume at once would disturb each other.
    let name = format!("{}-maker", volume());
    let body = ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: Some(vec![GUEST_PATH.to_owned()]),
        labels: Some(HashMap::from([(labels::GUEST.to_owned(), env!("CARGO_PKG_VERSION").to_owned())])),
        host_config: Some(HostConfig {
            mounts: Some(vec![mount(false)]),
            network_mode: Some("none".to_owned()),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    let options = CreateContainerOptionsBuilder::default().name(&name).build();
    let failed = |error| daemon.failed("putting the guest into a volume", error);
    let give_up = Instant::now() + PATIENCE;
    loop {
        match docker.create_container(Some(options.clone()), body.clone()).await {
            Ok(_) => break,
            Err(error) if is_conflict(&error) && Instant::now() < give_up => sleep(PAUSE).await,
            // A host that died left it, for nothing takes so long.
            Err(error) if is_conflict(&error) => remove(daemon, &name).await?,
            Err(error) => return Err(failed(error)),
        }
    }
    let filled = fill(daemon, &name).await;
    filled.and(remove(daemon, &name).await)
}

async fn remove(daemon: &Daemon, container: &str) -> Result<()> {
    let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
    match daemon.docker().await?.remove_container(container, Some(options)).await {
        Err(error) if !is_missing(&error) => Err(daemon.failed("putting the guest into a volume", error)),
        _ => Ok(()),
    }
}

async fn fill(daemon: &Daemon, container: &str) -> Result<()> {
    let docker = daemon.docker().await?;
    let failed = |error| daemon.failed("putting the guest into a volume", error);
    let stat = ContainerArchiveInfoOptionsBuilder::default().path(LAST).build();
    match docker.get_container_archive_info(container, Some(stat)).await {
        Ok(_) => return Ok(()),
        Err(error) if !is_missing(&error) => return Err(failed(error)),
        Err(_) => {}
    }
    let upload = UploadToContainerOptionsBuilder::default().path(FOLDER).build();
    let archive = archive(crate::guest_binary())
        .map_err(|error| Error::internal("an archive of the guest").with_source(error))?;
    docker.upload_to_container(container, Some(upload), body_full(archive.into())).await.map_err(failed)
}

/// A tar archive with the guest and its other name, `sudo`.
fn archive(guest: &[u8]) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::with_capacity(guest.len() + 4096));
    let name = GUEST_PATH.rsplit('/').next().unwrap_or(GUEST_PATH);
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o755);
    header.set_size(guest.len() as u64);
    archive.append_data(&mut header, name, guest)?;
    let mut link = tar::Header::new_gnu();
    link.set_entry_type(tar::EntryType::Symlink);
    link.set_mode(0o777);
    link.set_size(0);
    archive.append_link(&mut link, "sudo", name)?;
    archive.into_inner()
}
