//! What goes wrong with containers behind the server's back, and what reconciliation makes of it (P8).

use super::{
    daemon::Daemon,
    world::{DEBIAN, World, sh},
};
use seawall_api::{
    AccountId, SandboxId,
    conversation::TurnState,
    http::{CreateSandbox, Reconciliation},
    sandbox::{EndReason, SandboxSpec, SandboxState},
};
use seawall_core::{
    Providers, Sandboxes, ServiceParts, Services,
    ports::{BoxState, Provider, SystemClock, Volumes},
    service::EndSandbox,
    templates::{Template, Templates},
    testing::{HostClaims, MemoryStore, OneBucket},
    turns::{Choice, TurnAsk},
};
use seawall_providers::docker::DockerSettings;
use seawall_sync::bucket::MemoryBucket;
use seawall_wire::Guest;
use std::{fs, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

const ME: AccountId = AccountId::LOCAL;
/// Longer than a server takes to notice a change.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server on an installation. Its rows, claims and bucket outlive it.
struct Server {
    world: World,
    store: MemoryStore,
    claims: HostClaims,
    bucket: Arc<MemoryBucket>,
    services: Services,
}

fn settings() -> DockerSettings {
    DockerSettings { image: Some(DEBIAN.to_owned()), ..DockerSettings::default() }
}

/// The template of the sandboxes, with an image of its own.
fn template(image: &str) -> Template {
    let mut template = Template { name: "work".to_owned(), ..Template::default() };
    template.sandbox.image = Some(image.to_owned());
    template
}

impl Server {
    fn new(world: World) -> Server {
        let (store, claims, bucket) = (MemoryStore::default(), HostClaims::default(), Arc::default());
        let services = services(&world, &store, &claims, &bucket, DEBIAN);
        Server { world, store, claims, bucket, services }
    }

    /// The next server, whose template names this image.
    fn restarted(self, image: &str) -> Server {
        let services = services(&self.world, &self.store, &self.claims, &self.bucket, image);
        Server { services, ..self }
    }

    async fn create(&self) -> SandboxId {
        let ask = CreateSandbox { template: Some("work".to_owned()), ..CreateSandbox::default() };
        self.services.sandboxes.create(ME, &ask).await.unwrap().info.id
    }

    async fn guest(&self, id: SandboxId) -> Guest {
        self.services.sandboxes.guest(ME, id).await.unwrap()
    }

    async fn sh(&self, id: SandboxId, script: &str) -> String {
        sh(&self.guest(id).await, None, script).await.1
    }

    async fn state(&self, id: SandboxId) -> SandboxState {
        self.services.sandboxes.get(ME, id).await.unwrap().info.state
    }

    async fn reconcile(&self) -> Reconciliation {
        self.services.sandboxes.reconcile(false).await.unwrap()
    }

    /// Ends all sandboxes, and shows that nothing is left on the daemon.
    async fn end(self, ids: &[SandboxId]) {
        let how =
            EndSandbox { sync: false, force: true, volumes: Some(Volumes::Delete), delete_versions: false };
        for id in ids {
            self.services.sandboxes.end(ME, *id, &how).await.unwrap();
        }
        self.is_clean();
    }

    fn is_clean(&self) {
        let filter = format!("label=seawall.installation={}", self.world.installation());
        for kind in [["ps", "-aq"], ["volume", "ls"]] {
            let args = [&kind[..], &["--quiet", "--filter", &filter]].concat();
            assert_eq!(self.world.docker(&args), "", "{kind:?}");
        }
    }
}

fn services(
    world: &World,
    store: &MemoryStore,
    claims: &HostClaims,
    bucket: &Arc<MemoryBucket>,
    image: &str,
) -> Services {
    let (claims, clock) = (Arc::new(claims.clone()), Arc::new(SystemClock));
    let providers = Providers::new("docker", vec![Arc::new(world.reopen())]).unwrap();
    let stores = store.stores();
    let sandboxes = Sandboxes::on_rows(providers, &stores, claims.clone(), clock.clone(), "node");
    let followed = sandboxes.clone();
    tokio::spawn(async move { followed.follow().await });
    let mut templates = Templates::default();
    templates.add(template(image)).unwrap();
    let buckets = Arc::new(OneBucket(Some(bucket.clone())));
    let parts = ServiceParts::new(sandboxes, stores, claims, clock, "node");
    ServiceParts { templates, buckets, ..parts }.build()
}

/// A server on the daemon that all tests share.
fn server(test: &str) -> Option<Server> {
    World::with(test, settings()).map(Server::new)
}

#[tokio::test(flavor = "multi_thread")]
async fn p8_a_container_deleted_by_hand_is_made_again_with_its_volume() {
    let Some(server) = server("p8_a_container_deleted_by_hand") else { return };
    let id = server.create().await;
    server.sh(id, "echo work > note").await;
    server.world.docker(&["rm", "-f", &format!("seawall-{id}")]);
    assert_eq!(server.reconcile().await, Reconciliation { lost: vec![id], ..Reconciliation::default() });
    assert_eq!(server.state(id).await, SandboxState::Lost);
    // The volume without a container is shown, and used again.
    let volumes = server.world.provider.volumes().await.unwrap();
    assert!(volumes.iter().any(|volume| volume.name == id.to_string() && !volume.in_use), "{volumes:?}");
    assert_eq!(server.sh(id, "cat note").await, "work\n");
    assert_eq!(server.state(id).await, SandboxState::Running);
    server.end(&[id]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p8_an_orphan_goes_and_its_volume_stays() {
    let Some(server) = server("p8_an_orphan_goes") else { return };
    let (orphan, guest) = server.world.sandbox(SandboxSpec::default()).await;
    sh(&guest, None, "echo work > note").await;
    let planned = server.services.sandboxes.reconcile(true).await.unwrap();
    let report = Reconciliation { removed: vec![orphan], ..Reconciliation::default() };
    assert_eq!(planned, Reconciliation { dry_run: true, ..report.clone() });
    assert!(server.world.provider.get(orphan).await.is_ok(), "a dry run changes nothing");
    assert_eq!(server.reconcile().await, report);
    assert!(server.world.provider.get(orphan).await.is_err());
    // The operator can have the files by the id.
    let ask = CreateSandbox { id: Some(orphan), ..CreateSandbox::default() };
    server.services.sandboxes.create(ME, &ask).await.unwrap();
    assert_eq!(server.sh(orphan, "cat note").await, "work\n");
    server.end(&[orphan]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p8_what_a_crash_cut_short_is_finished_or_taken_back() {
    let Some(server) = server("p8_what_a_crash_cut_short") else { return };
    let stores = server.store.stores();
    let id = server.create().await;
    // Half removed: the container is gone, and the volume is not.
    let mut row = stores.sandboxes.find(id).await.unwrap().unwrap();
    row.state = SandboxState::Stopping;
    row.removing = Some(Volumes::Delete);
    stores.sandboxes.update(&row).await.unwrap();
    server.world.docker(&["rm", "-f", &format!("seawall-{id}")]);
    // Half created: the record is there, and no container.
    let half = SandboxId::generate();
    let made =
        seawall_core::ports::store::SandboxRow { id: half, state: SandboxState::Creating, ..row.clone() };
    stores.sandboxes.insert(&made).await.unwrap();
    let found = server.reconcile().await;
    assert_eq!(found, Reconciliation { finished: vec![id], unmade: vec![half], ..Reconciliation::default() });
    assert_eq!(server.reconcile().await, Reconciliation::default());
    server.is_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn p8_an_outdated_image_is_replaced_and_the_volume_stays() {
    let Some(server) = server("p8_an_outdated_image_is_replaced") else { return };
    let newer = "seawall-test/newer:2";
    server.world.docker(&["tag", DEBIAN, newer]);
    let id = server.create().await;
    server.sh(id, "echo work > note").await;
    let server = server.restarted(newer);
    let found = server.reconcile().await;
    assert!(found.outdated[&id].contains("it runs"), "{found:?}");
    server.services.sandboxes.stop(ME, id, None, false).await.unwrap();
    assert_eq!(server.reconcile().await, Reconciliation { rebuilt: vec![id], ..Reconciliation::default() });
    let image = server.world.docker(&["inspect", "--format", "{{.Config.Image}}", &format!("seawall-{id}")]);
    assert_eq!(image, newer);
    assert_eq!(server.sh(id, "cat note").await, "work\n");
    // A start does not wait for the next round.
    server.services.sandboxes.stop(ME, id, None, false).await.unwrap();
    let server = server.restarted(DEBIAN);
    server.services.sandboxes.start(ME, id).await.unwrap();
    let image = server.world.docker(&["inspect", "--format", "{{.Config.Image}}", &format!("seawall-{id}")]);
    assert_eq!(image, DEBIAN);
    // A template whose image cannot be had leaves the container as it is.
    server.services.sandboxes.stop(ME, id, None, false).await.unwrap();
    let server = server.restarted("seawall-test/no-such:1");
    assert!(server.reconcile().await.outdated.contains_key(&id));
    assert_eq!(server.sh(id, "cat note").await, "work\n");
    server.end(&[id]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p8_a_guest_that_is_too_old_is_replaced_at_the_next_start() {
    let Some(world) = World::with("p8_a_guest_that_is_too_old", settings()) else { return };
    let (id, guest) = world.sandbox(SandboxSpec::default()).await;
    sh(&guest, None, "echo work > note").await;
    world.provider.stop(id, Duration::from_secs(5)).await.unwrap();
    // As a container of an earlier version, which spoke a protocol that no host speaks any more.
    let name = format!("seawall-{id}");
    let label = |key: &str| {
        let format = format!("{{{{index .Config.Labels \"{key}\"}}}}");
        format!("{key}={}", world.docker(&["inspect", "--format", &format, &name]))
    };
    let labels = ["seawall.sandbox", "seawall.account", "seawall.installation", "seawall.spec"].map(label);
    world.docker(&["rm", &name]);
    let volume = format!("seawall-data-{id}:/work");
    let mut args = vec!["create", "--name", &name, "--volume", &volume, "--label", "seawall.protocol=0"];
    labels.iter().for_each(|label| args.extend(["--label", label]));
    world.docker(&[&args[..], &[DEBIAN, "false"]].concat());
    world.provider.start(id).await.unwrap();
    assert_eq!(sh(&world.guest(id), None, "cat note").await.1, "work\n");
    let label =
        world.docker(&["inspect", "--format", "{{index .Config.Labels \"seawall.protocol\"}}", &name]);
    assert_ne!(label, "0");
    world.remove(id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_volume_of_an_ended_sandbox_can_be_removed() {
    let Some(server) = server("a_kept_volume_of_an_ended_sandbox") else { return };
    let id = server.create().await;
    let how = EndSandbox { sync: false, force: true, volumes: Some(Volumes::Keep), delete_versions: false };
    server.services.sandboxes.end(ME, id, &how).await.unwrap();
    server.services.sandboxes.boxes().remove_volume(&id.to_string()).await.unwrap();
    server.is_clean();
}

/// A turn that was interrupted by a pause must not go on beside the next one.
#[tokio::test(flavor = "multi_thread")]
async fn c8_a_turn_that_a_pause_interrupts_leaves_no_agent_behind() {
    let Some(server) = server("c8_a_turn_that_a_pause_interrupts") else { return };
    let id = server.create().await;
    let ask = |prompt: &str| TurnAsk {
        sandbox: Choice::This(id),
        template: Some("work".to_owned()),
        prompt: prompt.to_owned(),
        ..TurnAsk::default()
    };
    let turns = &server.services.turns;
    let first = turns.start(ME, ask("touch begun; exec sleep 777")).await.unwrap().turn.id;
    let guest = server.guest(id).await;
    assert_eq!(sh(&guest, None, "until test -e begun; do sleep 0.01; done").await.0, Some(0));
    server.world.docker(&["pause", &format!("seawall-{id}")]);
    turns.idle().await;
    let stores = server.store.stores();
    assert_eq!(stores.turns.get(ME, first).await.unwrap().state, TurnState::Interrupted);
    let second = turns.start(ME, ask("pgrep -x sleep > left; true")).await.unwrap().turn.id;
    turns.idle().await;
    assert_eq!(stores.turns.get(ME, second).await.unwrap().state, TurnState::Completed);
    assert_eq!(server.sh(id, "grep -c . left").await, "0\n", "the first agent lives on");
    server.end(&[id]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p8_two_installations_on_one_daemon_leave_each_other_alone() {
    let test = "p8_two_installations_on_one_daemon";
    let (Some(one), Some(two)) = (server(test), server(test)) else { return };
    let (mine, theirs) = (one.create().await, two.create().await);
    assert_eq!(one.reconcile().await, Reconciliation::default());
    assert_eq!(two.reconcile().await, Reconciliation::default());
    for (server, id) in [(&one, mine), (&two, theirs)] {
        assert_eq!(server.state(id).await, SandboxState::Running);
    }
    one.end(&[mine]).await;
    assert_eq!(two.state(theirs).await, SandboxState::Running);
    two.end(&[theirs]).await;
}

/// A server on a daemon of its own.
fn alone(test: &str) -> Option<(Daemon, Server)> {
    let daemon = Daemon::start(test)?;
    let world = World::on(&daemon.address(), settings());
    Some((daemon, Server::new(world)))
}

async fn daemon_ends(test: &str, signal: &str) {
    let Some((daemon, server)) = alone(test) else { return };
    let (runs, rests) = (server.create().await, server.create().await);
    for id in [runs, rests] {
        server.sh(id, "echo work > note").await;
    }
    server.services.sandboxes.stop(ME, rests, None, false).await.unwrap();
    daemon.restart(signal);
    // The daemon ended its containers, or took them over. What is shown is what Docker shows.
    let shown = |id: SandboxId| {
        let format = "{{.State.Running}}";
        server.world.docker(&["inspect", "--format", format, &format!("seawall-{id}")]) == "true"
    };
    let give_up = Instant::now() + PATIENCE;
    while (server.state(runs).await == SandboxState::Running) != shown(runs) {
        assert!(Instant::now() < give_up, "the state shown is not the daemon's");
        sleep(Duration::from_millis(100)).await;
    }
    let rested = server.services.sandboxes.get(ME, rests).await.unwrap().info;
    assert_eq!((rested.state, rested.reason), (SandboxState::Stopped, Some(EndReason::Stopped)));
    assert_eq!(server.reconcile().await, Reconciliation::default());
    for id in [runs, rests] {
        assert_eq!(server.sh(id, "cat note").await, "work\n", "{id}");
    }
    server.end(&[runs, rests]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p8_a_restart_of_the_daemon_loses_nothing() {
    daemon_ends("p8_a_restart_of_the_daemon_loses_nothing", "-TERM").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p8_a_killed_daemon_loses_nothing() {
    daemon_ends("p8_a_killed_daemon_loses_nothing", "-KILL").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p8_a_container_without_its_volume_comes_back_from_the_bucket() {
    let Some((daemon, server)) = alone("p8_a_container_without_its_volume") else { return };
    let id = server.create().await;
    server.sh(id, "echo work > note").await;
    server.services.sandboxes.sync(ME, id, Default::default()).await.unwrap();
    server.services.sandboxes.stop(ME, id, None, false).await.unwrap();
    let volume = format!("seawall-data-{id}");
    let place = server.world.docker(&["volume", "inspect", "--format", "{{.Mountpoint}}", &volume]);
    let folder = std::path::Path::new(&place).parent().unwrap().to_owned();
    daemon.restart_after("-TERM", || fs::remove_dir_all(folder).unwrap());
    assert_eq!(server.sh(id, "cat note").await, "work\n");
    assert_eq!(server.world.provider.get(id).await.unwrap().state, BoxState::Running);
    server.end(&[id]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p8_another_daemon_is_refused_and_loses_nothing() {
    let test = "p8_another_daemon_is_refused";
    let Some((_daemon, server)) = alone(test) else { return };
    let id = server.create().await;
    let Some(other) = World::with(test, settings()) else { return };
    // The same data folder, with the address of another daemon.
    let moved = server.world.moved_to(other.host());
    let refused = moved.list().await.unwrap_err();
    assert_eq!(refused.code(), "other_daemon", "{refused}");
    assert_eq!(server.state(id).await, SandboxState::Running);
    server.end(&[id]).await;
}
