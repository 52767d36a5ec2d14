//! A native provider on a data folder of its own, and commands in its sandboxes.

use seawall_api::{
    AccountId, SandboxId,
    exec::{ExitStatus, StartProcess},
    hello::Role,
    sandbox::{Limits, SandboxSpec},
};
use seawall_core::ports::{Provider, ToBox, Volumes};
use seawall_providers::native::{NativeProvider, NativeSettings};
use seawall_wire::{Guest, ProcessOutput};
use std::{io::Write, path::Path, sync::Arc};
use tempfile::TempDir;

pub struct World {
    pub provider: NativeProvider,
    data: TempDir,
}

impl World {
    pub fn new() -> World {
        World::with(NativeSettings::default())
    }

    pub fn with(settings: NativeSettings) -> World {
        let data = tempfile::tempdir().unwrap();
        World { provider: NativeProvider::open(data.path(), settings).unwrap(), data }
    }

    pub async fn sandbox(&self, limits: Limits) -> (SandboxId, Guest) {
        self.sandbox_of(AccountId::LOCAL, SandboxSpec { limits, ..SandboxSpec::default() }).await
    }

    pub async fn sandbox_of(&self, account: AccountId, spec: SandboxSpec) -> (SandboxId, Guest) {
        let id = SandboxId::generate();
        self.provider.create(id, &spec, account).await.unwrap();
        self.provider.start(id).await.unwrap();
        (id, self.guest(id))
    }

    pub fn guest(&self, id: SandboxId) -> Guest {
        Guest::new(id, Role::Client, Arc::new(ToBox { provider: Arc::new(self.provider.clone()), id }))
    }

    pub fn data(&self) -> &Path {
        self.data.path()
    }

    /// Another host process on the same data folder, once this one is gone.
    pub fn reopen(self, settings: NativeSettings) -> World {
        let World { provider, data } = self;
        drop(provider);
        World { provider: NativeProvider::open(data.path(), settings).unwrap(), data }
    }

    /// Files of images on loop devices that are beneath the data folder.
    pub fn loops(&self) -> Vec<String> {
        let data = self.data().canonicalize().unwrap().display().to_string();
        let blocks = std::fs::read_dir("/sys/block").unwrap().flatten();
        let files =
            blocks.filter_map(|entry| std::fs::read_to_string(entry.path().join("loop/backing_file")).ok());
        files.filter(|file| file.contains(&data)).collect()
    }

    pub async fn remove(&self, id: SandboxId) {
        self.provider.remove(id, Volumes::Delete).await.unwrap();
    }

    /// False, with the reason, where this host cannot enforce it.
    pub fn can(&self, name: &str, can: bool) -> bool {
        if !can {
            // Not captured, so that it is counted.
            let _ = writeln!(
                std::io::stderr(),
                "skipped limits::{name}: capability: this host or user cannot enforce it"
            );
        }
        can
    }
}

pub async fn sh(guest: &Guest, script: &str) -> (ExitStatus, String) {
    let mut process = guest.start(StartProcess::new(["sh", "-c", script])).await.unwrap();
    let mut out = Vec::new();
    loop {
        match process.next().await.unwrap() {
            ProcessOutput::Data { bytes, .. } => out.extend_from_slice(&bytes),
            ProcessOutput::End(status) => return (status, String::from_utf8_lossy(&out).into_owned()),
            _ => {}
        }
    }
}
