//! S12: sandboxes that share a volume share their files, and one history of them.

use crate::turns::world::{ME, World, ask, more, template, wanted};
use seawall_api::{
    AccountId, ErrorKind, SandboxId, conversation::TurnState, http::CreateSandbox, sandbox::SandboxSpec,
};
use seawall_core::{
    NewSandbox,
    ports::{Provider, Volumes},
    service::EndSandbox,
    templates::{SyncPart, Template},
    turns::{Choice, TurnAsk},
};
use std::time::Duration;

const SAVED: EndSandbox = EndSandbox { sync: true, force: false, volumes: None, delete_versions: false };
const WITH_FILES: EndSandbox =
    EndSandbox { sync: true, force: false, volumes: Some(Volumes::Delete), delete_versions: false };
const MINUTE: Duration = Duration::from_secs(60);

fn team() -> Template {
    let volume = Some("team-{agent}".to_owned());
    Template { sync: SyncPart { volume, ..SyncPart::default() }, ..template("team") }
}

fn of(agent: &str, prompt: &str) -> TurnAsk {
    TurnAsk { template: Some("team".to_owned()), agent_id: Some(agent.to_owned()), ..ask(prompt) }
}

fn on(ask: TurnAsk) -> TurnAsk {
    TurnAsk { template: Some("team".to_owned()), ..ask }
}

async fn share(provider: &str) {
    let world = World::new(provider, vec![team()]);
    let first = world.run(of("bob", "echo one > a")).await;
    assert_eq!(first.turn.state, TurnState::Completed, "{first:?}");
    world.clock.advance(MINUTE);
    let second = world.run(of("bob", "cat a; echo two > b")).await;
    assert_eq!(second.text(), "one\n", "{second:?}");
    assert_ne!(first.sandbox(), second.sandbox());
    assert!(second.pushed() > first.pushed(), "{second:?}");
    world.clock.advance(MINUTE);
    let back = world.run(on(more(first.conversation(), "cat b; rm a"))).await;
    assert_eq!(back.text(), "two\n", "{back:?}");
    let other = world.run(of("eve", "ls")).await;
    assert_eq!(other.text(), "", "another agent's files: {other:?}");
    for key in world.bucket.keys() {
        assert!(
            key.starts_with("docs/local/local.team-bob/") || key.starts_with("docs/local/local.team-eve/"),
            "{key}"
        );
    }
    // One of them ends, and the other has its files.
    world.service.end(ME, first.sandbox(), &WITH_FILES).await.unwrap();
    assert_eq!(world.sh(second.sandbox(), "ls").await, "b\n");
    world.service.end(ME, second.sandbox(), &SAVED).await.unwrap();
    assert_eq!(names(&world).await, ["local.team-bob", "local.team-eve"]);
    world.clock.advance(MINUTE);
    let again = world.run(on(more(second.conversation(), "ls; echo three > c"))).await;
    assert_eq!(again.text(), "b\n", "{again:?}");
    // The last takes them along, where that is said; the bucket has them.
    world.service.end(ME, second.sandbox(), &WITH_FILES).await.unwrap();
    assert_eq!(names(&world).await, ["local.team-eve"]);
    world.clock.advance(MINUTE);
    let restored = world.run(on(more(first.conversation(), "cat b c"))).await;
    assert_eq!(restored.text(), "two\nthree\n", "{restored:?}");
    world.end().await;
}

async fn names(world: &World) -> Vec<String> {
    world.sandboxes.volumes().await.unwrap().into_iter().map(|volume| volume.name).collect()
}

#[tokio::test]
async fn s12_sandboxes_of_one_agent_share_a_volume() {
    share("local").await;
}

#[tokio::test]
async fn s12_sandboxes_of_one_agent_share_a_volume_in_native() {
    share("native").await;
}

#[tokio::test]
async fn s12_turns_at_the_same_time_in_one_volume_lose_nothing() {
    let world = World::new("local", vec![team()]);
    let begin = |n: usize| {
        let world = &world;
        async move {
            let done =
                world.run(of("bob", &format!("for i in 1 2 3 4 5 6 7 8; do echo {n} > f{n}-$i; done"))).await;
            assert_eq!(done.turn.state, TurnState::Completed, "{done:?}");
            done
        }
    };
    let all = futures::future::join_all((0..4).map(begin)).await;
    world.clock.advance(MINUTE);
    for done in &all {
        // What one could not push while another did is pushed later, as ever.
        world.service.end(ME, done.sandbox(), &SAVED).await.unwrap();
    }
    world.sandboxes.remove_volume("local.team-bob").await.unwrap();
    world.clock.advance(MINUTE);
    let restored = world.run(of("bob", "ls | wc -l")).await;
    assert_eq!(restored.text().trim(), "32", "{restored:?}");
    world.end().await;
}

