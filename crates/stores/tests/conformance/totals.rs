//! V6: the totals of sandboxes and conversations, and what hooks add to them.

use super::{
    kit::{Cx, USAGE, at, begin, end, ensure_kind, sandbox},
    suite::cases,
    turns::totals,
};
use anyhow::{Result, ensure};
use futures::future::join_all;
use seawall_api::{
    ConversationId, ErrorKind, SandboxId,
    conversation::{Stats, Turn, TurnState, Usage},
};
use seawall_core::ports::store::{BeginTurn, Day, EndTurn, HookUsage, SandboxRow, all_tokens};
use serde_json::{Map, Value, json};

cases!("totals";
    v6_a_sandboxs_totals_grow_once_with_each_turn;
    v6_a_sandboxs_totals_and_other_metadata_change_at_the_same_time;
    v6_what_an_agent_claims_cannot_break_a_sandboxs_totals;
    v6_the_sandbox_of_another_gets_no_totals;
    v6_what_hooks_used_counts_once_for_each_name;
    v6_what_hooks_used_counts_beside_turns_that_end;
    v6_what_a_hook_claims_cannot_break_the_totals;
);

/// A turn in a sandbox.
async fn turn_in(cx: &Cx, conversation: ConversationId, sandbox: SandboxId) -> Result<Turn> {
    let new = BeginTurn { sandbox_id: Some(sandbox), ..begin(conversation) };
    Ok(cx.stores.turns.begin(cx.account, None, &new).await?)
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

async fn v6_a_sandboxs_totals_grow_once_with_each_turn(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let row = SandboxRow { metadata: object(json!({"mine": "kept"})), ..sandbox(cx.account) };
    let mut before = cx.stores.sandboxes.insert(&row).await?;
    for number in 1..=3 {
        let turn = turn_in(&cx, id, row.id).await?;
        ensure!(cx.stores.sandboxes.get(cx.account, row.id).await? == before, "nothing is used yet");
        let ended = end(&turn);
        for done in join_all((0..4).map(|_| cx.stores.turns.end(cx.account, None, &ended))).await {
            done?;
        }
        let other =
            EndTurn { usage: Usage { input_tokens: 9999, ..USAGE }, state: TurnState::Failed, ..ended };
        cx.stores.turns.end(cx.account, None, &other).await?;
        let found = cx.stores.sandboxes.get(cx.account, row.id).await?;
        let expected = json!({
            "mine": "kept",
            "total_input_tokens": number * USAGE.input_tokens,
            "total_output_tokens": number * USAGE.output_tokens,
            "total_cache_tokens": number * USAGE.cache_tokens,
        });
        ensure!(found.metadata == object(expected), "{:?}", found.metadata);
        // Whoever read it before has to read it again.
        ensure_kind(
            cx.stores.sandboxes.update(&SandboxRow { template: Some("x".into()), ..before }).await,
            ErrorKind::Conflict,
        )?;
        before = found;
    }
    Ok(())
}

async fn v6_a_sandboxs_totals_and_other_metadata_change_at_the_same_time(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let row = cx.stores.sandboxes.insert(&sandbox(cx.account)).await?;
    for number in 1..=5_u64 {
        let ended = end(&turn_in(&cx, id, row.id).await?);
        let changes = object(json!({format!("key-{number}"): number}));
        let (one, two) = futures::join!(
            cx.stores.turns.end(cx.account, None, &ended),
            cx.stores.sandboxes.merge_metadata(cx.account, row.id, &changes)
        );
        one?;
        two?;
        let found = cx.stores.sandboxes.get(cx.account, row.id).await?.metadata;
        ensure!(found[&format!("key-{number}")] == json!(number), "{found:?}");
        ensure!(found["total_input_tokens"] == json!(number * USAGE.input_tokens), "{found:?}");
    }
    Ok(())
}

async fn v6_what_an_agent_claims_cannot_break_a_sandboxs_totals(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let row = cx.stores.sandboxes.insert(&sandbox(cx.account)).await?;
    let claim = Usage { input_tokens: u64::MAX, output_tokens: u64::MAX, cache_tokens: 1 };
    for number in 1..=3 {
        let turn = turn_in(&cx, id, row.id).await?;
        cx.stores.turns.end(cx.account, None, &EndTurn { usage: claim, ..end(&turn) }).await?;
        let found = cx.stores.sandboxes.get(cx.account, row.id).await?.metadata;
        ensure!(found["total_input_tokens"] == json!(number * Usage::MOST), "{found:?}");
        ensure!(found["total_cache_tokens"] == json!(number), "{found:?}");
    }
    Ok(())
}

async fn v6_the_sandbox_of_another_gets_no_totals(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let theirs = cx.stores.sandboxes.insert(&sandbox(cx.stranger)).await?;
    // One of another, and one that is gone: the turn ends all the same.
    for (number, sandbox) in [(1, theirs.id), (2, SandboxId::generate())] {
        let turn = turn_in(&cx, id, sandbox).await?;
        ensure!(cx.stores.turns.end(cx.account, None, &end(&turn)).await?.stats == totals(number));
    }
    ensure!(cx.stores.sandboxes.get(cx.stranger, theirs.id).await? == theirs);
    Ok(())
}

/// As much as a turn.
pub fn used(conversation_id: ConversationId, sandbox_id: SandboxId, name: &str) -> HookUsage {
    HookUsage { conversation_id, sandbox_id, name: name.to_owned(), usage: USAGE, at: at(10) }
}

fn times(times: u64) -> Stats {
    Stats {
        messages_exchanged: 0,
        total_input_tokens: times * USAGE.input_tokens,
        total_output_tokens: times * USAGE.output_tokens,
        total_cache_tokens: times * USAGE.cache_tokens,
    }
}

async fn v6_what_hooks_used_counts_once_for_each_name(cx: Cx) -> Result<()> {
    let [id, other] = [cx.conversation().await?, cx.conversation().await?];
    let store = &cx.stores.conversations;
    let row = cx.stores.sandboxes.insert(&sandbox(cx.account)).await?;
    let one = used(id, row.id, "a");
    let added = join_all((0..8).map(|_| store.add_usage(cx.account, &one))).await;
    ensure!(added.into_iter().filter(|added| matches!(added, Ok(true))).count() == 1);
    // Another hook; the same in another conversation; one whose sandbox is gone.
    ensure!(store.add_usage(cx.account, &used(id, row.id, "b")).await?);
    ensure!(store.add_usage(cx.account, &used(other, row.id, "a")).await?);
    ensure!(store.add_usage(cx.account, &used(other, SandboxId::generate(), "c")).await?);
    ensure!(!store.add_usage(cx.account, &HookUsage { usage: Usage::default(), at: at(99), ..one }).await?);
    let found = store.get(cx.account, id).await?;
    ensure!((found.stats, store.get(cx.account, other).await?.stats) == (times(2), times(2)));
    let metadata = cx.stores.sandboxes.get(cx.account, row.id).await?.metadata;
    ensure!(metadata["total_input_tokens"] == 3 * USAGE.input_tokens, "{metadata:?}");
    // Limits know of it.
    let charged = cx.stores.tokens.charge(cx.account, &[], Day::of(at(10))).await?;
    ensure!(charged.day == 4 * all_tokens(&USAGE), "{charged:?}");
    ensure_kind(
        store.add_usage(cx.account, &used(ConversationId::generate(), row.id, "a")).await,
        ErrorKind::NotFound,
    )
}

async fn v6_what_hooks_used_counts_beside_turns_that_end(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let row = cx.stores.sandboxes.insert(&sandbox(cx.account)).await?;
    for number in 1..=10 {
        let new = BeginTurn { sandbox_id: Some(row.id), ..begin(id) };
        let ended = end(&cx.stores.turns.begin(cx.account, None, &new).await?);
        let hook = used(id, row.id, &number.to_string());
        let (one, two) = futures::join!(
            cx.stores.turns.end(cx.account, None, &ended),
            cx.stores.conversations.add_usage(cx.account, &hook)
        );
        one?;
        ensure!(two?);
        let stats = cx.stores.conversations.get(cx.account, id).await?.stats;
        ensure!(stats == Stats { messages_exchanged: 2 * number, ..times(2 * number) }, "{stats:?}");
        let metadata = cx.stores.sandboxes.get(cx.account, row.id).await?.metadata;
        ensure!(metadata["total_cache_tokens"] == 2 * number * USAGE.cache_tokens, "{metadata:?}");
    }
    Ok(())
}

async fn v6_what_a_hook_claims_cannot_break_the_totals(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    for number in 1..=3 {
        let claim = Usage { input_tokens: u64::MAX, output_tokens: u64::MAX, cache_tokens: 1 };
        let claim = HookUsage { usage: claim, ..used(id, SandboxId::generate(), &number.to_string()) };
        ensure!(cx.stores.conversations.add_usage(cx.account, &claim).await?);
        let stats = cx.stores.conversations.get(cx.account, id).await?.stats;
        ensure!((stats.total_input_tokens, stats.total_cache_tokens) == (number * Usage::MOST, number));
    }
    Ok(())
}
