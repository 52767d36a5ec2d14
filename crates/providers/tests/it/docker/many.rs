//! Many at once, and nothing left.

use super::world::{World, sh};
use seawall_api::{hello::Role, sandbox::SandboxSpec};
use seawall_core::ports::{Provider, ToBox};
use seawall_wire::Guest;
use std::{io::Write, os::unix::net::UnixListener, sync::Arc};
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_host_leaves_a_sandbox_that_the_next_one_uses() {
    let Some(world) = World::new("a_killed_host_leaves_a_sandbox") else { return };
    let (id, guest) = world.sandbox(SandboxSpec::default()).await;
    sh(&guest, None, "echo before > note").await;
    // A host that was killed leaves a socket to which nothing listens.
    let wires = world.data().join("docker/boxes").join(id.to_string()).join("wires");
    drop(UnixListener::bind(wires.join("left.sock")).unwrap());
    let next = world.reopen();
    let guest = Guest::new(id, Role::Client, Arc::new(ToBox { provider: Arc::new(next), id }));
    assert_eq!(sh(&guest, None, "cat note").await.1, "before\n");
    world.remove(id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_ten_at_once_leave_no_container_volume_or_process() {
    let Some(world) = World::new("p2_ten_at_once_leave_nothing") else { return };
    at_once(world, 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_fifty_at_once_leave_no_container_volume_or_process() {
    let name = "p2_fifty_at_once_leave_nothing";
    if std::env::var_os("SEAWALL_TEST_DOCKER_TCP").is_none() {
        let _ = writeln!(std::io::stderr(), "skipped docker::{name}: `make test-docker` runs it");
        return;
    }
    let Some(world) = World::new(name) else { return };
    at_once(world, 50).await;
}

async fn at_once(world: World, count: usize) {
    let world = std::sync::Arc::new(world);
    let mut tasks = JoinSet::new();
    for number in 0..count {
        let world = world.clone();
        tasks.spawn(async move {
            let (id, guest) = world.sandbox(SandboxSpec::default()).await;
            let (code, out) = sh(&guest, None, &format!("echo {number} > n; cat n")).await;
            assert_eq!((code, out), (Some(0), format!("{number}\n")));
            world.remove(id).await;
            id
        });
    }
    let ids = tasks.join_all().await;
    assert!(world.provider.list().await.unwrap().is_empty());
    assert!(world.provider.volumes().await.unwrap().is_empty());
    let containers = world.docker(&["ps", "-aq", "--format", "{{.Names}}"]);
    let volumes = world.docker(&["volume", "ls", "-q"]);
    let processes = processes();
    for id in ids {
        assert!(!processes.contains(&id.to_string()), "processes of {id} are left");
        assert!(!containers.contains(&id.to_string()) && !volumes.contains(&id.to_string()), "{id} is left");
    }
}

/// The command lines of all processes of this machine: those of guests name their sandboxes.
fn processes() -> String {
    let folders = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = folders.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).into_owned()).collect::<Vec<_>>().join("\n")
}
