//! The provider `docker` on a real daemon: what P2 asks, how a container is confined, and what is left behind.
//!
//! `scripts/docker` starts the daemon and makes the images. Without one each test is skipped by name.

mod accounts;
mod confined;
mod daemon;
mod disks;
mod images;
mod many;
mod network;
mod outside;
mod reconcile;
mod registry;
mod relink;
mod workspace;
mod world;

use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    sandbox::{EndReason, Limits, SandboxSpec},
};
use seawall_core::ports::{BoxState, Provider, Volumes};
use seawall_providers::docker::DockerSettings;
use std::{collections::BTreeMap, time::Duration};
use world::{World, sh};

#[tokio::test(flavor = "multi_thread")]
async fn p2_names_and_labels_identify_a_sandbox() {
    let Some(world) = World::new("p2_names_and_labels_identify_a_sandbox") else { return };
    let labels = BTreeMap::from([("team".to_owned(), "red".to_owned())]);
    let (id, _) = world.sandbox(SandboxSpec { labels, ..SandboxSpec::default() }).await;
    let label = |key: &str| {
        let format = format!("{{{{index .Config.Labels \"{key}\"}}}}");
        world.docker(&["inspect", "--format", &format, &format!("seawall-{id}")])
    };
    let own = id.to_string();
    for (key, value) in [("seawall.sandbox", own.as_str()), ("seawall.session", &own), ("team", "red")] {
        assert_eq!(label(key), value, "{key}");
    }
    let volume = world.docker(&["volume", "inspect", "--format", "{{.Name}}", &format!("seawall-data-{id}")]);
    assert_eq!(volume, format!("seawall-data-{id}"));
    world.remove(id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_the_data_volume_outlives_its_container_and_goes_only_on_request() {
    let Some(world) = World::new("p2_the_data_volume_outlives_its_container") else { return };
    let (id, guest) = world.sandbox(SandboxSpec::default()).await;
    assert_eq!(sh(&guest, None, "pwd; echo kept > note; mkdir d; echo x > /root/own").await.1, "/work\n");
    world.provider.remove(id, Volumes::Keep).await.unwrap();
    assert!(world.provider.has_volume(&id.to_string()).await.unwrap());
    let volumes = world.provider.volumes().await.unwrap();
    assert!(volumes.iter().any(|volume| volume.name == id.to_string() && !volume.in_use), "{volumes:?}");
    let guest = world.start(id, SandboxSpec::default()).await;
    assert_eq!(
        sh(&guest, None, "cat note; ls -d d; ls /root/own 2>&1 | grep -c 'No such'").await.1,
        "kept\nd\n1\n"
    );
    world.remove(id).await;
    assert!(!world.provider.has_volume(&id.to_string()).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_sandboxes_of_one_account_share_a_volume_and_its_owner_is_the_installation() {
    let Some(world) = World::new("p2_sandboxes_share_a_volume") else { return };
    let spec = SandboxSpec { volume: Some("local.team".to_owned()), ..SandboxSpec::default() };
    let (one, guest) = world.sandbox(spec.clone()).await;
    let (other, second) = world.sandbox(spec.clone()).await;
    sh(&guest, None, "echo shared > note").await;
    assert_eq!(sh(&second, None, "cat note").await.1, "shared\n");
    let Some(elsewhere) = World::new("p2_sandboxes_share_a_volume") else { return };
    let (third, apart) = elsewhere.sandbox(spec).await;
    assert_eq!(sh(&apart, None, "ls").await.1, "");
    elsewhere.remove(third).await;
    elsewhere.provider.remove_volume("local.team").await.unwrap();
    world.remove(one).await;
    let used = world.provider.remove_volume("local.team").await.unwrap_err();
    assert_eq!(used.kind(), ErrorKind::Conflict, "{used}");
    world.remove(other).await;
    world.provider.remove_volume("local.team").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_a_command_is_started_once_and_its_end_ends_nothing() {
    let Some(world) = World::new("p2_a_command_is_started_once") else { return };
    let command = ["sh", "-c", "echo started >> /work/log; exit 3"].map(str::to_owned).to_vec();
    let spec = SandboxSpec { command: Some(command), ..SandboxSpec::default() };
    let (id, guest) = world.sandbox(spec).await;
    assert_eq!(sh(&guest, None, "until test -s log; do sleep 0.01; done; cat log").await.1, "started\n");
    // Its end is noted a moment after it wrote.
    let ended = async {
        loop {
            let processes = guest.processes().await.unwrap();
            let command = processes.into_iter().find(|one| one.tag.as_deref() == Some("command"));
            if let Some(exit) = command.and_then(|command| command.exit) {
                return exit.code;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let code = tokio::time::timeout(Duration::from_secs(30), ended).await.expect("the command does not end");
    assert_eq!(code, Some(3));
    assert_eq!(world.provider.get(id).await.unwrap().state, BoxState::Running);
    world.provider.stop(id, Duration::from_secs(2)).await.unwrap();
    world.provider.start(id).await.unwrap();
    let guest = world.guest(id);
    assert_eq!(
        sh(&guest, None, "until test $(wc -l < log) = 2; do sleep 0.01; done; cat log").await.1,
        "started\nstarted\n"
    );
    world.remove(id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_a_read_only_root_keeps_work_and_temporary_folders_writable() {
    let Some(world) = World::new("p2_a_read_only_root") else { return };
    let (id, guest) = world.sandbox(SandboxSpec { read_only_root: true, ..SandboxSpec::default() }).await;
    for folder in ["/", "/etc", "/usr/bin", "/root", "/run"] {
        let (code, _) = sh(&guest, None, &format!("touch {folder}/x")).await;
        assert_ne!(code, Some(0), "{folder} can be written");
    }
    assert_eq!(sh(&guest, None, "touch /work/x /tmp/x /var/tmp/x").await.0, Some(0));
    world.remove(id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_and_others_are_refused_by_name() {
    let Some(world) = World::new("limits_hold_and_others_are_refused_by_name") else { return };
    let limits =
        Limits { memory_mb: Some(128), max_processes: Some(64), cpus: Some(0.5), ..Limits::default() };
    let (id, guest) = world.sandbox(SandboxSpec { limits, ..SandboxSpec::default() }).await;
    assert_eq!(world.provider.get(id).await.unwrap().limits, limits);
    let (code, _) = sh(&guest, None, "python3 -c 'b = bytearray(400 << 20)'").await;
    assert_eq!(code, Some(137));
    let (_, out) =
        sh(&guest, None, "i=0; while [ $i -lt 100 ]; do sleep 5 & i=$((i+1)); done 2>&1; echo end").await;
    assert!(out.contains("fork") || !out.contains("end"), "100 processes were started within 64: {out}");
    world.remove(id).await;
    let asked = Limits { disk_iops: Some(100), ..Limits::default() };
    let spec = SandboxSpec { limits: asked, ..SandboxSpec::default() };
    let refused = world.create(SandboxId::generate(), &spec).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LimitUnenforceable);
    assert!(refused.to_string().contains("disk_iops"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ended_a_container_is_known() {
    let Some(world) = World::new("what_ended_a_container_is_known") else { return };
    let (id, _) = world.sandbox(SandboxSpec::default()).await;
    let name = format!("seawall-{id}");
    let reason = || async { world.provider.get(id).await.unwrap().reason };
    // By hand: the guest takes the signal as an order to end.
    world.docker(&["stop", &name]);
    assert_eq!(reason().await, Some(EndReason::Stopped));
    world.provider.start(id).await.unwrap();
    world.docker(&["kill", &name]);
    assert_eq!(reason().await, Some(EndReason::Failed("guest_died".to_owned())));
    world.provider.start(id).await.unwrap();
    world.docker(&["pause", &name]);
    assert_eq!(world.provider.get(id).await.unwrap().state, BoxState::Paused);
    world.provider.stop(id, Duration::from_secs(1)).await.unwrap();
    assert_eq!(reason().await, Some(EndReason::Stopped));
    world.remove(id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_caches_are_shared_by_the_sandboxes_of_one_account_only() {
    let settings = DockerSettings {
        image: Some(world::DEBIAN.to_owned()),
        caches: vec!["/root/.cache".to_owned()],
        ..DockerSettings::default()
    };
    let Some(world) = World::with("p2_caches_are_shared_by_one_account", settings) else { return };
    let (mine, others) = (AccountId::generate(), AccountId::generate());
    let mut made = Vec::new();
    for account in [mine, mine, others] {
        let id = SandboxId::generate();
        world.provider.create(id, &SandboxSpec::default(), account).await.unwrap();
        world.provider.start(id).await.unwrap();
        made.push(id);
    }
    let see = async |id: SandboxId| sh(&world.guest(id), Some("root"), "ls /root/.cache").await.1;
    sh(&world.guest(made[0]), Some("root"), "touch /root/.cache/wheel").await;
    assert_eq!((see(made[1]).await, see(made[2]).await), ("wheel\n".to_owned(), String::new()));
    for id in made {
        world.remove(id).await;
    }
    let filter = format!("label=seawall.account={mine}");
    let caches = || world.docker(&["volume", "ls", "-q", "--filter", &filter]).lines().count();
    assert_eq!(caches(), 1, "a cache outlives its sandboxes");
    world.provider.remove_account(mine).await.unwrap();
    world.provider.remove_account(others).await.unwrap();
    assert_eq!(caches(), 0);
}
