//! What becomes of files: pushed after a turn, restored at a cold start, and never lost by mistake.

use crate::turns::world::{ME, World, ask, more, template, wanted};
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    conversation::TurnState,
    http::{CreateSandbox, RestoreVersion},
    sandbox::SandboxState,
};
use seawall_core::{
    NewSandbox, Workspaces,
    ports::{Clock, Volumes},
    templates::{HookPart, SyncPart, Template, When},
    turns::{Choice, TurnAsk},
    workspaces::WorkspaceSettings,
};
use seawall_sync::{
    bucket::{self, Bucket as _, SharedBucket},
    engine::Options,
};
use serde_json::json;
use std::{sync::Arc, time::Duration};

const MINUTE: Duration = Duration::from_secs(60);

fn runs(script: &str) -> Vec<HookPart> {
    vec![HookPart { run: Some(script.to_owned()), ..HookPart::default() }]
}

fn by(template: &str, ask: TurnAsk) -> TurnAsk {
    TurnAsk { template: Some(template.to_owned()), ..ask }
}

#[tokio::test]
async fn s6_a_turn_makes_a_version_and_v6_when_is_noted() {
    let world = World::new("local", Vec::new());
    let done = world.run(ask("echo one > a; echo done")).await;
    assert_eq!((done.turn.state, done.text().as_str()), (TurnState::Completed, "done\n"), "{done:?}");
    let version = done.pushed().unwrap();
    let prefix = format!("docs/local/{}/", done.sandbox());
    let keys = world.bucket.keys();
    assert!(keys.iter().all(|key| key.starts_with(&prefix)), "{keys:?}");
    assert!(keys.contains(&format!("{prefix}{version:013}/.sandbox-state")), "{keys:?}");
    let row = world.row(done.sandbox()).await.unwrap();
    assert_eq!(row.metadata["last_synced_at"], json!(world.clock.now().as_second()));
    assert_eq!(row.unsynced, None);
    // What changes nothing makes none, and was looked at.
    world.clock.advance(MINUTE);
    let same = world.run(more(done.conversation(), "cat a")).await;
    assert_eq!((same.text().as_str(), same.pushed(), same.unsynced()), ("one\n", None, false));
    let row = world.row(done.sandbox()).await.unwrap();
    assert_eq!(row.metadata["last_synced_at"], json!(world.clock.now().as_second()));
    world.end().await;
}

#[tokio::test]
async fn c3_a_sandbox_that_is_gone_comes_back_with_its_files() {
    let world = World::new("local", Vec::new());
    let done = world.run(ask("mkdir d; echo one > d/a")).await;
    world.clock.advance(MINUTE);
    world.sandboxes.remove(done.sandbox(), Volumes::Delete).await.unwrap();
    let next = world.run(more(done.conversation(), "cat d/a; echo two > b")).await;
    assert_eq!((next.sandbox(), next.text().as_str()), (done.sandbox(), "one\n"), "{next:?}");
    assert_eq!(next.ready(), Some((true, done.pushed())));
    assert!(next.pushed() > done.pushed(), "{next:?}");
    world.end().await;
}

#[tokio::test]
async fn s6_a_cold_start_restores_the_version_that_its_template_names() {
    let world = World::new("local", Vec::new());
    let first = world.run(ask("echo 1 > a")).await;
    world.clock.advance(MINUTE);
    world.run(more(first.conversation(), "echo 2 > a; echo 2 > b")).await;
    world.clock.advance(MINUTE);
    world.sandboxes.remove(first.sandbox(), Volumes::Delete).await.unwrap();
    let sync = SyncPart { version: first.pushed(), ..SyncPart::default() };
    let (turns, _) = world.again(vec![Template { sync, ..template("old") }]);
    let begun = turns.start(ME, by("old", more(first.conversation(), "cat *"))).await.unwrap();
    assert_eq!(world.done(&turns, begun).await.text(), "1\n");
    world.end().await;
}

