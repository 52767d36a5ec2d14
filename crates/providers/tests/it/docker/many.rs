//! Many at once, and nothing left.

use super::world::{World, sh};
use seawall_api::sandbox::SandboxSpec;
use seawall_core::ports::Provider;
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_host_leaves_a_sandbox_that_the_next_one_uses() {
    let Some(world) = World::new("a_killed_host_leaves_a_sandbox") else { return };
    let (id, guest) = world.sandbox(SandboxSpec::default()).await;
    sh(&guest, None, "echo before > note").await;
    // A host that was killed leaves its socket.
    drop(guest);
    assert_eq!(sh(&world.guest(id), None, "cat note").await.1, "before\n");
    world.remove(id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_ten_at_once_leave_no_container_volume_or_process() {
    let Some(world) = World::new("p2_ten_at_once_leave_nothing") else { return };
    at_once(world, 10).await;
}

pub async fn at_once(world: World, count: usize) {
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
    for id in ids {
        assert!(!containers.contains(&id.to_string()) && !volumes.contains(&id.to_string()), "{id} is left");
    }
}
