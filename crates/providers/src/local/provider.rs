//! The provider itself: folders and guests behind the contract.

use super::{folder::Folders, launch};
use crate::{
    boxes::{Boxes, Held, Intent, io_error, no_box, refuse_damaged, refuse_image_options},
    dial::dial,
    off_thread, volumes,
    watch::{self, Truth},
};
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::{AccountId, ErrorKind, SandboxId, hello::Role, sandbox::SandboxSpec};
use seawall_core::{
    Error, Result,
    ports::{BoxEvents, BoxInfo, BoxState, Capabilities, LimitKinds, Provider, ToBox, VolumeInfo, Volumes},
};
use seawall_wire::{Duplex, Guest};
use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Beyond the grace, for the guest to answer and the kernel to clean up.
const STOP_SLACK: Duration = Duration::from_secs(3);

#[derive(Clone)]
pub struct LocalProvider {
    folders: Arc<Folders>,
    guest: PathBuf,
}

impl fmt::Debug for LocalProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalProvider").field("boxes", &self.folders.boxes.path).finish_non_exhaustive()
    }
}

impl LocalProvider {
    /// The boxes beneath a data folder. Those of another folder are another installation's.
    pub fn open(data: &Path) -> Result<LocalProvider> {
        std::fs::create_dir_all(data).map_err(|error| io_error(data, error))?;
        // Guests get absolute paths: they outlive whoever stands in this directory.
        let data = data.canonicalize().map_err(|error| io_error(data, error))?;
        let guest = crate::guest_file(&data, crate::guest_binary())?;
        Ok(LocalProvider { folders: Arc::new(Folders::open(&data)?), guest })
    }

    async fn hold(&self, id: SandboxId) -> Result<Option<Held>> {
        self.folders.boxes.hold(id).await
    }

    /// Ends everything in a box that is held.
    async fn end(&self, id: SandboxId, grace: Duration) -> Result<()> {
        if !self.folders.is_alive(id)? {
            return Ok(());
        }
        let connector = Arc::new(ToBox { provider: Arc::new(self.clone()), id });
        let asked = Guest::new(id, Role::Client, connector).shutdown(grace).await;
        if asked.is_ok() && launch::wait_dead(&self.folders, id, grace + STOP_SLACK).await? {
            return Ok(());
        }
        launch::kill(&self.folders, id).await
    }
}

impl Truth for Folders {
    fn boxes(&self) -> &Boxes {
        &self.boxes
    }

    fn info(&self, id: SandboxId) -> Result<BoxInfo> {
        Folders::info(self, id)
    }
}

fn check_spec(spec: &SandboxSpec) -> Result<()> {
    refuse_image_options("local", spec)?;
    if let Some(image) = spec.image.as_deref().filter(|image| *image != "host") {
        return Err(Error::invalid(format!(
            "the provider `local` has no images, so it cannot use `{image}`; leave the image out"
        )));
    }
    if !spec.mounts.is_empty() {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "the provider `local` mounts nothing: its sandboxes see the whole machine",
        ));
    }
    match spec.limits.named().first() {
        Some(limit) => Err(Error::new(
            ErrorKind::LimitUnenforceable,
            format!("the provider `local` cannot enforce `{limit}`; leave it out"),
        )),
        None => Ok(()),
    }
}

#[async_trait]
impl Provider for LocalProvider {
    fn name(&self) -> &'static str {
        "local"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolation: false,
            durable: true,
            programs: true,
            terminals: true,
            tunnels: true,
            file_watch: true,
            file_meta: true,
            images: false,
            users: rustix::process::geteuid().is_root(),
            pause: false,
            snapshot: false,
            fork: false,
            gpu: false,
            transparent_egress: false,
            limits: LimitKinds::default(),
        }
    }

    fn keeps_intent(&self) -> bool {
        true
    }

    async fn create(&self, id: SandboxId, spec: &SandboxSpec, account: AccountId) -> Result<BoxInfo> {
        check_spec(spec)?;
        tracing::warn!(sandbox = %id, "the provider `local` isolates nothing: commands run as plain processes of this machine");
        let (folders, spec) = (self.folders.clone(), spec.clone());
        let held = folders.boxes.hold_new(id).await?;
        off_thread(move || {
            let _held = held;
            match folders.boxes.intent_to_make(id)? {
                Some(intent) if intent.spec != spec => {
                    return Err(Error::conflict(format!("a box for {id} exists with another spec")));
                }
                Some(_) => {}
                None => folders.boxes.write_intent(&Intent {
                    version: 1,
                    id,
                    spec: spec.clone(),
                    created_at: Timestamp::now(),
                    account,
                })?,
            }
            folders.make_root(id, &spec)?;
            folders.info(id)
        })
        .await
    }

    async fn start(&self, id: SandboxId) -> Result<BoxInfo> {
        let _held = self.hold(id).await?.ok_or_else(|| no_box(id))?;
        let info = self.folders.info(id)?;
        if info.state == BoxState::Running {
            return Ok(info);
        }
        refuse_damaged(&info)?;
        self.folders.make_root(id, &info.spec)?;
        launch::start(&self.guest, &self.folders, id, &info.spec).await?;
        self.folders.info(id)
    }

    async fn stop(&self, id: SandboxId, grace: Duration) -> Result<()> {
        let _held = self.hold(id).await?.ok_or_else(|| no_box(id))?;
        self.folders.info(id)?;
        self.end(id, grace).await
    }

    async fn remove(&self, id: SandboxId, volumes: Volumes) -> Result<()> {
        let held = self.hold(id).await?;
        if held.is_some() {
            self.end(id, Duration::ZERO).await?;
        }
        let folders = self.folders.clone();
        off_thread(move || {
            folders.remove(id, volumes == Volumes::Delete)?;
            drop(held);
            Ok(())
        })
        .await
    }

    async fn get(&self, id: SandboxId) -> Result<BoxInfo> {
        let folders = self.folders.clone();
        off_thread(move || folders.info(id)).await
    }

    async fn list(&self) -> Result<Vec<BoxInfo>> {
        let folders = self.folders.clone();
        off_thread(move || Ok(watch::present(&*folders)?.into_values().collect())).await
    }

    async fn ids(&self) -> Result<Vec<SandboxId>> {
        let folders = self.folders.clone();
        off_thread(move || watch::ids(&*folders)).await
    }

    async fn watch(&self) -> Result<BoxEvents> {
        watch::watch(self.folders.clone())
    }

    async fn has_volume(&self, name: &str) -> Result<bool> {
        Ok(self.folders.volumes.join(name).exists())
    }

    async fn volumes(&self) -> Result<Vec<VolumeInfo>> {
        let folders = self.folders.clone();
        off_thread(move || volumes::list(&folders.volumes, &folders.boxes)).await
    }

    async fn remove_volume(&self, name: &str) -> Result<()> {
        let (folders, name) = (self.folders.clone(), name.to_owned());
        off_thread(move || volumes::remove(&folders.volumes, &folders.boxes, &name)).await
    }

    async fn connect(&self, id: SandboxId) -> Result<Box<dyn Duplex>> {
        dial(&*self.folders, id).await
    }
}