#[tokio::test]
async fn s12_a_sandbox_without_an_agent_has_a_volume_of_its_own() {
    let world = World::new("local", vec![team()]);
    let (one, two) = (wanted(SandboxId::generate(), &team()), wanted(SandboxId::generate(), &team()));
    for wanted in [&one, &two] {
        world.service.ensure(wanted).await.unwrap();
    }
    world.sh(one.sandbox, "echo one > a").await;
    assert_eq!(world.sh(two.sandbox, "ls").await, "");
    assert_eq!(world.row(one.sandbox).await.unwrap().spec.volume, None);
    world.end().await;
}

/// Which one it has is decided once: a template that changed would else hide its files.
#[tokio::test]
async fn s12_a_sandbox_keeps_its_volume_when_its_template_changes() {
    let world = World::new("local", vec![template("team")]);
    let first = world.run(of("bob", "echo one > a")).await;
    let (turns, service) = world.again(vec![team()]);
    service.end(ME, first.sandbox(), &SAVED).await.unwrap();
    world.clock.advance(MINUTE);
    let begun = turns.start(ME, on(more(first.conversation(), "cat a"))).await.unwrap();
    let next = world.done(&turns, begun).await;
    assert_eq!(next.text(), "one\n", "{next:?}");
    assert_eq!(world.row(first.sandbox()).await.unwrap().spec.volume, None);
    world.end().await;
}

#[tokio::test]
async fn s12_a_volume_that_sandboxes_have_is_not_removed() {
    let world = World::new("local", vec![team()]);
    let first = world.run(of("bob", "echo one > a")).await;
    let refused = world.sandboxes.remove_volume("local.team-bob").await.unwrap_err();
    assert!(refused.to_string().contains(&first.sandbox().to_string()), "{refused}");
    world.service.end(ME, first.sandbox(), &SAVED).await.unwrap();
    world.sandboxes.remove_volume("local.team-bob").await.unwrap();
    let missing = world.sandboxes.remove_volume("local.team-bob").await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    world.end().await;
}

#[tokio::test]
async fn s12_those_that_end_at_once_leave_no_volume_behind() {
    let world = World::new("local", vec![team()]);
    let one = world.run(of("bob", "echo one > a")).await;
    let two = world.run(of("bob", "echo two > b")).await;
    let end = |id: SandboxId| world.service.end(ME, id, &WITH_FILES);
    let (first, second) = tokio::join!(end(one.sandbox()), end(two.sandbox()));
    first.unwrap();
    second.unwrap();
    assert_eq!(names(&world).await, Vec::<String>::new());
    world.end().await;
}

/// One that was made by hand, and is then asked for by a turn: its files are its own.
#[tokio::test]
async fn s12_files_that_a_sandbox_has_already_are_not_hidden() {
    let world = World::new("local", vec![team()]);
    let id = SandboxId::generate();
    world.sandboxes.launch(NewSandbox { id: Some(id), ..NewSandbox::default() }).await.unwrap();
    world.sh(id, "echo mine > a").await;
    world.sandboxes.remove(id, Volumes::Keep).await.unwrap();
    let done = world.run(TurnAsk { sandbox: Choice::This(id), ..of("bob", "cat a") }).await;
    assert_eq!(done.text(), "mine\n", "{done:?}");
    world.end().await;
}

#[tokio::test]
async fn s12_those_that_share_a_volume_have_one_user() {
    let mut team = team();
    team.sync.volume = Some("team".to_owned());
    let world = World::new("local", vec![team]);
    let ask = CreateSandbox {
        template: Some("team".to_owned()),
        user: Some("root".to_owned()),
        ..CreateSandbox::default()
    };
    let refused = world.service.create(ME, &ask).await.unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::Invalid, "invalid_config"), "{refused}");
    assert!(refused.chain().contains("share a volume"), "{}", refused.chain());
    world.end().await;
}

/// A removal that was cut off must not look like a volume whose files somebody deleted.
#[tokio::test]
async fn s12_what_is_left_of_a_removed_volume_is_no_volume() {
    let data = tempfile::tempdir().unwrap();
    let provider = seawall_providers::local::LocalProvider::open(data.path()).unwrap();
    let spec = SandboxSpec { volume: Some("local.team".to_owned()), ..SandboxSpec::default() };
    let id = SandboxId::generate();
    provider.create(id, &spec, AccountId::LOCAL).await.unwrap();
    provider.remove(id, Volumes::Keep).await.unwrap();
    let volume = data.path().join("local/volumes/local.team");
    std::fs::write(volume.join("work/a"), "a").unwrap();
    // What cannot be deleted stays aside, and is tried again at the next start.
    let aside = data.path().join("local/boxes/.gone-volume-local.team");
    std::fs::create_dir(&aside).unwrap();
    std::fs::write(aside.join("left"), "by an earlier one").unwrap();
    provider.remove_volume("local.team").await.unwrap();
    assert!(!volume.exists() && !aside.exists());
}
