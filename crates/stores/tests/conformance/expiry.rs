use super::{
    kit::{Cx, at, begin, end, ensure_kind, message, sandbox},
    suite::cases,
};
use anyhow::{Result, ensure};
use bytes::Bytes;
use seawall_api::{
    ConversationId, ErrorKind, HookRunId, SandboxId,
    conversation::{Message, Role, Turn},
    sandbox::{EndReason, SandboxState},
};
use seawall_core::ports::store::{
    Direction, EndTurn, HookRun, NewConversation, Page, SandboxRow, Session, SessionScope,
};
use serde_json::{Map, Value, json};
use std::time::Duration;

cases!("expiry";
    k11_leases_go_after_their_end_and_held_ones_stay;
    k11_hook_runs_and_sessions_go_by_their_time;
    k11_events_of_ended_turns_go_and_leave_a_summary;
    k11_ended_records_go_unless_a_conversation_has_them;
    k11_conversations_are_found_by_their_last_change;
    k11_messages_go_by_their_time;
    k11_records_stay_with_their_versions;
    k11_metadata_of_a_user_keeps_no_record;
    k8_ended_records_are_counted_and_the_oldest_go_first;
);

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(1);

/// Until something is removed: the database's clock goes on by itself.
async fn some<F: Future<Output = seawall_core::Result<u64>>>(work: impl Fn() -> F) -> Result<u64> {
    loop {
        match work().await? {
            0 => tokio::task::yield_now().await,
            removed => return Ok(removed),
        }
    }
}

async fn k11_leases_go_after_their_end_and_held_ones_stay(cx: Cx) -> Result<()> {
    let (leases, expiry) = (&cx.stores.leases, &cx.stores.expiry);
    let held = leases.acquire("held", "one", LONG).await?.unwrap();
    leases.acquire("ended", "one", SHORT).await?;
    let back = leases.acquire("back", "one", LONG).await?.unwrap();
    leases.release(&back).await?;
    ensure!(expiry.expire_leases(LONG, 10).await? == 0, "they ended a moment ago");
    let mut removed = 0;
    while removed < 2 {
        removed += some(|| expiry.expire_leases(SHORT, 1)).await?;
    }
    ensure!(removed == 2 && leases.holds(&held.fence()).await?);
    ensure!(expiry.expire_leases(SHORT, 10).await? == 0);
    // A name that is free begins anew.
    ensure!(leases.acquire("back", "two", LONG).await?.unwrap().epoch == 1);
    Ok(())
}

async fn k11_hook_runs_and_sessions_go_by_their_time(cx: Cx) -> Result<()> {
    let expiry = &cx.stores.expiry;
    for second in 0..5 {
        let run = HookRun {
            id: HookRunId::generate(),
            kind: "message".into(),
            name: None,
            template: None,
            conversation_id: None,
            turn_id: None,
            sandbox_id: None,
            began_at: at(second),
            outcome: None,
        };
        let account = if second % 2 == 0 { cx.account } else { cx.stranger };
        cx.stores.hook_runs.begin(account, &run).await?;
        let session = Session {
            account_id: account,
            scope: SessionScope::Agent,
            scope_id: second.to_string(),
            sandbox_id: SandboxId::generate(),
            image: None,
            created_at: at(0),
            last_used_at: at(second),
        };
        cx.stores.sessions.open(&session).await?;
    }
    ensure!(expiry.expire_hook_runs(at(0), 10).await? == 0 && expiry.expire_sessions(at(0), 10).await? == 0);
    let counts = [expiry.expire_hook_runs(at(3), 2).await?, expiry.expire_hook_runs(at(3), 2).await?];
    ensure!(counts == [2, 1], "{counts:?}");
    let left = cx.stores.hook_runs.list(cx.account, None, &Page::first(9)).await?.items;
    ensure!(left.iter().map(|run| run.began_at).eq([at(4)]));
    let counts = [expiry.expire_sessions(at(3), 2).await?, expiry.expire_sessions(at(3), 2).await?];
    ensure!(counts == [2, 1], "{counts:?}");
    cx.stores.sessions.get(cx.account, SessionScope::Agent, "4").await?;
    ensure_kind(cx.stores.sessions.get(cx.account, SessionScope::Agent, "2").await, ErrorKind::NotFound)
}

