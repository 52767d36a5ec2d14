//! Every limit of the native provider: it holds, and what reached it is told which it was.

use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    exec::{ExitReason, LimitHit, StartProcess},
    sandbox::{EndReason, Limits, SandboxSpec},
};
use seawall_core::ports::{BoxState, Provider};
use seawall_jail::cgroup::Cgroups;
use seawall_providers::native::{Defaults, NativeSettings};
use std::time::Duration;

mod accounts;
mod disks;
mod world;

use world::{World, sh};

#[tokio::test]
async fn t6_memory_ends_the_command_as_oom_and_the_box_lives() {
    let world = World::new();
    if !world.can("memory", world.provider.capabilities().limits.memory) {
        return;
    }
    let (id, guest) = world.sandbox(Limits { memory_mb: Some(64), ..Limits::default() }).await;
    let hog = "exec python3 -c 'x = bytearray(300 << 20); print(len(x))'";
    let (status, out) = sh(&guest, hog).await;
    assert_eq!((status.reason, status.limits), (ExitReason::Oom, vec![LimitHit::Memory]), "{out}");
    // Through a shell as well, and the next command is not blamed.
    let (status, _) = sh(&guest, &format!("sh -c \"{}\"; exit 137", hog.replace('"', "\\\""))).await;
    assert_eq!(status.reason, ExitReason::Oom);
    let (status, _) = sh(&guest, "true").await;
    assert_eq!((status.reason, status.limits.len()), (ExitReason::Exited, 0));
    world.remove(id).await;
}