#[tokio::test]
async fn s12_without_init_nothing_is_pulled_and_pushes_go_on() {
    let sync = SyncPart { init_from_bucket: false, ..SyncPart::default() };
    let world = World::new("local", vec![Template { sync, ..template("bare") }]);
    let first = world.run(ask("echo one > a")).await;
    world.clock.advance(MINUTE);
    world.sandboxes.remove(first.sandbox(), Volumes::Delete).await.unwrap();
    let next = world.run(by("bare", more(first.conversation(), "ls; echo two > b"))).await;
    assert_eq!((next.text().as_str(), next.ready()), ("", Some((true, None))), "{next:?}");
    assert!(next.pushed().is_some(), "{next:?}");
    world.end().await;
}

#[tokio::test]
async fn s12_without_a_bucket_hooks_run_all_the_same() {
    let mut hooked = template("hooked");
    hooked.hooks.cold_start = runs("echo cold >> hooks");
    hooked.hooks.stream_finish = runs("echo $SEAWALL_TURN_STATE >> hooks");
    let off = SyncPart { enabled: false, ..SyncPart::default() };
    let world_off = World::new("local", vec![Template { sync: off, ..hooked.clone() }]);
    for world in [World::without_bucket("local", vec![hooked]), world_off] {
        let first = world.run(by("hooked", ask("echo hi"))).await;
        assert_eq!((first.turn.state, first.text().as_str()), (TurnState::Completed, "hi\n"), "{first:?}");
        assert!(first.pushed().is_none() && !first.unsynced(), "{first:?}");
        let next = world.run(more(first.conversation(), "cat hooks")).await;
        assert_eq!(next.text(), "cold\ncompleted\n");
        let row = world.row(first.sandbox()).await.unwrap();
        assert!(!row.metadata.contains_key("last_synced_at") && row.unsynced.is_none());
        assert!(world.bucket.keys().is_empty());
        world.end().await;
    }
}

#[tokio::test]
async fn s12_a_template_says_where_in_the_bucket() {
    let key_prefix = Some("t/{account}/{agent}/{conversation}".to_owned());
    let sync = SyncPart { key_prefix, ..SyncPart::default() };
    let world = World::new("local", vec![Template { sync, ..template("placed") }]);
    let asked = TurnAsk { agent_id: Some("../a b".to_owned()), ..by("placed", ask("echo one > a")) };
    let done = world.run(asked).await;
    assert!(done.pushed().is_some(), "{done:?}");
    let prefix = format!("t/local/___a_b/{}/", done.conversation());
    let keys = world.bucket.keys();
    assert!(keys.iter().all(|key| key.starts_with(&prefix)), "{keys:?}");
    world.end().await;
}

/// Another machine has the workspace too, and made a newer version.
async fn newer_elsewhere(world: &World, id: SandboxId) {
    let other = World::new("local", Vec::new());
    other.sandboxes.launch(NewSandbox { id: Some(id), ..NewSandbox::default() }).await.unwrap();
    let bucket: SharedBucket = world.bucket.clone();
    let clock: Arc<dyn Clock> = Arc::new(world.clock.clone());
    let files = Workspaces::new(other.sandboxes.clone(), bucket, clock, WorkspaceSettings::default());
    files.sync_files(id, Options::default()).await.unwrap();
    other.sh(id, "echo new > b").await;
    files.sync_files(id, Options::default()).await.unwrap();
    other.end().await;
}

#[tokio::test]
async fn s7_a_stale_workspace_is_looked_at_before_it_is_used() {
    for (later, expected) in [(MINUTE, "a\n"), (Duration::from_secs(3601), "a\nb\n")] {
        let world = World::new("local", Vec::new());
        let first = world.run(ask("echo one > a")).await;
        world.clock.advance(Duration::from_secs(1));
        newer_elsewhere(&world, first.sandbox()).await;
        world.clock.advance(later);
        let next = world.run(more(first.conversation(), "ls")).await;
        assert_eq!((next.text().as_str(), next.ready().unwrap().0), (expected, false), "{next:?}");
        world.end().await;
    }
}