/// One that ended then, with so many events.
async fn ended_turn(cx: &Cx, conversation: ConversationId, second: i64, events: usize) -> Result<Turn> {
    let turn = cx.stores.turns.begin(cx.account, None, &begin(conversation)).await?;
    let data = vec![Bytes::from_static(b"event"); events];
    cx.stores.turns.append_events(cx.account, None, turn.id, 0, &data, 1).await?;
    cx.stores.turns.end(cx.account, None, &EndTurn { ended_at: at(second), ..end(&turn) }).await?;
    Ok(cx.stores.turns.get(cx.account, turn.id).await?)
}

async fn k11_events_of_ended_turns_go_and_leave_a_summary(cx: Cx) -> Result<()> {
    let (turns, expiry) = (&cx.stores.turns, &cx.stores.expiry);
    let (one, two, three) = (cx.conversation().await?, cx.conversation().await?, cx.conversation().await?);
    let old = ended_turn(&cx, one, 1, 5).await?;
    let new = ended_turn(&cx, two, 9, 5).await?;
    let running = cx.turn(three).await?;
    turns.append_events(cx.account, None, running.id, 0, &[Bytes::from_static(b"event")], 1).await?;
    ensure!(expiry.turns_with_events(at(1), 10).await?.is_empty());
    ensure!(expiry.turns_with_events(at(5), 10).await? == [(cx.account, old.id)]);
    ensure!(turns.summary(cx.account, old.id).await?.is_none());
    let forget = async |summary| expiry.forget_events(cx.account, old.id, summary, 3).await;
    ensure!(forget("first").await? == 3);
    // Half of them is as good as none.
    ensure_kind(turns.events(cx.account, old.id, 0, 10).await, ErrorKind::Gone)?;
    ensure!(expiry.turns_with_events(at(5), 10).await? == [(cx.account, old.id)]);
    ensure!(forget("second").await? == 2);
    ensure!(expiry.turns_with_events(at(5), 10).await?.is_empty() && forget("third").await? == 0);
    ensure!(turns.summary(cx.account, old.id).await?.as_deref() == Some("first"), "the first counts");
    ensure_kind(turns.events(cx.account, old.id, 4, 10).await, ErrorKind::Gone)?;
    ensure!(turns.get(cx.account, old.id).await? == old);
    // Others are whole.
    ensure!(turns.events(cx.account, new.id, 0, 10).await?.len() == 5);
    let refused = expiry.forget_events(cx.account, running.id, "x", 10).await;
    ensure_kind(refused, ErrorKind::Conflict)?;
    ensure_kind(expiry.forget_events(cx.stranger, new.id, "x", 10).await, ErrorKind::Conflict)?;
    ensure!(turns.events(cx.account, running.id, 0, 10).await?.len() == 1);
    cx.stores.conversations.delete(cx.account, one).await?;
    ensure_kind(turns.summary(cx.account, old.id).await, ErrorKind::NotFound)
}

async fn k11_ended_records_go_unless_a_conversation_has_them(cx: Cx) -> Result<()> {
    let (rows, expiry) = (&cx.stores.sandboxes, &cx.stores.expiry);
    let mut ended = Vec::new();
    for _ in 0..5 {
        let row = rows.insert(&sandbox(cx.account)).await?;
        let over = SandboxRow { state: SandboxState::Terminated, reason: Some(EndReason::Terminated), ..row };
        ended.push(rows.update(&over).await?);
    }
    let lives = rows.insert(&sandbox(cx.account)).await?;
    let linked = NewConversation { sandbox_id: Some(ended[1].id), ..super::kit::conversation() };
    cx.stores.conversations.ensure(cx.account, &linked).await?;
    // It was made again.
    rows.update(&SandboxRow { state: SandboxState::Running, reason: None, ..ended[3].clone() }).await?;
    ensure!(expiry.expire_sandboxes(LONG, None, 10).await?.removed == 0, "they ended a moment ago");
    let (mut removed, mut after, mut walks) = (0, None, 0);
    while removed < 3 {
        let walked = expiry.expire_sandboxes(SHORT, after, 2).await?;
        (removed, after) = (removed + walked.removed, walked.next);
        walks += 1;
        tokio::task::yield_now().await;
    }
    ensure!(removed == 3 && walks > 1);
    for (row, stays) in [(0, false), (1, true), (2, false), (3, true), (4, false)] {
        ensure!(rows.find(ended[row].id).await?.is_some() == stays, "{row}");
    }
    ensure!(rows.find(lives.id).await?.is_some());
    cx.stores.conversations.delete(cx.account, linked.id).await?;
    let removed = some(|| async { Ok(expiry.expire_sandboxes(SHORT, None, 10).await?.removed) }).await?;
    ensure!(removed == 1 && rows.find(ended[1].id).await?.is_none());
    Ok(())
}