/// Control groups wait ready-made, with the default limits. Whoever asks for more than that, or for less, gets it.
#[tokio::test]
async fn t6_more_and_less_memory_than_the_default_can_be_had() {
    let defaults = Defaults { memory_mb: 96, ..Defaults::default() };
    let world = World::with(NativeSettings { defaults, ..NativeSettings::default() });
    if !world.can("more_memory", world.provider.capabilities().limits.memory) {
        return;
    }
    let groups = Cgroups::find();
    // With the second box it is known that there will be more.
    let asked = [
        (None, ExitReason::Oom),
        (None, ExitReason::Oom),
        (Some(700), ExitReason::Exited),
        (Some(64), ExitReason::Oom),
    ];
    for (number, (memory_mb, reason)) in asked.into_iter().enumerate() {
        let (id, guest) = world.sandbox(Limits { memory_mb, ..Limits::default() }).await;
        let (status, out) = sh(&guest, "exec python3 -c 'x = bytearray(300 << 20); print(len(x))'").await;
        assert_eq!(status.reason, reason, "{memory_mb:?}: {out}");
        world.remove(id).await;
        // The next one finds a group that waits, where groups can wait.
        let begun = std::time::Instant::now();
        while number > 0 && groups.can_rename() && !groups.names().iter().any(|name| name.contains("-spare-"))
        {
            assert!(begun.elapsed() < Duration::from_secs(60), "no group is made in advance");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn t6_a_box_that_dies_of_memory_says_so() {
    let world = World::new();
    if !world.can("memory", world.provider.capabilities().limits.memory) {
        return;
    }
    let (id, guest) = world.sandbox(Limits { memory_mb: Some(24), ..Limits::default() }).await;
    // Files in memory belong to no process that could be ended for them.
    let fill = "cat /dev/zero > /dev/shm/a; cat /dev/zero > /run/lock/b; sleep 60";
    let filling = tokio::time::timeout(Duration::from_secs(30), async {
        let _ = guest.start(StartProcess::new(["sh", "-c", fill])).await;
        while world.provider.get(id).await.unwrap().state == BoxState::Running {
            let _ = guest.start(StartProcess::new(["sh", "-c", fill])).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    if filling.await.is_ok() {
        let reason = world.provider.get(id).await.unwrap().reason;
        assert_eq!(reason, Some(EndReason::Failed("oom".into())));
    }
    world.remove(id).await;
}

#[tokio::test]
async fn t6_processes() {
    let world = World::new();
    if !world.can("processes", world.provider.capabilities().limits.processes) {
        return;
    }
    let (id, guest) = world.sandbox(Limits { max_processes: Some(24), ..Limits::default() }).await;
    let (status, out) = sh(&guest, "for i in $(seq 40); do sleep 20 & done; true").await;
    assert!(status.limits.contains(&LimitHit::Processes), "{status:?} {out}");
    // Another command has no room either, and is told which limit it is.
    let refused = guest.start(StartProcess::new(["true"])).await;
    if let Err(error) = refused {
        assert!(error.to_string().contains("max_processes"), "{error}");
    }
    world.remove(id).await;
}

#[tokio::test]
async fn t6_disk_bytes_and_inodes() {
    let world = World::new();
    if !world.can("disk", world.provider.capabilities().limits.disk) {
        return;
    }
    let (id, guest) = world.sandbox(Limits { disk_mb: Some(32), ..Limits::default() }).await;
    for place in ["/work", "/tmp", "/home/user"] {
        let script = format!(
            "dd if=/dev/zero of={place}/big bs=1M count=64 2>&1; code=$?; rm -f {place}/big; exit $code"
        );
        let (status, out) = sh(&guest, &script).await;
        assert!(status.code == Some(1) && out.contains("No space left"), "{place}: {status:?} {out}");
    }
    let (status, _) = sh(&guest, "dd if=/dev/zero of=/work/big bs=1M count=64 2>/dev/null").await;
    assert_eq!(status.limits, [LimitHit::Disk]);
    sh(&guest, "rm /work/big").await;
    let (status, out) = sh(&guest, "cd /work; i=0; while : > f$i; do i=$((i+1)); done").await;
    assert_eq!(status.limits, [LimitHit::Disk], "{out}");
    // What was written survives a stop, and the limit with it.
    sh(&guest, "rm -f /work/f*; echo kept > /work/kept").await;
    world.provider.stop(id, Duration::from_secs(1)).await.unwrap();
    world.provider.start(id).await.unwrap();
    let (_, out) = sh(&guest, "cat /work/kept; df -m /work | tail -1").await;
    assert!(out.starts_with("kept\n"), "{out}");
    world.remove(id).await;
}

#[tokio::test]
async fn t6_open_files() {
    let defaults = Defaults { open_files: 100, ..Defaults::default() };
    let world = World::with(NativeSettings { defaults, ..NativeSettings::default() });
    let (id, guest) = world.sandbox(Limits::default()).await;
    let script = "exec python3 -c 'import os\nfds = []\nwhile True: fds.append(os.open(\"/dev/null\", 0))'";
    let (status, out) = sh(&guest, &format!("{script} 2>&1; ulimit -n 200")).await;
    assert!(status.code != Some(0) && out.contains("Too many open files"), "{out}");
    let (_, out) = sh(&guest, "ulimit -Hn; ulimit -n 200 2>&1 || true").await;
    assert!(out.starts_with("100\n"), "{out}");
    world.remove(id).await;
}

#[tokio::test]
async fn t6_cpus() {
    let world = World::new();
    if !world.can("cpus", world.provider.capabilities().limits.cpus) {
        return;
    }
    let (id, guest) = world.sandbox(Limits { cpus: Some(0.25), ..Limits::default() }).await;
    // By the kernel's own count of the time it gave, so that a busy machine only makes it less.
    let script = "exec python3 -c 'import time\nb = time.time()\nwhile time.time() - b < 2: pass\nprint(time.process_time())'";
    let (_, out) = sh(&guest, script).await;
    let used: f64 = out.trim().parse().unwrap();
    assert!(used < 1.0, "a quarter of 2 s was allowed, and {used} s were used");
    world.remove(id).await;
}

#[tokio::test]
async fn t6_what_cannot_be_enforced_is_refused_and_defaults_are_shown() {
    let world = World::new();
    let can = world.provider.capabilities().limits;
    let (id, _guest) = world.sandbox(Limits::default()).await;
    let held = world.provider.get(id).await.unwrap().limits;
    let defaults = Defaults::default();
    assert_eq!(held.memory_mb, can.memory.then_some(defaults.memory_mb));
    assert_eq!(held.max_processes, can.processes.then_some(defaults.max_processes));
    assert_eq!(held.cpus, can.cpus.then_some(defaults.cpus));
    world.remove(id).await;
    let asked = [
        (can.memory, Limits { memory_mb: Some(64), ..Limits::default() }),
        (can.processes, Limits { max_processes: Some(64), ..Limits::default() }),
        (can.cpus, Limits { cpus: Some(1.0), ..Limits::default() }),
        (can.disk, Limits { disk_mb: Some(64), ..Limits::default() }),
        (can.disk_io, Limits { disk_io_mb_s: Some(64), ..Limits::default() }),
        (can.disk_io, Limits { disk_iops: Some(64), ..Limits::default() }),
    ];
    for (can, limits) in asked {
        let spec = SandboxSpec { limits, ..SandboxSpec::default() };
        let id = SandboxId::generate();
        match world.provider.create(id, &spec, AccountId::LOCAL).await {
            Ok(_) => assert!(can, "{limits:?}"),
            Err(error) => {
                assert_eq!((can, error.kind()), (false, ErrorKind::LimitUnenforceable), "{error}");
                assert!(error.to_string().contains("or leave it out"), "{error}");
            }
        }
        world.remove(id).await;
    }
}
