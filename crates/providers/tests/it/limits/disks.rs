//! Disks of a fixed size: whose they are, how they last, and that they are made in advance.

use super::world::{World, sh};
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    exec::LimitHit,
    sandbox::{Limits, SandboxSpec},
};
use seawall_core::ports::{Provider, Volumes};
use seawall_providers::native::{Defaults, NativeSettings};
use seawall_wire::Guest;
use std::{
    fs,
    time::{Duration, Instant},
};

fn limited(mb: u64) -> SandboxSpec {
    SandboxSpec { limits: Limits { disk_mb: Some(mb), ..Limits::default() }, ..SandboxSpec::default() }
}

/// Whether 64 MiB do not fit there.
async fn is_limited(guest: &Guest, place: &str) -> bool {
    let script =
        format!("dd if=/dev/zero of={place}/big bs=1M count=64 2>&1; code=$?; rm -f {place}/big; exit $code");
    let (status, out) = sh(guest, &script).await;
    assert_eq!(status.code == Some(1), out.contains("No space left"), "{out}");
    status.code == Some(1)
}

async fn start(world: &World, id: SandboxId, spec: &SandboxSpec) -> Guest {
    world.provider.create(id, spec, AccountId::LOCAL).await.unwrap();
    world.provider.start(id).await.unwrap();
    world.guest(id)
}

#[tokio::test]
async fn k8_a_volume_stays_as_it_was_made_and_the_box_around_it_is_limited() {
    let world = World::new();
    if !world.can("disk", world.provider.capabilities().limits.disk) {
        return;
    }
    // Made without a limit, and then used with one.
    let id = SandboxId::generate();
    let guest = start(&world, id, &SandboxSpec::default()).await;
    sh(&guest, "echo kept > /work/kept").await;
    world.provider.remove(id, Volumes::Keep).await.unwrap();
    let guest = start(&world, id, &limited(32)).await;
    assert_eq!(sh(&guest, "cat /work/kept").await.1, "kept\n");
    assert!(!is_limited(&guest, "/work").await && is_limited(&guest, "/home/user").await);
    assert_eq!(world.provider.get(id).await.unwrap().limits.disk_mb, None);
    // It is the same after a stop.
    sh(&guest, "echo own > /home/user/own").await;
    world.provider.stop(id, Duration::ZERO).await.unwrap();
    world.provider.start(id).await.unwrap();
    assert_eq!(sh(&guest, "cat /work/kept /home/user/own").await.1, "kept\nown\n");
    world.remove(id).await;
    // Made with a limit, and then used without, or with another.
    let id = SandboxId::generate();
    let guest = start(&world, id, &limited(32)).await;
    sh(&guest, "echo kept > /work/kept; echo gone > /home/user/own").await;
    for spec in [SandboxSpec::default(), limited(128)] {
        world.provider.remove(id, Volumes::Keep).await.unwrap();
        let guest = start(&world, id, &spec).await;
        assert_eq!(sh(&guest, "cat /work/kept; cat /home/user/own 2>/dev/null").await.1, "kept\n");
        assert!(is_limited(&guest, "/work").await);
        assert_eq!(world.provider.get(id).await.unwrap().limits.disk_mb, Some(32));
    }
    world.remove(id).await;
}

