//! Templates whose files are gone, while sandboxes and turns of them are still there.

use crate::turns::world::{ME, Setup, World, all, by, error, template};
use seawall_api::{ErrorKind, conversation::TurnState, event::Event, sandbox::SandboxState};
use seawall_core::service::EndSandbox;
use std::time::Duration;
use tokio::time::sleep;

const SAVED: EndSandbox = EndSandbox { sync: true, force: false, volumes: None, delete_versions: false };

#[tokio::test(start_paused = true)]
async fn v2_a_sandbox_outlives_its_template_and_can_be_ended() {
    for how in [EndSandbox { sync: false, ..SAVED }, EndSandbox { force: true, ..SAVED }] {
        let mut world = World::of([template("mine")]);
        let id = world.run(by("mine", "say hi")).await.sandbox();
        world.forget_templates();
        let host = world.another();
        // What was to be saved stays, with a word on what to do.
        let refused = error(host.service.end(ME, id, &SAVED).await);
        assert_eq!((refused.kind(), refused.code()), (ErrorKind::Conflict, "no_template"));
        let text = refused.chain();
        assert!(
            ["`mine`", "bring its file back", "by force"].iter().all(|word| text.contains(word)),
            "{text}"
        );
        let ended = host.service.end(ME, id, &how).await.unwrap();
        assert_eq!((ended.info.state, world.boxes().await), (SandboxState::Terminated, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn h8_a_turn_whose_template_is_gone_ends_and_its_files_are_kept() {
    let setup = Setup { templates: vec![template("mine")], ..Setup::default() };
    let (mut world, trouble) = World::troubled_with(setup);
    let begun = world.turns.start(ME, by("mine", "say one; hang")).await.unwrap();
    sleep(Duration::from_secs(10)).await;
    trouble.freeze();
    sleep(Duration::from_secs(60)).await;
    world.forget_templates();
    let host = world.elsewhere("two");
    let id = begun.turn.sandbox_id.unwrap();
    assert_eq!(world.mock.running(id), 1);
    assert_eq!(host.turns.take_up().await.unwrap(), 1);
    let seen = all(&host.turns, ME, begun.turn.id, 0).await;
    let unsynced = seen.iter().filter(|(_, event)| matches!(event, Event::WorkspaceUnsynced { .. }));
    assert_eq!(unsynced.count(), 1, "{seen:?}");
    let turn = &world.turns_of(begun.conversation.id).await[0];
    assert_eq!(turn.state, TurnState::Failed);
    assert!(turn.error.as_ref().unwrap().contains("`mine`"), "{turn:?}");
    assert_eq!(world.said(begun.conversation.id).await[1].body, "one");
    // Nothing works on unseen, and nothing of it is thrown away.
    assert_eq!(world.mock.running(id), 0);
    assert!(world.row(id).await.unwrap().unsynced.is_some());
    assert_eq!(error(host.sandboxes.stop(id, Duration::ZERO).await).kind(), ErrorKind::Conflict);
}
