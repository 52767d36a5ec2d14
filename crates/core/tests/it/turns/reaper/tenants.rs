//! Tenants: none holds up another, and none outlives its time.

use super::*;
use crate::turns::{fakes::SlowFailure, world::wanted_by};
use seawall_api::AccountId;
use seawall_core::budget::{Budget, BudgetLimits};
use seawall_core::service::EndSandbox;
use seawall_core::shares::{HeavyWork, Shares};

async fn made_by(world: &World, account: AccountId, template: &Template) -> SandboxId {
    let id = SandboxId::generate();
    world.service.ensure(&wanted_by(account, id, template)).await.unwrap();
    id
}

/// What no bucket takes, for whatever reason, is no way to live for ever. Nothing of it is lost.
#[tokio::test(start_paused = true)]
async fn k8_a_tenants_lifetime_ends_though_its_files_cannot_be_saved() {
    let saved = saved(0, 100);
    let world = refused(&saved);
    let (account, reaper) = (AccountId::generate(), world.reaper());
    let id = made_by(&world, account, &saved).await;
    pass(101).await;
    let reaped = round(&reaper).await;
    assert_eq!((reaped.ended, reaped.kept), (vec![(id, EndReason::MaxLifetime)], vec![id]));
    assert_eq!(state(&world, id).await, (SandboxState::Stopped, Some(EndReason::MaxLifetime)));
    let row = world.row(id).await.unwrap();
    assert!(row.unsynced.is_some(), "its files are pushed later");
    assert!(world.mock.has_volume(&id.to_string()).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn k8_a_tenants_lifetime_ends_though_its_guest_does_not_answer() {
    let short = timed("short", 0, 100);
    let world = World::of([short.clone()]);
    let (account, reaper) = (AccountId::generate(), world.reaper());
    let id = made_by(&world, account, &short).await;
    round(&reaper).await;
    pass(101).await;
    world.sandboxes.guest(id).await.unwrap().disconnect().await;
    world.faults.delay(Op::Connect, Duration::from_secs(3600));
    assert_eq!(round(&reaper).await, ended(id, EndReason::MaxLifetime));
    assert_eq!(state(&world, id).await, (SandboxState::Stopped, Some(EndReason::MaxLifetime)));
}

/// Calls that end a sandbox and fail hold its queue one after the other. The reaper waits its turn in that queue.
#[tokio::test(start_paused = true)]
async fn k8_ends_that_fail_again_and_again_keep_no_box_past_its_lifetime() {
    let saved = saved(0, 100);
    let buckets: Option<Arc<dyn Buckets>> = Some(Arc::new(SlowFailure));
    let world = World::with(Setup { templates: vec![saved.clone()], buckets, ..Setup::default() });
    let (account, reaper) = (AccountId::generate(), world.reaper());
    let spec = SandboxSpec { timeouts: timeouts(0, 100), ..SandboxSpec::default() };
    let template = Some("saved".to_owned());
    let new = NewSandbox { account: Some(account), template, spec, ..NewSandbox::default() };
    let id = world.sandboxes.launch(new).await.unwrap().0.id;
    pass(101).await;
    let ends = [0, 3, 6].map(|later| {
        let service = world.service.clone();
        tokio::spawn(async move {
            pass(later).await;
            let how = EndSandbox { sync: true, force: false, volumes: None, delete_versions: false };
            loop {
                let refused = error(service.end(account, id, &how).await);
                assert_eq!(refused.code(), "sync_failed");
            }
        })
    });
    pass(30).await;
    let began = Instant::now();
    assert_eq!(round(&reaper).await.ended, [(id, EndReason::MaxLifetime)]);
    assert!(began.elapsed() < Duration::from_secs(120), "{:?}", began.elapsed());
    assert!(ends.iter().all(|end| !end.is_finished()), "each call was refused, and the next was made");
    ends.iter().for_each(tokio::task::JoinHandle::abort);
}

/// A turn that runs comes to its end, and is the last in its box.
#[tokio::test(start_paused = true)]
async fn k8_turns_one_after_the_other_keep_no_box_past_its_lifetime() {
    let short = timed("short", 0, 100);
    let world = World::of([short.clone()]);
    let (account, reaper) = (AccountId::generate(), world.reaper());
    let mut begun = world.turns.start(account, by("short", "say one; sleep 60; say two")).await.unwrap();
    let (conversation, mut boxes) = (begun.conversation.id, Vec::new());
    for _ in 0..6 {
        let stop = Arc::new(tokio::sync::Notify::new());
        let rounds = tokio::spawn({
            let (reaper, stop) = (reaper.clone(), stop.clone());
            async move {
                loop {
                    round(&reaper).await;
                    tokio::select! {
                        () = pass(5) => {}
                        () = stop.notified() => return,
                    }
                }
            }
        });
        let done = world.done(begun).await;
        stop.notify_one();
        rounds.await.unwrap();
        assert_eq!((done.turn.state, done.text().as_str()), (TurnState::Completed, "onetwo"));
        boxes.push(world.row(done.sandbox()).await.unwrap().started_at);
        // At once: the reaper never finds it without a turn.
        let next = more(conversation, "say one; sleep 60; say two");
        begun = world.turns.start(account, next).await.unwrap();
    }
    world.done(begun).await;
    boxes.dedup();
    assert!(boxes.len() >= 3, "one box lived for 360 s: {boxes:?}");
}

/// Pushes of one account that take long, and guests that do not answer, are its own affair.
#[tokio::test(start_paused = true)]
async fn k5_an_account_whose_pushes_take_long_holds_up_no_others_times() {
    let (slow, quick) = (saved(100, 0), timed("quick", 100, 0));
    let gate = GatedBuckets::new();
    let buckets: Option<Arc<dyn Buckets>> = Some(Arc::new(gate.clone()));
    let templates = vec![slow.clone(), quick.clone()];
    let world = World::with(Setup { templates, buckets, ..Setup::default() });
    let [theirs, mine] = [AccountId::generate(), AccountId::generate()];
    for _ in 0..20 {
        made_by(&world, theirs, &slow).await;
    }
    let first = made_by(&world, mine, &quick).await;
    pass(50).await;
    let second = made_by(&world, mine, &quick).await;
    let reaper = world.reaper();
    pass(51).await;
    gate.shut();
    let began = Instant::now();
    assert_eq!(reaper.round().await.unwrap(), ended(first, EndReason::Idle));
    gate.came().await;
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    pass(50).await;
    let again = Instant::now();
    assert_eq!(reaper.round().await.unwrap(), ended(second, EndReason::Idle));
    assert_eq!(again.elapsed(), Duration::ZERO, "what is still under way is not waited for again");
    gate.open();
    pass(5).await;
    assert_eq!(round(&reaper).await.ended.len(), 20);
}

/// Whoever hangs up again and again has no more starts under way than whoever waits.
#[tokio::test(start_paused = true)]
async fn k5_a_start_whose_caller_hung_up_keeps_its_share() {
    let world = World::of([template("one")]);
    let heavy = HeavyWork { starts: Shares::new(1, 10), ..HeavyWork::default() };
    let service = world.service.clone().with_heavy_work(heavy);
    let account = AccountId::generate();
    world.faults.delay(Op::Start, Duration::from_secs(60));
    let ids: Vec<SandboxId> = (0..10).map(|_| SandboxId::generate()).collect();
    for id in &ids {
        let wanted = wanted_by(account, *id, &template("one"));
        let hung_up = tokio::time::timeout(Duration::from_secs(1), service.ensure(&wanted)).await;
        assert!(hung_up.is_err());
    }
    pass(1).await;
    let mut begun = Vec::new();
    for id in &ids {
        begun.extend(world.row(*id).await.map(|row| row.id));
    }
    assert_eq!(begun, ids[..1], "the others were never begun");
    pass(120).await;
    assert_eq!(state(&world, ids[0]).await, RUNNING, "what was begun comes to its end");
}

/// A turn that waits for its sandbox holds its prompt, and that counts.
#[tokio::test(start_paused = true)]
async fn k5_prompts_of_turns_that_wait_count_among_what_their_account_holds() {
    let world = World::new();
    let budget = Budget::new(BudgetLimits { server: 2 << 20, account: 500_000 });
    world.turns.count_in(&budget);
    world.faults.delay(Op::Start, Duration::from_secs(60));
    let account = AccountId::generate();
    let ask = || by("shell", &format!("say {}", "x".repeat(120_000)));
    let mut begun = Vec::new();
    for _ in 0..3 {
        begun.push(world.turns.start(account, ask()).await.unwrap());
    }
    let refused = error(world.turns.start(account, ask()).await);
    assert_eq!((refused.code(), refused.had_no_effect()), ("memory_budget", true));
    let stored = world.stores.conversations.count(account).await.unwrap();
    assert_eq!(stored, 3, "nothing is stored of a turn that is refused");
    assert!(world.turns.start(AccountId::generate(), ask()).await.is_ok(), "others have their own");
    for begun in begun {
        world.done(begun).await;
    }
    world.quiet().await;
    assert_eq!(budget.free(), 2 << 20, "all of it is given back");
}