#[tokio::test]
async fn k8_a_shared_volume_has_a_disk_of_its_own() {
    let world = World::new();
    if !world.can("disk", world.provider.capabilities().limits.disk) {
        return;
    }
    let spec = SandboxSpec { volume: Some("local.team".to_owned()), ..limited(32) };
    let ids = [SandboxId::generate(), SandboxId::generate()];
    let first = start(&world, ids[0], &spec).await;
    let second = start(&world, ids[1], &spec).await;
    sh(&first, "echo ours > /work/file; echo mine > /home/user/file").await;
    assert_eq!(sh(&second, "cat /work/file; ls /home/user").await.1, "ours\n");
    for guest in [&first, &second] {
        assert!(is_limited(guest, "/work").await && is_limited(guest, "/tmp").await);
    }
    // What one takes the other does not have.
    sh(&first, "dd if=/dev/zero of=/work/big bs=1M count=64 2>/dev/null").await;
    let (status, _) = sh(&second, "echo more > /work/more; dd if=/dev/zero of=/work/b bs=1M count=8").await;
    assert_eq!((status.code, status.limits), (Some(1), vec![LimitHit::Disk]));
    sh(&second, "rm /work/big /work/b").await;
    // The volume is mounted once, and goes on without the box that came first.
    world.provider.stop(ids[0], Duration::ZERO).await.unwrap();
    assert_eq!(sh(&second, "cat /work/file").await.1, "ours\n");
    world.provider.start(ids[0]).await.unwrap();
    assert_eq!(sh(&first, "cat /work/file /home/user/file").await.1, "ours\nmine\n");
    // One without a limit of its own uses it as it is.
    let third = SandboxId::generate();
    let plain = SandboxSpec { limits: Limits::default(), ..spec.clone() };
    let guest = start(&world, third, &plain).await;
    assert!(is_limited(&guest, "/work").await && !is_limited(&guest, "/tmp").await);
    for id in [ids[0], ids[1], third] {
        world.remove(id).await;
    }
    // It stays until somebody removes it.
    let fourth = SandboxId::generate();
    let guest = start(&world, fourth, &spec).await;
    assert_eq!(sh(&guest, "cat /work/file; ls /home/user").await.1, "ours\n");
    world.remove(fourth).await;
    world.provider.remove_volume("local.team").await.unwrap();
}

#[tokio::test]
async fn k8_disks_wait_in_advance_and_nothing_is_left_of_them() {
    let defaults = Defaults { disk_mb: Some(48), ..Defaults::default() };
    let settings = NativeSettings { defaults, ..NativeSettings::default() };
    let world = World::with(settings.clone());
    if !world.can("disk", world.provider.capabilities().limits.disk) {
        return;
    }
    let waiting = |world: &World| {
        let names = fs::read_dir(world.data().join("native/spare")).unwrap().flatten();
        names.filter(|entry| entry.file_name().to_string_lossy().starts_with("disk-48-")).count()
    };
    // By the default size, and with the second box it is known that there will be more.
    for _ in 0..3 {
        let (id, guest) = world.sandbox(Limits::default()).await;
        assert!(is_limited(&guest, "/work").await);
        assert_eq!(world.provider.get(id).await.unwrap().limits.disk_mb, Some(48));
        world.remove(id).await;
    }
    let begun = Instant::now();
    while waiting(&world) == 0 || world.loops().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no disk is made in advance");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // One that waited is as one that was made: empty, writable, of its size.
    let (id, guest) = world.sandbox(Limits::default()).await;
    let script = "ls /work /home/user; touch /work/a /home/user/b /tmp/c; stat -c %U /work /home/user /opt";
    let (status, out) = sh(&guest, script).await;
    assert_eq!((status.code, out.as_str()), (Some(0), "/home/user:\n\n/work:\nuser\nuser\nroot\n"));
    assert!(is_limited(&guest, "/work").await);
    // The next host process finds those that wait, and the box with its disk still mounted.
    let world = world.reopen(settings);
    assert_eq!(sh(&world.guest(id), "ls /work").await.1, "a\n");
    world.provider.stop(id, Duration::ZERO).await.unwrap();
    world.provider.start(id).await.unwrap();
    assert_eq!(sh(&world.guest(id), "ls /work").await.1, "a\n");
    world.remove(id).await;
    let (id, next) = world.sandbox(Limits::default()).await;
    assert!(is_limited(&next, "/work").await);
    world.remove(id).await;
    // Those who speak to a guest keep the provider.
    drop((guest, next));
    let world = world.reopen(NativeSettings::default());
    let begun = Instant::now();
    while !world.loops().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", world.loops());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn k8_disk_io_of_a_sandbox_is_bounded() {
    let world = World::new();
    let can = world.provider.capabilities().limits;
    if !world.can("disk_io", can.disk_io) {
        return;
    }
    for disk_mb in [None, can.disk.then_some(64)] {
        let limits = Limits { disk_io_mb_s: Some(8), disk_mb, ..Limits::default() };
        let (id, guest) = world.sandbox(limits).await;
        for how in ["oflag=direct", "conv=fsync"] {
            let begun = Instant::now();
            let (status, out) =
                sh(&guest, &format!("dd if=/dev/zero of=/work/big bs=1M count=8 {how} 2>&1")).await;
            assert_eq!(status.code, Some(0), "{out}");
            let taken = begun.elapsed();
            assert!(
                taken > Duration::from_millis(800),
                "8 MiB at 8 MiB a second took {taken:?} ({how}, {disk_mb:?})"
            );
        }
        assert_eq!(world.provider.get(id).await.unwrap().limits.disk_io_mb_s, Some(8));
        world.remove(id).await;
    }
    let limits = Limits { disk_iops: Some(50), ..Limits::default() };
    let (id, guest) = world.sandbox(limits).await;
    let begun = Instant::now();
    sh(&guest, "dd if=/dev/zero of=/work/big bs=4k count=75 oflag=direct 2>/dev/null").await;
    assert!(begun.elapsed() > Duration::from_secs(1), "75 writes at 50 a second took {:?}", begun.elapsed());
    world.remove(id).await;
}

