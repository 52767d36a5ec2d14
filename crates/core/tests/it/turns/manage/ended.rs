//! Lists, the end of sandboxes, and what is left of them.

use super::*;

async fn listed(world: &World, filter: &SandboxFilter, limit: u32) -> Vec<SandboxId> {
    let (mut found, mut page) = (Vec::new(), Page::first(limit));
    loop {
        let part = world.service.list(ME, filter, &page).await.unwrap();
        assert!(part.items.len() <= limit as usize);
        found.extend(part.items.into_iter().map(|sandbox| sandbox.info.id));
        let Some(next) = part.next else { return found };
        page = Page::first(limit).after(next);
    }
}

#[tokio::test(start_paused = true)]
async fn v2_lists_are_paged_and_pass_over_what_was_ended() {
    let world = World::new();
    let mut made = Vec::new();
    for number in 0..5 {
        made.push(create(&world, &named(&format!("n{number}"))).await.info.id);
        sleep(Duration::from_secs(1)).await;
    }
    let living = SandboxFilter::default();
    let ended = SandboxFilter { state: Some(SandboxState::Terminated), ..SandboxFilter::default() };
    for limit in [1, 2, 5, 100] {
        assert_eq!(listed(&world, &living, limit).await, [made[4], made[3], made[2], made[1], made[0]]);
        assert!(listed(&world, &ended, limit).await.is_empty());
    }
    for id in [made[1], made[3]] {
        world.service.end(ME, id, &END).await.unwrap();
    }
    for limit in [1, 2, 100] {
        assert_eq!(listed(&world, &living, limit).await, [made[4], made[2], made[0]]);
        assert_eq!(listed(&world, &ended, limit).await, [made[3], made[1]]);
    }
    let by_name = |name: &str| SandboxFilter { name: Some(name.to_owned()), ..SandboxFilter::default() };
    assert_eq!(listed(&world, &by_name("n2"), 10).await, [made[2]]);
    assert!(listed(&world, &by_name("n3"), 10).await.is_empty());
    // Whoever knows its id can look.
    let last = get(&world, made[3]).await.info;
    assert_eq!((last.state, last.reason), (SandboxState::Terminated, Some(EndReason::Terminated)));
}