#[tokio::test]
async fn h8_a_bucket_that_is_away_fails_no_turn_and_loses_nothing() {
    let world = World::new("local", Vec::new());
    let first = world.run(ask("echo one > a")).await;
    let id = first.sandbox();
    world.clock.advance(MINUTE);
    world.bucket.take_away(true);
    let unsaved = world.run(more(first.conversation(), "echo two > b; echo done")).await;
    assert_eq!(
        (unsaved.turn.state, unsaved.text().as_str()),
        (TurnState::Completed, "done\n"),
        "{unsaved:?}"
    );
    assert!(unsaved.unsynced() && unsaved.pushed().is_none(), "{unsaved:?}");
    assert!(world.row(id).await.unwrap().unsynced.is_some());
    for refused in [
        world.sandboxes.stop(id, Duration::ZERO).await.map(drop),
        world.sandboxes.remove(id, Volumes::Keep).await,
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);
    }
    world.clock.advance(MINUTE);
    world.bucket.take_away(false);
    let saved = world.run(more(first.conversation(), "echo again")).await;
    assert!(saved.pushed() > first.pushed(), "{saved:?}");
    assert_eq!(world.row(id).await.unwrap().unsynced, None);
    world.end().await;
}

#[tokio::test]
async fn h2_a_workspace_that_cannot_be_restored_prevents_the_sandbox() {
    let world = World::new("local", Vec::new());
    let first = world.run(ask("echo one > a")).await;
    world.clock.advance(MINUTE);
    world.sandboxes.remove(first.sandbox(), Volumes::Delete).await.unwrap();
    world.bucket.take_away(true);
    let failed = world.run(more(first.conversation(), "echo hi")).await;
    assert_eq!((failed.turn.state, failed.text().as_str()), (TurnState::Failed, ""), "{failed:?}");
    let error = failed.turn.error.as_deref().unwrap();
    assert!(error.contains("cold_start") && error.contains("a test took the bucket away"), "{error}");
    assert!(world.is_terminated(first.sandbox()).await);
    assert!(world.sandboxes.list().await.unwrap().is_empty());
    // Nothing was pushed over what is there.
    world.bucket.take_away(false);
    assert_eq!(world.run(more(first.conversation(), "cat a")).await.text(), "one\n");
    world.end().await;
}

/// What a pull brought before it failed is no work that somebody has to go on with.
#[tokio::test]
async fn h2_a_workspace_that_came_in_part_prevents_the_sandbox() {
    let world = World::new("local", Vec::new());
    let first = world.run(ask("mkdir d; echo one > d/a; echo two > b")).await;
    world.clock.advance(MINUTE);
    world.sandboxes.remove(first.sandbox(), Volumes::Delete).await.unwrap();
    world.bucket.take_bodies_away(true);
    let failed = world.run(more(first.conversation(), "echo hi")).await;
    assert_eq!((failed.turn.state, failed.text().as_str()), (TurnState::Failed, ""), "{failed:?}");
    assert!(failed.turn.error.as_deref().unwrap().contains("took the bodies away"), "{failed:?}");
    assert!(world.is_terminated(first.sandbox()).await);
    assert!(world.sandboxes.list().await.unwrap().is_empty());
    world.bucket.take_bodies_away(false);
    assert_eq!(world.run(more(first.conversation(), "cat d/a b")).await.text(), "one\ntwo\n");
    world.end().await;
}

/// The volume was there before, and is older than the bucket.
#[tokio::test]
async fn h2_so_does_one_that_came_in_part_again_and_again() {
    let world = World::new("local", Vec::new());
    let first = world.run(ask("echo one > a; echo one > b")).await;
    world.clock.advance(MINUTE);
    world.sandboxes.remove(first.sandbox(), Volumes::Keep).await.unwrap();
    newer_elsewhere(&world, first.sandbox()).await;
    world.bucket.take_bodies_away(true);
    for _ in 0..3 {
        let failed = world.run(more(first.conversation(), "echo hi")).await;
        assert_eq!((failed.turn.state, failed.text().as_str()), (TurnState::Failed, ""), "{failed:?}");
    }
    world.bucket.take_bodies_away(false);
    let next = world.run(more(first.conversation(), "cat a b")).await;
    assert_eq!(next.text(), "one\nnew\n", "{next:?}");
    let row = world.row(first.sandbox()).await.unwrap();
    assert!(row.unsynced.is_none() && !row.metadata.contains_key("in_part"), "{row:?}");
    world.end().await;
}