#[tokio::test]
async fn k8_a_reserve_of_the_data_disk_is_not_given_away() {
    let world = World::new();
    let (running, _) = world.sandbox(Limits::default()).await;
    let (stopped, _) = world.sandbox(Limits::default()).await;
    world.provider.stop(stopped, Duration::ZERO).await.unwrap();
    // More than any disk has.
    let world = world.reopen(NativeSettings { disk_reserve_mb: Some(1 << 40), ..NativeSettings::default() });
    let id = SandboxId::generate();
    let refused = [
        world.provider.create(id, &SandboxSpec::default(), AccountId::LOCAL).await.unwrap_err(),
        world.provider.start(stopped).await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "disk_reserve"), "{error}");
        assert!(error.to_string().contains("disk_reserve_mb"), "{error}");
    }
    // What is there goes on, and can be stopped and removed.
    world.provider.create(running, &SandboxSpec::default(), AccountId::LOCAL).await.unwrap();
    world.provider.start(running).await.unwrap();
    assert_eq!(sh(&world.guest(running), "true").await.0.code, Some(0));
    assert!(world.provider.volumes().await.unwrap().iter().all(|volume| volume.name != id.to_string()));
    for id in [running, stopped, id] {
        world.remove(id).await;
    }
}

#[tokio::test]
async fn k8_no_sandbox_gets_more_than_the_machine_has() {
    let world = World::new();
    let can = world.provider.capabilities().limits;
    for (can, limits) in [
        (can.cpus, Limits { cpus: Some(8000.0), ..Limits::default() }),
        (can.memory, Limits { memory_mb: Some(1 << 29), ..Limits::default() }),
        (can.processes, Limits { max_processes: Some(1 << 23), ..Limits::default() }),
        (can.disk, Limits { disk_mb: Some(15 << 20), ..Limits::default() }),
    ] {
        let name = limits.named()[0];
        let spec = SandboxSpec { limits, ..SandboxSpec::default() };
        let error = world.provider.create(SandboxId::generate(), &spec, AccountId::LOCAL).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{can}: {error}");
        assert!(
            error.to_string().contains(name) && error.to_string().contains("this machine has"),
            "{error}"
        );
    }
    assert!(world.provider.list().await.unwrap().is_empty());
}