async fn k11_conversations_are_found_by_their_last_change(cx: Cx) -> Result<()> {
    let mut made = Vec::new();
    for (second, account) in [(3, cx.account), (1, cx.stranger), (2, cx.account), (9, cx.account)] {
        let new = NewConversation { created_at: at(second), ..super::kit::conversation() };
        cx.stores.conversations.ensure(account, &new).await?;
        made.push((account, new.id));
    }
    let expiry = &cx.stores.expiry;
    ensure!(expiry.idle_conversations(at(1), &Page::first(9)).await?.items.is_empty());
    let first = expiry.idle_conversations(at(5), &Page::first(2)).await?;
    ensure!(first.items == [made[1], made[2]]);
    let rest = expiry.idle_conversations(at(5), &Page::first(2).after(first.next.unwrap())).await?;
    ensure!(rest.items == [made[0]] && rest.next.is_none());
    Ok(())
}

async fn k11_messages_go_by_their_time(cx: Cx) -> Result<()> {
    let mut all = Vec::new();
    for number in 0..5 {
        let id = cx.conversation().await?;
        let written = (0..6).map(|second| Message {
            created_at: at(second),
            ..message(id, None, Role::User, &format!("{number} {second}"))
        });
        cx.stores.messages.put(cx.account, &written.collect::<Vec<_>>()).await?;
        all.push(id);
    }
    let expiry = &cx.stores.expiry;
    ensure!(expiry.expire_messages(at(0), None, 100).await?.removed == 0);
    let (mut removed, mut after) = (0, None);
    // A batch that ends within a conversation goes on there.
    for _ in 0..20 {
        let walked = expiry.expire_messages(at(4), after, 3).await?;
        ensure!(walked.removed <= 3);
        (removed, after) = (removed + walked.removed, walked.next);
        if after.is_none() {
            break;
        }
    }
    ensure!((removed, after) == (20, None), "{removed} {after:?}");
    for id in all {
        let page = Page::first(9);
        let left = cx.stores.messages.list(cx.account, id, Direction::OldestFirst, &page).await?.items;
        ensure!(left.iter().map(|message| message.created_at).eq([at(4), at(5)]));
    }
    Ok(())
}

async fn k11_records_stay_with_their_versions(cx: Cx) -> Result<()> {
    let (rows, expiry) = (&cx.stores.sandboxes, &cx.stores.expiry);
    let (mut ended, notes) = (Vec::new(), Map::from_iter([("last_place".to_owned(), json!("memory:/docs"))]));
    for account in [cx.account, cx.stranger, cx.account] {
        let row = rows.insert(&SandboxRow { metadata: notes.clone(), ..sandbox(account) }).await?;
        let over = SandboxRow { state: SandboxState::Terminated, reason: Some(EndReason::Terminated), ..row };
        ended.push((account, rows.update(&over).await?.id));
    }
    let new = NewConversation { sandbox_id: Some(ended[2].1), ..super::kit::conversation() };
    cx.stores.conversations.ensure(cx.account, &new).await?;
    let found = |page: Page| async move { expiry.ended_with_versions(SHORT, &page).await };
    some(|| async { Ok((found(Page::first(9)).await?.items.len() == 2).into()) }).await?;
    let first = found(Page::first(1)).await?;
    ensure!(first.items == ended[..1]);
    let rest = found(Page::first(1).after(first.next.unwrap())).await?;
    ensure!(rest.items == ended[1..2] && rest.next.is_none());
    ensure!(expiry.expire_sandboxes(SHORT, None, 10).await?.removed == 0);
    let none = Map::from_iter([("last_place".to_owned(), Value::Null)]);
    rows.merge_metadata(ended[0].0, ended[0].1, &none).await?;
    ensure!(expiry.expire_sandboxes(SHORT, None, 10).await?.removed == 1);
    ensure!(rows.find(ended[0].1).await?.is_none() && rows.find(ended[1].1).await?.is_some());
    Ok(())
}