/// The id is the client's, and the conversation new; the volume is neither.
#[tokio::test]
async fn h2_a_failed_cold_start_leaves_alone_the_files_that_were_there_before() {
    let off = SyncPart { enabled: false, ..SyncPart::default() };
    let mut cold = Template { sync: off.clone(), ..template("cold") };
    cold.hooks.cold_start = runs("echo no room >&2; exit 3");
    let plain = Template { sync: off, ..template("plain") };
    let world = World::new("local", vec![cold, plain.clone()]);
    let wanted = wanted(SandboxId::generate(), &plain);
    let id = wanted.sandbox;
    world.service.ensure(&wanted).await.unwrap();
    world.sh(id, "echo weeks > work").await;
    world.sandboxes.purge(id, Volumes::Keep).await.unwrap();
    let asked = TurnAsk { sandbox: Choice::This(id), ..by("cold", ask("echo hi")) };
    let failed = world.run(asked).await;
    assert_eq!(failed.turn.state, TurnState::Failed, "{failed:?}");
    assert!(failed.turn.error.as_deref().unwrap().contains("no room"), "{failed:?}");
    assert!(world.row(id).await.is_none());
    world.service.ensure(&wanted).await.unwrap();
    assert_eq!(world.sh(id, "cat work").await, "weeks\n");
    world.end().await;
    // Of one that was never there before nothing stays.
    let fresh = world.run(by("cold", ask("echo hi"))).await;
    assert_eq!(fresh.turn.state, TurnState::Failed, "{fresh:?}");
    assert!(world.sandboxes.volumes().await.unwrap().is_empty());
}

#[tokio::test]
async fn v2_terminate_saves_first_and_refuses_where_it_cannot() {
    let world = World::new("local", Vec::new());
    let wanted = wanted(SandboxId::generate(), &template("shell"));
    let id = wanted.sandbox;
    world.service.ensure(&wanted).await.unwrap();
    world.sh(id, "echo one > a").await;
    world.service.terminate(&wanted, true, false).await.unwrap();
    assert!(world.is_terminated(id).await);
    world.clock.advance(MINUTE);
    let ready = world.service.ensure(&wanted).await.unwrap();
    assert!(ready.cold && ready.version.is_some(), "{ready:?}");
    assert_eq!(world.sh(id, "cat a; echo two > b").await, "one\n");
    world.bucket.take_away(true);
    let refused = world.service.terminate(&wanted, true, false).await.unwrap_err();
    assert!(refused.to_string().contains("force"), "{refused}");
    assert_eq!(world.sandboxes.get(id).await.unwrap().state, SandboxState::Running);
    world.service.terminate(&wanted, true, true).await.unwrap();
    world.bucket.take_away(false);
    // What no bucket has is in the volume still.
    world.clock.advance(MINUTE);
    world.service.ensure(&wanted).await.unwrap();
    assert_eq!(world.sh(id, "cat a b").await, "one\ntwo\n");
    world.end().await;
}

/// OnTerminate runs before the box stops: what it leaves in the workspace is work as any other.
#[tokio::test]
async fn h4_what_a_terminate_hook_writes_is_saved() {
    let mut last = template("last");
    last.hooks.terminate = runs("echo words > last");
    let world = World::new("local", vec![last.clone()]);
    let wanted = wanted(SandboxId::generate(), &last);
    world.service.ensure(&wanted).await.unwrap();
    world.sh(wanted.sandbox, "echo one > a").await;
    world.service.terminate(&wanted, true, false).await.unwrap();
    world.clock.advance(MINUTE);
    world.service.ensure(&wanted).await.unwrap();
    assert_eq!(world.sh(wanted.sandbox, "cat a last").await, "one\nwords\n");
    world.end().await;
}

/// Two accounts ask for one sandbox that is not there yet. The second gets nothing of the first one's files.
#[tokio::test]
async fn c7_whoever_comes_second_gets_no_files_of_the_first() {
    let world = World::new("local", Vec::new());
    let (sandbox, other) = (SandboxId::generate(), AccountId::generate());
    let asked = |prompt: &str| TurnAsk { sandbox: Choice::This(sandbox), ..ask(prompt) };
    let theirs = world.turns.begin(other, asked("cat secret")).await.unwrap();
    let mine = world.run(asked("echo mine > secret")).await;
    assert!(mine.pushed().is_some(), "{mine:?}");
    world.clock.advance(MINUTE);
    world.turns.spawn(other, theirs.turn.clone());
    let theirs = world.done(&world.turns, theirs).await;
    assert_eq!(theirs.turn.state, TurnState::Failed, "{theirs:?}");
    let leaked: Vec<String> =
        world.bucket.keys().into_iter().filter(|key| key.contains(&other.to_string())).collect();
    assert!(leaked.is_empty(), "{leaked:?}");
    world.end().await;
}

