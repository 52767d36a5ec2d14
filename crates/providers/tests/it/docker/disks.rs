//! Data volumes of a fixed size.

use super::world::{World, sh};
use seawall_api::{
    ErrorKind, SandboxId,
    sandbox::{Limits, SandboxSpec},
};
use seawall_core::ports::{Provider, Volumes};
use std::{fs, io::Write, time::Duration};

fn with_disk(mb: u64) -> SandboxSpec {
    let limits = Limits { disk_mb: Some(mb), ..Limits::default() };
    SandboxSpec { limits, read_only_root: true, ..SandboxSpec::default() }
}

/// False, with the reason, where this user or machine cannot limit disks.
fn can(world: &World, name: &str) -> bool {
    let can = world.provider.capabilities().limits.disk;
    if !can {
        let _ = writeln!(
            std::io::stderr(),
            "skipped docker::{name}: capability: this host or user cannot enforce it"
        );
    }
    can
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_ends_where_its_limit_is_and_outlives_its_container() {
    let name = "a_disk_ends_where_its_limit_is";
    let Some(world) = World::new(name) else { return };
    if !can(&world, name) {
        return;
    }
    let (id, guest) = world.sandbox(with_disk(64)).await;
    assert_eq!(sh(&guest, None, "ls -A | grep -v sandbox-state").await.1, "");
    let (code, out) = sh(&guest, None, "dd if=/dev/zero of=full bs=1M count=100 2>&1; ls -l full").await;
    assert_eq!(code, Some(0));
    assert!(out.contains("No space left"), "{out}");
    assert_ne!(sh(&guest, Some("root"), "dd if=/dev/zero of=/full bs=1M count=1").await.0, Some(0));
    sh(&guest, None, "rm full; echo kept > note").await;
    world.provider.stop(id, Duration::from_secs(1)).await.unwrap();
    // What was started behind our back could be given another sandbox's device.
    assert!(world.links().is_empty());
    world.provider.start(id).await.unwrap();
    assert_eq!(sh(&world.guest(id), None, "cat note").await.1, "kept\n");
    world.provider.remove(id, Volumes::Keep).await.unwrap();
    let volumes = world.provider.volumes().await.unwrap();
    assert!(volumes.iter().any(|volume| volume.name == id.to_string() && volume.bytes > 0), "{volumes:?}");
    let guest = world.start(id, with_disk(64)).await;
    assert_eq!(sh(&guest, None, "cat note").await.1, "kept\n");
    world.remove(id).await;
    assert_eq!(world.devices(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_cannot_hold_for_the_root_file_system_is_refused_with_the_fix() {
    let name = "a_disk_that_cannot_hold_is_refused";
    let Some(world) = World::new(name) else { return };
    if !can(&world, name) {
        return;
    }
    let spec = SandboxSpec { read_only_root: false, ..with_disk(64) };
    let driver = world.docker(&["info", "--format", "{{.Driver}}"]);
    if driver != "overlay2" {
        return;
    }
    let refused = world.create(SandboxId::generate(), &spec).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LimitUnenforceable);
    assert!(refused.to_string().contains("--read-only-root"), "{refused}");
    assert!(world.provider.volumes().await.unwrap().is_empty());
}

impl World {
    /// Links to devices that stay beneath the data folder.
    fn links(&self) -> Vec<String> {
        let disks = fs::read_dir(self.data().join("docker/disks")).unwrap().flatten();
        let links = disks.map(|entry| entry.path().join("device")).filter(|link| link.is_symlink());
        links.map(|link| link.display().to_string()).collect()
    }

    /// Images on loop devices that are beneath the data folder.
    fn devices(&self) -> Vec<String> {
        let data = self.data().canonicalize().unwrap().display().to_string();
        let blocks = fs::read_dir("/sys/block").unwrap().flatten();
        let files =
            blocks.filter_map(|entry| fs::read_to_string(entry.path().join("loop/backing_file")).ok());
        files.filter(|file| file.contains(&data)).collect()
    }
}