#[tokio::test(start_paused = true)]
async fn v2_a_name_is_free_again_after_the_end() {
    let world = World::new();
    let first = create(&world, &named("web")).await.info.id;
    let talked = world.run(in_sandbox(first, ask("say one"))).await;
    assert_eq!(error(world.service.create(ME, &named("web")).await).kind(), ErrorKind::Conflict);
    world.service.end(ME, first, &END).await.unwrap();
    let second = create(&world, &named("web")).await.info.id;
    assert_ne!(first, second);
    // Whoever comes back finds it taken, and does without.
    let again = world.run(more(talked.conversation(), "say two")).await;
    assert_eq!((again.sandbox(), again.text().as_str()), (first, "two"));
    let names = [get(&world, first).await.info.name, get(&world, second).await.info.name];
    assert_eq!(names, [None, Some("web".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn v2_what_was_ended_is_gone_for_everybody_but_its_conversation() {
    let world = World::new();
    let id = create(&world, &named("web")).await.info.id;
    world.service.end(ME, id, &END).await.unwrap();
    let service = &world.service;
    for refused in [
        service.guest(ME, id).await.map(drop),
        service.guest_if_running(ME, id).await.map(drop),
        service.exec(ME, id, ExecRequest::new(["true"])).await.map(drop),
        service.list_files(ME, id, &ListFiles::default()).await.map(drop),
        service.tree(ME, id, ".", 1).await.map(drop),
        service.start(ME, id).await.map(drop),
        service.stop(ME, id, None, true).await.map(drop),
        service.set_metadata(ME, id, &object(json!({"a": 1}))).await.map(drop),
        service.sync(ME, id, Options::default()).await.map(drop),
        service.metrics(ME, id).await.map(drop),
        service.create(ME, &CreateSandbox { id: Some(id), ..named("web") }).await.map(drop),
    ] {
        let refused = error(refused);
        assert_eq!(refused.kind(), ErrorKind::Gone, "{refused}");
    }
    assert_eq!((state(&world, id).await, world.boxes().await), (SandboxState::Terminated, 0));
    // What has ended has ended.
    assert_eq!(service.end(ME, id, &END).await.unwrap().info.state, SandboxState::Terminated);
}

#[tokio::test(start_paused = true)]
async fn c3_v2_a_turn_makes_what_was_ended_anew_as_it_was() {
    let mut tuned = template("tuned");
    tuned.sandbox.env = pairs(&[("COLOUR", "blue")]);
    let world = World::of([tuned]);
    let ask = CreateSandbox {
        name: Some("web".to_owned()),
        env: pairs(&[("COLOUR", "red")]),
        labels: pairs(&[("team", "a")]),
        timeouts: Timeouts { idle_seconds: Some(7000), ..Timeouts::default() },
        ..of("tuned")
    };
    let made = create(&world, &ask).await;
    let id = made.info.id;
    let first = world.run(in_sandbox(id, by("tuned", "say one"))).await;
    assert_eq!((first.cold(), first.text().as_str()), (Some(false), "one"));
    world.put(id, "notes/a.txt", "kept").await;
    world.service.set_metadata(ME, id, &object(json!({"mine": 1}))).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    let ended = world.service.end(ME, id, &END).await.unwrap().info;
    assert_eq!((ended.state, ended.reason), (SandboxState::Terminated, Some(EndReason::Terminated)));
    assert_eq!(world.boxes().await, 0);
    let again = world.run(more(first.conversation(), "say two")).await;
    assert_eq!((again.sandbox(), again.cold(), again.text().as_str()), (id, Some(true), "two"));
    assert_eq!(world.shell.of("say two")[0].env["COLOUR"], "red");
    assert_eq!(world.take(id, "notes/a.txt").await, Ok("kept".to_owned()));
    let now = get(&world, id).await;
    assert_eq!((now.info.state, &now.info.reason), (SandboxState::Running, &None));
    assert_eq!((&now.info.spec, &now.info.name), (&made.info.spec, &made.info.name));
    assert_eq!((&now.template, now.info.created_at), (&made.template, made.info.created_at));
    assert_eq!(now.metadata["mine"], json!(1));
    assert_eq!(listed(&world, &SandboxFilter::default(), 10).await, [id]);
}

#[tokio::test(start_paused = true)]
async fn v2_the_files_of_what_is_ended_stay_unless_that_is_not_wanted() {
    for (volumes, stay) in [(None, true), (Some(Volumes::Keep), true), (Some(Volumes::Delete), false)] {
        let world = World::new();
        let id = create(&world, &new()).await.info.id;
        world.put(id, "a.txt", "kept").await;
        // Nothing takes them: a sync that does nothing saved nothing.
        world.service.end(ME, id, &EndSandbox { volumes, ..SAVE_AND_END }).await.unwrap();
        assert_eq!(world.mock.has_volume(&id.to_string()).await.unwrap(), stay, "{volumes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn v6_metadata_is_merged_and_the_services_own_stays() {
    let world = World::new();
    let id = create(&world, &new()).await.info.id;
    let set = async |changes: Value| world.service.set_metadata(ME, id, &object(changes)).await;
    let mut expected = get(&world, id).await.metadata;
    set(json!({"a": 1, "b": {"c": 2}})).await.unwrap();
    let after = set(json!({"a": null, "b": 3, "d": [4]})).await.unwrap().metadata;
    expected.extend(object(json!({"b": 3, "d": [4]})));
    assert_eq!(after, expected);
    for own in ["ready", "last_synced_at", "total_input_tokens", "total_output_tokens", "total_cache_tokens"]
    {
        for value in [json!(5), Value::Null] {
            let mut changes = object(json!({"e": 5}));
            changes.insert(own.to_owned(), value);
            let refused = error(set(Value::Object(changes)).await);
            assert_eq!(refused.kind(), ErrorKind::Invalid);
            assert!(refused.to_string().contains(own), "{refused}");
        }
    }
    assert_eq!(get(&world, id).await.metadata, expected);
}

/// A hook that has something to note.
struct Noting(Value);

#[async_trait]
impl Hook for Noting {
    fn kind(&self) -> HookKind {
        HookKind::StreamFinish
    }

    fn name(&self) -> &str {
        "noting"
    }

    async fn run(&self, _context: &HookContext, _moment: &Moment) -> Result<()> {
        Ok(())
    }

    fn metadata(&self, _context: &HookContext, _moment: &Moment) -> Map<String, Value> {
        object(self.0.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn v6_hooks_change_metadata_but_not_the_services_own() {
    let notes = [json!({"a": 1, "b": 2}), json!({"ready": false, "c": 3}), json!({"b": null, "d": 4})];
    let own = notes.into_iter().map(|notes| Arc::new(Noting(notes)) as Arc<dyn Hook>).collect();
    let world = World::with(Setup { own, ..Setup::default() });
    let done = world.run(ask("say hi")).await;
    assert_eq!((done.turn.state, done.error()), (TurnState::Completed, ""));
    let mut metadata = get(&world, done.sandbox()).await.metadata;
    metadata.retain(|key, _| !key.starts_with("total_"));
    assert_eq!(metadata, object(json!({"a": 1, "d": 4})));
    // The one that was refused is told of.
    let runs = world.hook_runs(done.sandbox()).await;
    let errors: Vec<_> = runs.iter().filter_map(|run| run.outcome.as_ref()?.error.as_ref()).collect();
    assert!(errors.len() == 1 && errors[0].contains("`ready`"), "{errors:?}");
}

/// A turn whose agent has ended, and whose server died before it said so. Two others hear of it.
async fn used(world: &World, conversation: ConversationId, sandbox: SandboxId, usage: Usage) {
    let left = Left { conversation, sandbox, template: "claude-code", prompt: "do it" };
    let events = [
        Event::Usage { message: None, usage },
        Event::AgentEnded { state: TurnState::Completed, error: None, exit_code: Some(0) },
    ];
    let turn = world.left(&left, &events).await;
    let other = world.another();
    let (mine, theirs) = tokio::join!(world.turns.take_up(), other.turns.take_up());
    assert!(mine.unwrap() + theirs.unwrap() > 0);
    all(&other.turns, ME, turn.id, 0).await;
    within(other.turns.idle()).await;
    world.quiet().await;
}

fn usage(input_tokens: u64, output_tokens: u64, cache_tokens: u64) -> Usage {
    Usage { input_tokens, output_tokens, cache_tokens }
}

/// Input, output, cache.
async fn totals(world: &World, id: SandboxId) -> [Option<u64>; 3] {
    let metadata = get(world, id).await.metadata;
    let total = |of: &str| metadata.get(&format!("total_{of}_tokens")).and_then(Value::as_u64);
    [total("input"), total("output"), total("cache")]
}

#[tokio::test(start_paused = true)]
async fn v6_a_sandbox_has_the_totals_of_its_turns() {
    let world = World::new();
    let id = create(&world, &new()).await.info.id;
    world.service.set_metadata(ME, id, &object(json!({"mine": 1}))).await.unwrap();
    assert_eq!(totals(&world, id).await, [None, None, None]);
    // Of one conversation and of another.
    let [one, two] = [ConversationId::generate(), ConversationId::generate()];
    used(&world, one, id, usage(100, 20, 3)).await;
    assert_eq!(totals(&world, id).await, [Some(100), Some(20), Some(3)]);
    used(&world, one, id, usage(1, 1, 1)).await;
    used(&world, two, id, usage(1000, 0, 0)).await;
    assert_eq!(totals(&world, id).await, [Some(1101), Some(21), Some(4)]);
    assert_eq!(get(&world, id).await.metadata["mine"], json!(1));
    // An end is not theirs.
    world.service.end(ME, id, &END).await.unwrap();
    assert_eq!(totals(&world, id).await, [Some(1101), Some(21), Some(4)]);
}

#[tokio::test(start_paused = true)]
async fn v2_an_end_that_cannot_save_is_refused_without_force() {
    let world = unsaved();
    let id = create(&world, &of("kept")).await.info.id;
    world.put(id, "a.txt", "kept").await;
    for _ in 0..2 {
        let refused = error(world.service.end(ME, id, &SAVE_AND_END).await);
        assert_eq!((refused.kind(), refused.code()), (ErrorKind::Conflict, "sync_failed"));
        assert!(refused.to_string().contains("force"), "{refused}");
        let now = get(&world, id).await;
        assert!(now.info.state == SandboxState::Running && now.unsynced.is_some(), "{now:?}");
    }
    // H8: nor without a save, nor may it be stopped.
    assert_eq!(error(world.service.end(ME, id, &END).await).kind(), ErrorKind::Conflict);
    assert_eq!(error(world.service.stop(ME, id, None, false).await).kind(), ErrorKind::Conflict);
    assert_eq!(state(&world, id).await, SandboxState::Running);
    let ended = world.service.end(ME, id, &EndSandbox { force: true, ..SAVE_AND_END }).await.unwrap();
    assert_eq!((ended.info.state, ended.unsynced), (SandboxState::Terminated, None));
    assert_eq!(world.boxes().await, 0);
    // What no bucket has stays.
    assert!(world.mock.has_volume(&id.to_string()).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn h8_force_stops_what_is_not_saved() {
    let world = unsaved();
    let id = create(&world, &of("kept")).await.info.id;
    error(world.service.sync(ME, id, Options::default()).await);
    assert_eq!(error(world.service.stop(ME, id, None, false).await).kind(), ErrorKind::Conflict);
    assert_eq!(world.service.stop(ME, id, None, true).await.unwrap().info.state, SandboxState::Stopped);
}

#[tokio::test(start_paused = true)]
async fn h4_terminate_hooks_run_in_the_box_and_know_the_conversation() {
    let mut last = template("last");
    last.hooks.terminate = vec![runs("say last words")];
    let world = World::of([last]);
    let done = world.run(by("last", "say hi")).await;
    let alone = create(&world, &of("last")).await.info.id;
    for id in [done.sandbox(), alone] {
        world.service.end(ME, id, &END).await.unwrap();
    }
    // They ran in the boxes, so the boxes were there.
    assert_eq!(world.boxes().await, 0);
    let ran = world.shell.of("say last words");
    assert_eq!(ran.len(), 2);
    assert_eq!(ran[0].env["SEAWALL_SANDBOX"], done.sandbox().to_string());
    assert_eq!(ran[0].env["SEAWALL_CONVERSATION"], done.conversation().to_string());
    assert_eq!(ran[1].env["SEAWALL_SANDBOX"], alone.to_string());
    assert!(!ran[1].env.contains_key("SEAWALL_CONVERSATION"));
    // What was ended has no more words.
    world.service.end(ME, alone, &END).await.unwrap();
    assert_eq!(world.shell.times("say last words"), 2);
}

#[tokio::test(start_paused = true)]
async fn h2_a_critical_terminate_hook_keeps_the_sandbox() {
    let mut strict = template("strict");
    strict.hooks.terminate = vec![HookPart { critical: true, ..runs("err not yet; exit 1") }];
    let world = World::of([strict]);
    let id = create(&world, &of("strict")).await.info.id;
    let refused = error(world.service.end(ME, id, &END).await);
    assert!(refused.chain().contains("not yet"), "{}", refused.chain());
    assert_eq!(refused.code(), "hook_failed");
    assert_eq!(state(&world, id).await, SandboxState::Running);
    // Force is force.
    let ended = world.service.end(ME, id, &EndSandbox { force: true, ..END }).await.unwrap();
    assert_eq!((ended.info.state, world.boxes().await), (SandboxState::Terminated, 0));
}

#[tokio::test(start_paused = true)]
async fn c5_a_deleted_conversation_leaves_its_sandbox_unless_it_is_told_to_end_it() {
    for terminate in [false, true] {
        let world = World::new();
        let done = world.run(ask("say hi")).await;
        let (id, sandbox) = (done.conversation(), done.sandbox());
        let theirs = world.turns.delete_conversation(AccountId::generate(), id, terminate).await;
        assert_eq!(error(theirs).kind(), ErrorKind::NotFound);
        assert_eq!((world.said(id).await.len(), state(&world, sandbox).await), (2, SandboxState::Running));
        world.turns.delete_conversation(ME, id, terminate).await.unwrap();
        assert_eq!(error(world.stores.conversations.get(ME, id).await).kind(), ErrorKind::NotFound);
        assert!(world.said(id).await.is_empty() && world.turns_of(id).await.is_empty());
        let left = if terminate { SandboxState::Terminated } else { SandboxState::Running };
        assert_eq!((state(&world, sandbox).await, world.boxes().await), (left, usize::from(!terminate)));
    }
}

#[tokio::test(start_paused = true)]
async fn c5_a_conversation_whose_sandbox_is_gone_can_be_deleted() {
    let world = World::new();
    let done = world.run(ask("say hi")).await;
    world.sandboxes.purge(done.sandbox(), Volumes::Delete).await.unwrap();
    world.turns.delete_conversation(ME, done.conversation(), true).await.unwrap();
    let gone = error(world.stores.conversations.get(ME, done.conversation()).await);
    assert_eq!(gone.kind(), ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn c5_a_conversation_is_kept_where_its_sandbox_cannot_be_saved() {
    let world = unsaved();
    let done = world.run(by("kept", "say hi")).await;
    let refused = error(world.turns.delete_conversation(ME, done.conversation(), true).await);
    assert_eq!(refused.code(), "sync_failed", "{refused}");
    assert_eq!(world.said(done.conversation()).await.len(), 2);
    assert_eq!(state(&world, done.sandbox()).await, SandboxState::Running);
    // Without its sandbox it can go.
    world.turns.delete_conversation(ME, done.conversation(), false).await.unwrap();
    assert_eq!(state(&world, done.sandbox()).await, SandboxState::Running);
}

#[tokio::test(start_paused = true)]
async fn c5_a_conversation_is_not_deleted_while_a_turn_runs() {
    let world = World::new();
    let begun = world.turns.start(ME, ask("say one; sleep 100; say two")).await.unwrap();
    let id = begun.conversation.id;
    sleep(Duration::from_secs(10)).await;
    for terminate in [false, true] {
        let refused = error(world.turns.delete_conversation(ME, id, terminate).await);
        assert_eq!(refused.kind(), ErrorKind::Conflict);
    }
    let done = world.done(begun).await;
    assert_eq!((done.turn.state, done.text().as_str()), (TurnState::Completed, "onetwo"));
    assert_eq!(state(&world, done.sandbox()).await, SandboxState::Running);
    world.turns.delete_conversation(ME, id, true).await.unwrap();
    assert_eq!(state(&world, done.sandbox()).await, SandboxState::Terminated);
}