/// Only the service's own key says that there are versions, and no text that looks like it.
async fn k11_metadata_of_a_user_keeps_no_record(cx: Cx) -> Result<()> {
    let (rows, expiry) = (&cx.stores.sandboxes, &cx.stores.expiry);
    let forged = [
        json!({"a": {"last_place": 1}}),
        json!({"a": [{"b": {"last_place": "memory:/docs"}}], "nul": "\u{0}"}),
        json!({"a": "\"last_place\":"}),
    ];
    for metadata in &forged {
        let row = rows.insert(&sandbox(cx.account)).await?;
        let row =
            rows.merge_metadata(cx.account, row.id, metadata.as_object().unwrap_or(&Map::new())).await?;
        let over = SandboxRow { state: SandboxState::Terminated, reason: Some(EndReason::Terminated), ..row };
        rows.update(&over).await?;
    }
    let mut removed = 0;
    while removed < forged.len() as u64 {
        removed += some(|| async { Ok(expiry.expire_sandboxes(SHORT, None, 10).await?.removed) }).await?;
    }
    ensure!(expiry.ended_with_versions(SHORT, &Page::first(9)).await?.items.is_empty());
    Ok(())
}

async fn k8_ended_records_are_counted_and_the_oldest_go_first(cx: Cx) -> Result<()> {
    let rows = &cx.stores.sandboxes;
    let large = Map::from_iter([("x".to_owned(), json!("y".repeat(10_000)))]);
    let mut ended = Vec::new();
    for second in 0..5 {
        let new = SandboxRow { metadata: large.clone(), created_at: at(9 - second), ..sandbox(cx.account) };
        let row = rows.insert(&new).await?;
        ensure!(rows.ended_bytes(cx.account).await? / 10_000 == ended.len() as u64, "it was not ended");
        let over = SandboxRow { state: SandboxState::Terminated, reason: Some(EndReason::Terminated), ..row };
        ended.push(rows.update(&over).await?);
    }
    let lives = rows.insert(&sandbox(cx.account)).await?;
    let heads = async |state, page: Page| rows.heads_of_account(cx.account, state, &page).await;
    ensure!(heads(None, Page::first(9)).await?.items == [lives.head()]);
    let first = heads(Some(SandboxState::Terminated), Page::first(2)).await?;
    ensure!(first.items == [ended[0].head(), ended[1].head()], "newest first");
    let next = Page::first(9).after(first.next.unwrap());
    ensure!(heads(Some(SandboxState::Terminated), next).await?.items.len() == 3);
    // A conversation needs one, and versions another.
    let linked = NewConversation { sandbox_id: Some(ended[0].id), ..super::kit::conversation() };
    cx.stores.conversations.ensure(cx.account, &linked).await?;
    let notes = Map::from_iter([("last_place".to_owned(), json!("memory:/docs"))]);
    rows.merge_metadata(cx.account, ended[2].id, &notes).await?;
    ensure!(rows.remove_ended(cx.account, 2).await? == 2);
    for (row, stays) in [(0, true), (1, false), (2, true), (3, false), (4, true)] {
        ensure!(rows.find(ended[row].id).await?.is_some() == stays, "{row}");
    }
    ensure!(rows.remove_ended(cx.account, 9).await? == 1 && rows.remove_ended(cx.account, 9).await? == 0);
    ensure!(rows.ended_bytes(cx.account).await? / 10_000 == 2 && rows.find(lives.id).await?.is_some());
    Ok(())
}
