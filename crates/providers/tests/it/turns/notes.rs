//! V6: what the commands of hooks leave behind, written by a real shell in a real box.

use crate::turns::world::{Done, ME, World, ask, more, template};
use seawall_api::conversation::{Stats, TurnState};
use seawall_core::{
    ports::store::Page,
    service::EndSandbox,
    templates::{HookPart, Template},
    turns::TurnAsk,
};
use serde_json::json;

fn runs(script: &str) -> HookPart {
    HookPart { run: Some(script.to_owned()), ..HookPart::default() }
}

fn noting() -> Template {
    let mut noting = template("noting");
    noting.hooks.cold_start = vec![runs(r#"echo '{"input_tokens": 1}' > $SEAWALL_USAGE"#)];
    noting.hooks.message = vec![runs(r#"echo '{"input_tokens": 10}' > $SEAWALL_USAGE"#)];
    noting.hooks.stream_finish = vec![
        runs(r#"echo '{"input_tokens": 100, "output_tokens": 20, "cache_tokens": 3}' > $SEAWALL_USAGE"#),
        runs(r#"echo '{"branch": "main", "gone": null}' > $SEAWALL_METADATA; echo '{}' > $SEAWALL_USAGE"#),
        runs(r#"echo '{"output_tokens": 5}' > $SEAWALL_USAGE"#),
    ];
    noting.hooks.terminate = vec![runs(r#"echo '{"cache_tokens": 1000}' > $SEAWALL_USAGE"#)];
    noting
}

fn by(template: &str, ask: TurnAsk) -> TurnAsk {
    TurnAsk { template: Some(template.to_owned()), ..ask }
}

fn stats(messages_exchanged: u64, [input, output, cache]: [u64; 3]) -> Stats {
    Stats {
        messages_exchanged,
        total_input_tokens: input,
        total_output_tokens: output,
        total_cache_tokens: cache,
    }
}

async fn stats_of(world: &World, done: &Done) -> Stats {
    world.stores.conversations.get(ME, done.conversation()).await.unwrap().stats
}

async fn commands_change_metadata_and_totals(provider: &str) {
    let world = World::new(provider, vec![noting()]);
    let done = world.run(by("noting", ask("echo hi"))).await;
    assert_eq!((done.turn.state, done.text().as_str()), (TurnState::Completed, "hi\n"), "{done:?}");
    assert_eq!(stats_of(&world, &done).await, stats(2, [111, 25, 3]));
    let next = world.run(more(done.conversation(), "ls -A /tmp")).await;
    assert_eq!(stats_of(&world, &done).await, stats(4, [221, 50, 6]));
    // What was read is taken away. The box alone has a /tmp of its own.
    if provider == "native" {
        assert!(!next.text().contains(".seawall"), "{}", next.text());
    }
    let row = world.row(done.sandbox()).await.unwrap();
    assert_eq!(row.metadata["branch"], json!("main"));
    assert_eq!(row.metadata["total_input_tokens"], json!(221));
    let end = EndSandbox { sync: true, force: false, volumes: None, delete_versions: false };
    world.service.end(ME, done.sandbox(), &end).await.unwrap();
    assert_eq!(stats_of(&world, &done).await, stats(4, [221, 50, 1006]));
    // Each life has an end of its own.
    world.run(more(done.conversation(), "true")).await;
    assert_eq!(stats_of(&world, &done).await, stats(6, [332, 75, 1009]));
    world.service.end(ME, done.sandbox(), &end).await.unwrap();
    assert_eq!(stats_of(&world, &done).await, stats(6, [332, 75, 2009]));
    world.end().await;
}

#[tokio::test]
async fn v6_commands_of_hooks_change_metadata_and_totals() {
    commands_change_metadata_and_totals("local").await;
}

#[tokio::test]
async fn v6_commands_of_hooks_change_metadata_and_totals_on_native() {
    commands_change_metadata_and_totals("native").await;
}

#[tokio::test]
async fn v6_what_is_no_usage_is_told_of_and_counts_nothing() {
    let mut wrong = template("wrong");
    let notes = [
        "no json",
        "[1]",
        r#"{"input_tokens": -1}"#,
        r#"{"input_tokens": 1, "tokens": 2}"#,
        r#"{"input_tokens": "many"}"#,
    ];
    let write = |note: &str| runs(&format!("echo '{note}' > $SEAWALL_USAGE"));
    wrong.hooks.stream_finish = notes.iter().copied().map(write).collect();
    // A command that failed changes nothing.
    wrong.hooks.stream_finish.push(runs(r#"echo '{"input_tokens": 7}' > $SEAWALL_USAGE; exit 1"#));
    let world = World::new("local", vec![wrong]);
    let done = world.run(by("wrong", ask("echo hi"))).await;
    assert_eq!((done.turn.state, done.text().as_str()), (TurnState::Completed, "hi\n"), "{done:?}");
    assert_eq!(stats_of(&world, &done).await, stats(2, [0, 0, 0]));
    let runs = world.stores.hook_runs.list(ME, Some(done.sandbox()), &Page::first(50)).await.unwrap();
    let told: Vec<String> = runs.items.into_iter().filter_map(|run| run.outcome?.error).collect();
    let shaped =
        told.iter().filter(|error| error.contains("$SEAWALL_USAGE") && error.contains("output_tokens"));
    assert_eq!((shaped.count(), told.len()), (notes.len(), notes.len() + 1), "{told:#?}");
    world.end().await;
}