/// The turn fails, and what its agent wrote is saved, before the hook and after it.
#[tokio::test]
async fn h8_a_critical_hook_that_fails_loses_no_files() {
    for when in [When::Before, When::After] {
        let mut strict = template("strict");
        let part = HookPart { critical: true, when, ..runs("exit 5").remove(0) };
        strict.hooks.stream_finish = vec![part];
        let world = World::new("local", vec![strict]);
        let done = world.run(by("strict", ask("echo precious > f"))).await;
        assert_eq!(done.turn.state, TurnState::Failed, "{done:?}");
        assert!(done.turn.error.as_ref().unwrap().contains("stream_finish"), "{done:?}");
        assert!(done.pushed().is_some(), "{when:?}: {done:?}");
        world.clock.advance(MINUTE);
        world.sandboxes.remove(done.sandbox(), Volumes::Delete).await.unwrap();
        let next = by("shell", more(done.conversation(), "cat f"));
        assert_eq!(world.run(next).await.text(), "precious\n");
        // With the bucket away it is marked.
        world.bucket.take_away(true);
        let away = world.run(by("strict", more(done.conversation(), "echo more > g"))).await;
        assert!(away.unsynced() && away.turn.state == TurnState::Failed, "{away:?}");
        assert!(world.row(done.sandbox()).await.unwrap().unsynced.is_some());
        world.end().await;
    }
}

/// H2: nothing is left of a sandbox that cannot be started.
#[tokio::test]
async fn h2_a_box_that_cannot_be_started_goes_again() {
    let mut nobody = template("nobody");
    nobody.sandbox.user = Some("nosuch".to_owned());
    let world = World::new("native", vec![nobody]);
    let done = world.run(by("nobody", ask("id"))).await;
    assert_eq!(done.turn.state, TurnState::Failed, "{done:?}");
    assert!(done.turn.error.as_ref().unwrap().contains("nosuch"), "{done:?}");
    let row = world.row(done.sandbox()).await;
    assert!(row.is_none(), "{row:?} {done:?}");
    let new = CreateSandbox { user: Some("nosuch".to_owned()), start: true, ..CreateSandbox::default() };
    assert!(world.service.create(ME, &new).await.is_err());
    assert!(world.sandboxes.list().await.unwrap().is_empty());
    assert!(world.sandboxes.volumes().await.unwrap().is_empty());
    world.end().await;
}

/// A disk that is not mounted, or the wrong bucket: an empty workspace would look like a loss, and be saved as one.
#[tokio::test]
async fn s6_a_bucket_that_lost_its_versions_is_no_empty_workspace() {
    let sync = SyncPart { init_from_bucket: false, ..SyncPart::default() };
    let bare = Template { sync, ..template("bare") };
    let world = World::new("local", vec![bare]);
    let first = world.run(ask("echo one > a")).await;
    assert_eq!(world.row(first.sandbox()).await.unwrap().metadata["last_version"], json!(first.pushed()));
    world.clock.advance(MINUTE);
    world.sandboxes.remove(first.sandbox(), Volumes::Delete).await.unwrap();
    let mut saved = Vec::new();
    for key in world.bucket.keys() {
        saved.push((key.clone(), bucket::read(&*world.bucket, &key, 1 << 20).await.unwrap()));
        world.bucket.delete(&key).await.unwrap();
    }
    let refused = world.run(more(first.conversation(), "ls")).await;
    assert_eq!(refused.turn.state, TurnState::Failed);
    let error = refused.turn.error.unwrap();
    assert!(error.contains("no version") && error.contains("init_from_bucket"), "{error}");
    assert!(world.bucket.keys().is_empty(), "nothing is saved over it");
    // It is back.
    for (key, body) in saved {
        world.bucket.put(&key, body).await.unwrap();
    }
    assert_eq!(world.run(more(first.conversation(), "cat a")).await.text(), "one\n");
    // It is meant to be gone.
    world.sandboxes.remove(first.sandbox(), Volumes::Delete).await.unwrap();
    for key in world.bucket.keys() {
        world.bucket.delete(&key).await.unwrap();
    }
    let anew = world.run(by("bare", more(first.conversation(), "ls; echo two > b"))).await;
    assert_eq!((anew.turn.state, anew.text().as_str()), (TurnState::Completed, ""), "{anew:?}");
    assert!(anew.pushed().is_some(), "{anew:?}");
    world.end().await;
}

