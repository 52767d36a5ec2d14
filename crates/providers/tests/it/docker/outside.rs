//! What happens to a container behind the server's back.

use super::world::{World, sh};
use seawall_api::{
    SandboxId,
    exec::StartProcess,
    sandbox::{EndReason, SandboxState},
};
use seawall_core::{
    ExecRequest, NewSandbox, Providers, Sandboxes,
    ports::{BoxState, Provider, SystemClock, Volumes},
    testing::MemoryRecords,
};
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;

/// Sandboxes as a server has them: it follows what their providers report.
fn served(world: &World) -> Sandboxes {
    let providers = Providers::new("docker", vec![Arc::new(world.provider.clone())]).unwrap();
    let sandboxes = Sandboxes::new(providers, Arc::new(MemoryRecords::default()), Arc::new(SystemClock));
    let followed = sandboxes.clone();
    tokio::spawn(async move { followed.follow().await });
    sandboxes
}

async fn launched(sandboxes: &Sandboxes) -> SandboxId {
    sandboxes.launch(NewSandbox::default()).await.unwrap().0.id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_ends_soon_after_its_container_was_paused() {
    let Some(world) = World::new("a_call_that_waits_ends_when_paused") else { return };
    let sandboxes = served(&world);
    let id = launched(&sandboxes).await;
    let waiting = {
        let sandboxes = sandboxes.clone();
        let start = StartProcess::new(["sleep", "100"]);
        let request = ExecRequest { start, ..ExecRequest::new(["true"]) };
        tokio::spawn(async move { sandboxes.exec(id, request).await })
    };
    let guest = sandboxes.guest(id).await.unwrap();
    assert_eq!(sh(&guest, None, "until pgrep -x sleep > /dev/null; do sleep 0.01; done").await.0, Some(0));
    world.docker(&["pause", &format!("seawall-{id}")]);
    let ended = timeout(Duration::from_secs(30), waiting).await.expect("the call still waits").unwrap();
    assert!(ended.is_err(), "{ended:?}");
    assert_eq!(sandboxes.get(id).await.unwrap().state, SandboxState::Paused);
    // Continued, it works again.
    sandboxes.start(id).await.unwrap();
    assert_eq!(sh(&sandboxes.guest(id).await.unwrap(), None, "echo back").await.1, "back\n");
    sandboxes.remove(id, Volumes::Delete).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_was_stopped_or_removed_by_hand_is_shown_as_that() {
    let Some(world) = World::new("a_container_stopped_by_hand_is_shown") else { return };
    let sandboxes = served(&world);
    let id = launched(&sandboxes).await;
    let name = format!("seawall-{id}");
    world.docker(&["stop", &name]);
    let info = sandboxes.get(id).await.unwrap();
    assert_eq!((info.state, info.reason), (SandboxState::Stopped, Some(EndReason::Stopped)));
    world.docker(&["rm", "-f", &name]);
    assert_eq!(sandboxes.get(id).await.unwrap().state, SandboxState::Lost);
    // It is made again, with its files.
    sandboxes.start(id).await.unwrap();
    assert_eq!(world.provider.get(id).await.unwrap().state, BoxState::Running);
    sandboxes.remove(id, Volumes::Delete).await.unwrap();
}