/// One history, whichever template a turn has: another place would have an older one.
#[tokio::test]
async fn s12_a_sandbox_that_other_templates_use_keeps_its_place() {
    let elsewhere = SyncPart { key_prefix: Some("elsewhere/{sandbox}".to_owned()), ..SyncPart::default() };
    let nowhere = SyncPart { enabled: false, ..SyncPart::default() };
    let own = vec![
        Template { sync: elsewhere, ..template("elsewhere") },
        Template { sync: nowhere, ..template("nowhere") },
    ];
    let world = World::new("local", own);
    let first = world.run(by("shell", ask("echo x > shared; echo 1 > one"))).await;
    let next = async |template: &str, prompt: &str| {
        world.clock.advance(MINUTE);
        world.run(by(template, more(first.conversation(), prompt))).await
    };
    assert!(next("elsewhere", "rm one; echo y > shared").await.pushed().is_some());
    assert_eq!(next("shell", "ls; cat shared; echo z > shared").await.text(), "shared\ny\n");
    assert_eq!(next("elsewhere", "ls; cat shared").await.text(), "shared\nz\n");
    assert!(
        next("nowhere", "echo more > more").await.pushed().is_some(),
        "what was saved goes on being saved"
    );
    let keys = world.bucket.keys();
    assert!(keys.iter().all(|key| key.starts_with("docs/")), "{keys:?}");
    world.sandboxes.remove(first.sandbox(), Volumes::Delete).await.unwrap();
    assert_eq!(next("elsewhere", "cat shared more").await.text(), "z\nmore\n");
    world.end().await;
}

/// `git clean -fdx` does so, and an agent may run it in any turn.
#[tokio::test]
async fn s3_a_turn_that_deletes_the_state_file_takes_no_work_back() {
    let world = World::new("local", Vec::new());
    let first = world.run(ask("echo old > a; echo old > b; echo made > built")).await;
    world.clock.advance(MINUTE);
    // The base is not the version, and is in no file.
    let second = world.run(more(first.conversation(), "echo new > a; rm built .sandbox-state*")).await;
    assert!(second.pushed() > first.pushed(), "{second:?}");
    assert_eq!(world.sh(first.sandbox(), "ls; cat a").await, "a\nb\nbuilt\nnew\n");
    world.clock.advance(MINUTE);
    newer_elsewhere(&world, first.sandbox()).await;
    let other = world.run(more(first.conversation(), "echo newer > a; rm .sandbox-state*")).await;
    assert!(other.pushed() > second.pushed(), "{other:?}");
    assert_eq!(world.sh(first.sandbox(), "ls; cat a b").await, "a\nb\nbuilt\nnewer\nnew\n");
    world.clock.advance(MINUTE);
    // Also after a restore, and after a stop.
    let what = RestoreVersion { version: first.pushed(), ..RestoreVersion::default() };
    let restored = world.service.restore(ME, first.sandbox(), &what).await.unwrap();
    let row = world.row(first.sandbox()).await.unwrap();
    assert_eq!(row.metadata["last_version"], restored.report.version.unwrap().timestamp, "V6");
    world.clock.advance(MINUTE);
    world.sandboxes.stop(first.sandbox(), Duration::from_secs(1)).await.unwrap();
    let third = world.run(more(first.conversation(), "cat a b; echo newer > b; rm .sandbox-state")).await;
    assert_eq!(third.text(), "old\nold\n");
    world.clock.advance(MINUTE);
    world.sandboxes.remove(first.sandbox(), Volumes::Delete).await.unwrap();
    let last = world.run(more(first.conversation(), "ls; cat a b")).await;
    assert_eq!(last.text(), "a\nb\nbuilt\nold\nnewer\n", "{last:?}");
    world.end().await;
}
