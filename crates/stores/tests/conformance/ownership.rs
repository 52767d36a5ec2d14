//! Whose rows are whose: every method of every port, enumerated from the sources.

use super::{
    kit::{Cx, begin, conversation, end, ensure_kind, message, now, sandbox},
    suite::cases,
};
use anyhow::{Result, ensure};
use seawall_api::{
    ErrorKind, HookRunId, KeyId, SandboxId,
    account::{ApiKey, KeyScope},
    conversation::{Role, Usage},
    sandbox::SandboxState,
};
use seawall_core::ports::store::{
    Begun, ConversationFilter, Day, Direction, HookOutcome, HookRun, HookUsage, KeyLimits, NewConversation,
    Page, SandboxFilter, SandboxRow, Session, SessionScope, TokenCharge, TokenTotals,
};
use serde_json::{Map, json};
use std::{collections::BTreeSet, time::Duration};

cases!("ownership"; c7_no_method_reaches_anothers_rows; c7_every_method_is_accounted_for;);

/// The sources of the ports.
const SOURCES: &[&str] = &[
    include_str!("../../../core/src/ports/store/accounts.rs"),
    include_str!("../../../core/src/ports/store/conversations.rs"),
    include_str!("../../../core/src/ports/store/expiry.rs"),
    include_str!("../../../core/src/ports/store/hook_runs.rs"),
    include_str!("../../../core/src/ports/store/idempotency.rs"),
    include_str!("../../../core/src/ports/store/leases.rs"),
    include_str!("../../../core/src/ports/store/messages.rs"),
    include_str!("../../../core/src/ports/store/outbox.rs"),
    include_str!("../../../core/src/ports/store/sandboxes.rs"),
    include_str!("../../../core/src/ports/store/sessions.rs"),
    include_str!("../../../core/src/ports/store/stored.rs"),
    include_str!("../../../core/src/ports/store/tokens.rs"),
    include_str!("../../../core/src/ports/store/turns.rs"),
];

/// Methods of the server itself, and why they need no owner.
const SERVERS: &[(&str, &str)] = &[
    ("Accounts::create", "makes the owner"),
    ("Accounts::get", "the account is the row"),
    ("Accounts::list", "for operators, by the scope of their key"),
    ("Accounts::set_settings", "the account is the row"),
    ("Accounts::set_suspended", "the account is the row"),
    ("Accounts::begin_deletion", "the account is the row"),
    ("Accounts::erase", "the account is the row"),
    ("Accounts::remove", "the account is the row"),
    ("Accounts::find_key", "finds out who the owner is"),
    ("Accounts::good_keys", "ends what keys have open, whoever's they are, and shows nothing of them"),
    ("Turns::running", "a server that starts takes up everybody's turns"),
    ("SandboxRows::insert", "the row names its owner"),
    ("SandboxRows::insert_soon", "the row names its owner"),
    ("SandboxRows::settle", "shows nothing, and changes nothing but what is on the disk"),
    ("SandboxRows::find", "the machine that has a box looks after it, whoever's it is"),
    ("SandboxRows::of_node", "the sweep of a machine is about everybody's boxes"),
    ("SandboxRows::heads_of_node", "the rounds of a machine are about everybody's boxes"),
    ("SandboxRows::head", "the machine that has a box looks after it, whoever's it is"),
    ("Sessions::open", "the session names its owner"),
    ("Sessions::expired", "the reaper is about everybody's sessions"),
    ("Idempotency::renew", "by receipts that only the server that runs the calls has"),
    ("Idempotency::close_all", "at a server's start nobody is at anything, whoever's it is"),
    ("Idempotency::expire", "what is old goes, whoever's it is"),
    ("Outbox::add", "tasks name their owner"),
    ("Outbox::take", "one worker delivers for everybody"),
    ("Outbox::done", "by a receipt that only its taker has"),
    ("Outbox::failed", "by a receipt that only its taker has"),
    ("Outbox::waiting", "a count for operators"),
    ("Stored::all_places", "rounds of the server look after everybody's versions"),
    ("Leases::acquire", "names are the server's"),
    ("Leases::acquire_soon", "names are the server's"),
    ("Leases::take_over", "names are the server's"),
    ("Leases::renew", "names are the server's"),
    ("Leases::holds", "names are the server's"),
    ("Leases::release", "names are the server's"),
    ("Accounts::add_key", "the key names its owner"),
    ("Expiry::expire_leases", "what is old goes, whoever's it is"),
    ("Expiry::expire_hook_runs", "what is old goes, whoever's it is"),
    ("Expiry::expire_sessions", "what is old goes, whoever's it is"),
    ("Expiry::expire_sandboxes", "what is old goes, whoever's it is"),
    ("Expiry::turns_with_events", "what is old goes, whoever's it is"),
    ("Expiry::idle_conversations", "what is old goes, whoever's it is"),
    ("Expiry::expire_messages", "what is old goes, whoever's it is"),
    ("Expiry::ended_with_versions", "what is old goes, whoever's it is"),
];

/// Methods that a stranger tries below.
const OWNED: &[&str] = &[
    "Accounts::keys",
    "Accounts::revoke_key",
    "Accounts::touch_key",
    "Conversations::ensure",
    "Conversations::get",
    "Conversations::count",
    "Conversations::list",
    "Conversations::set_template",
    "Conversations::link",
    "Conversations::add_usage",
    "Conversations::delete",
    "Turns::begin",
    "Turns::end",
    "Turns::request_cancel",
    "Turns::save_answer",
    "Tokens::charge",
    "Turns::get",
    "Turns::running_in",
    "Turns::boot",
    "Turns::list",
    "Turns::append_events",
    "Turns::event_sizes",
    "Turns::events",
    "Turns::summary",
    "Expiry::forget_events",
    "Messages::put",
    "Messages::get",
    "Messages::size",
    "Messages::sizes",
    "Messages::list",
    "Messages::delete_all",
    "SandboxRows::get",
    "SandboxRows::heads_of_account",
    "SandboxRows::ended_bytes",
    "SandboxRows::remove_ended",
    "SandboxRows::sizes",
    "SandboxRows::list",
    "SandboxRows::update",
    "SandboxRows::merge_metadata",
    "SandboxRows::touch",
    "SandboxRows::remove",
    "Sessions::get",
    "Sessions::touch",
    "Sessions::end",
    "HookRuns::begin",
    "HookRuns::end",
    "HookRuns::list",
    "Idempotency::begin",
    "Idempotency::finish",
    "Idempotency::abandon",
    "Stored::add",
    "Stored::set",
    "Stored::total",
    "Stored::places",
    "Stored::forget",
    "Idempotency::kept",
];

/// `Trait::method` of every source.
fn methods() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for source in SOURCES {
        let mut port = "";
        for line in source.lines() {
            if let Some(rest) = line.strip_prefix("pub trait ") {
                port = rest.split(':').next().unwrap_or_default();
            }
            if let Some(rest) = line.trim_start().strip_prefix("async fn ") {
                found.insert(format!("{port}::{}", rest.split('(').next().unwrap_or_default()));
            }
        }
    }
    found
}

async fn c7_every_method_is_accounted_for(_cx: Cx) -> Result<()> {
    let there = methods();
    let known: BTreeSet<String> =
        OWNED.iter().copied().chain(SERVERS.iter().map(|(name, _)| *name)).map(str::to_owned).collect();
    let unknown: Vec<_> = there.difference(&known).collect();
    ensure!(unknown.is_empty(), "methods that nobody has looked at: {unknown:?}");
    let gone: Vec<_> = known.difference(&there).collect();
    ensure!(gone.is_empty(), "methods that are no more: {gone:?}");
    ensure!(there.len() > 50, "only {} methods were found", there.len());
    Ok(())
}

async fn c7_no_method_reaches_anothers_rows(cx: Cx) -> Result<()> {
    keys(&cx).await?;
    conversations(&cx).await?;
    turns_and_messages(&cx).await?;
    sandboxes(&cx).await?;
    sessions_and_runs(&cx).await?;
    idempotency(&cx).await?;
    stored(&cx).await
}

async fn keys(cx: &Cx) -> Result<()> {
    let key = ApiKey {
        id: KeyId::generate(),
        account_id: cx.account,
        name: "k".into(),
        prefix: "k".into(),
        scopes: [KeyScope::Admin].into(),
        created_at: now(),
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
    };
    let store = &cx.stores.accounts;
    store.add_key(&key, &[3; 32], &KeyLimits::NONE).await?;
    ensure!(store.keys(cx.stranger).await?.is_empty());
    ensure_kind(store.revoke_key(cx.stranger, key.id, now()).await, ErrorKind::NotFound)?;
    ensure_kind(store.touch_key(cx.stranger, key.id, now()).await, ErrorKind::NotFound)?;
    ensure!(store.keys(cx.account).await? == [key]);
    Ok(())
}

async fn conversations(cx: &Cx) -> Result<()> {
    let (store, stranger) = (&cx.stores.conversations, cx.stranger);
    let id = cx.conversation().await?;
    let before = store.get(cx.account, id).await?;
    ensure_kind(
        store.ensure(stranger, &NewConversation { id, ..conversation() }).await,
        ErrorKind::NotFound,
    )?;
    ensure_kind(store.get(stranger, id).await, ErrorKind::NotFound)?;
    ensure_kind(store.set_template(stranger, id, Some("x"), now()).await, ErrorKind::NotFound)?;
    let sandbox = Some(SandboxId::generate());
    ensure_kind(store.link(stranger, id, None, sandbox, now()).await, ErrorKind::NotFound)?;
    let used = HookUsage {
        conversation_id: id,
        sandbox_id: SandboxId::generate(),
        name: "x".to_owned(),
        usage: Usage { input_tokens: 1, ..Usage::default() },
        at: now(),
    };
    ensure_kind(store.add_usage(stranger, &used).await, ErrorKind::NotFound)?;
    store.delete(stranger, id).await?;
    ensure!(store.count(stranger).await? == 0 && store.count(cx.account).await? == 1);
    let all = ConversationFilter::default();
    ensure!(store.list(stranger, &all, &Page::first(9)).await?.items.is_empty());
    ensure!(store.get(cx.account, id).await? == before);
    Ok(())
}

async fn turns_and_messages(cx: &Cx) -> Result<()> {
    let (turns, stranger) = (&cx.stores.turns, cx.stranger);
    let id = cx.conversation().await?;
    ensure_kind(turns.begin(stranger, None, &begin(id)).await, ErrorKind::NotFound)?;
    let turn = cx.turn(id).await?;
    let before = cx.stores.conversations.get(cx.account, id).await?;
    ensure_kind(turns.get(stranger, turn.id).await, ErrorKind::NotFound)?;
    ensure_kind(turns.end(stranger, None, &end(&turn)).await, ErrorKind::NotFound)?;
    ensure_kind(turns.boot(stranger, turn.id).await, ErrorKind::NotFound)?;
    if let Some(sandbox) = turn.sandbox_id {
        ensure!(turns.running_in(stranger, sandbox).await?.is_none());
    }
    ensure_kind(turns.request_cancel(stranger, turn.id, now()).await, ErrorKind::NotFound)?;
    ensure!(turns.get(cx.account, turn.id).await? == turn);
    let answer = message(id, Some(turn.id), Role::Assistant, "x");
    ensure_kind(turns.save_answer(stranger, None, &answer).await, ErrorKind::NotFound)?;
    let appended = turns.append_events(stranger, None, turn.id, 0, &["x".into()], 1).await;
    ensure_kind(appended, ErrorKind::NotFound)?;
    turns.append_events(cx.account, None, turn.id, 0, &["ours".into()], 1).await?;
    ensure_kind(turns.events(stranger, turn.id, 0, 9).await, ErrorKind::NotFound)?;
    ensure_kind(turns.summary(stranger, turn.id).await, ErrorKind::NotFound)?;
    ensure_kind(cx.stores.expiry.forget_events(stranger, turn.id, "x", 9).await, ErrorKind::Conflict)?;
    ensure!(turns.event_sizes(stranger, turn.id, 0, 9).await.unwrap_or_default().is_empty());
    ensure!(turns.list(stranger, id, &Page::first(9)).await?.items.is_empty());
    // A turn of a stranger's own, under the id of ours.
    let theirs = conversation();
    cx.stores.conversations.ensure(stranger, &theirs).await?;
    let mut same = begin(theirs.id);
    (same.id, same.prompt.turn_id) = (turn.id, Some(turn.id));
    ensure_kind(turns.begin(stranger, None, &same).await, ErrorKind::Conflict)?;
    let (tokens, today) = (&cx.stores.tokens, Day::of(now()));
    let ours = TokenCharge { day: today, turn: turn.id, run: 1, tokens: 9 };
    tokens.charge(cx.account, &[ours], today).await?;
    let theirs = TokenCharge { tokens: 5, ..ours };
    ensure!(tokens.charge(stranger, &[theirs], today).await? == TokenTotals { day: 5, month: 5 });
    ensure!(tokens.charge(cx.account, &[], today).await? == TokenTotals { day: 9, month: 9 });
    let messages = &cx.stores.messages;
    ensure_kind(messages.get(stranger, id, turn.prompt_id).await, ErrorKind::NotFound)?;
    ensure_kind(messages.size(stranger, id, turn.prompt_id).await, ErrorKind::NotFound)?;
    ensure!(messages.sizes(stranger, id, Direction::NewestFirst, &Page::first(9)).await?.is_empty());
    ensure!(messages.list(stranger, id, Direction::NewestFirst, &Page::first(9)).await?.items.is_empty());
    messages.put(stranger, &[answer]).await?;
    messages.delete_all(stranger, id).await?;
    ensure!(messages.list(cx.account, id, Direction::NewestFirst, &Page::first(9)).await?.items.len() == 1);
    ensure!(cx.stores.conversations.get(cx.account, id).await? == before);
    Ok(())
}

async fn sandboxes(cx: &Cx) -> Result<()> {
    let (store, stranger) = (&cx.stores.sandboxes, cx.stranger);
    let row = store.insert(&sandbox(cx.account)).await?;
    ensure_kind(store.get(stranger, row.id).await, ErrorKind::NotFound)?;
    let theirs = SandboxRow { account_id: stranger, ..row.clone() };
    ensure_kind(store.update(&theirs).await, ErrorKind::NotFound)?;
    let changes = json!({"x": 1}).as_object().cloned().unwrap_or_else(Map::new);
    ensure_kind(store.merge_metadata(stranger, row.id, &changes).await, ErrorKind::NotFound)?;
    ensure_kind(store.touch(stranger, row.id, now()).await, ErrorKind::NotFound)?;
    store.remove(stranger, row.id).await?;
    ensure!(store.list(stranger, &SandboxFilter::default(), &Page::first(9)).await?.items.is_empty());
    ensure!(store.sizes(stranger, &SandboxFilter::default(), &Page::first(9)).await?.is_empty());
    ensure!(store.heads_of_account(stranger, None, &Page::first(9)).await?.items.is_empty());
    ensure!(store.get(cx.account, row.id).await? == row);
    store.update(&SandboxRow { state: SandboxState::Terminated, ..row.clone() }).await?;
    ensure!(store.ended_bytes(stranger).await? == 0 && store.remove_ended(stranger, 9).await? == 0);
    ensure!(store.find(row.id).await?.is_some());
    Ok(())
}

async fn sessions_and_runs(cx: &Cx) -> Result<()> {
    let (sessions, scope) = (&cx.stores.sessions, SessionScope::Agent);
    let session = Session {
        account_id: cx.account,
        scope,
        scope_id: "a".into(),
        sandbox_id: SandboxId::generate(),
        image: None,
        created_at: now(),
        last_used_at: now(),
    };
    sessions.open(&session).await?;
    ensure_kind(sessions.get(cx.stranger, scope, "a").await, ErrorKind::NotFound)?;
    ensure_kind(sessions.touch(cx.stranger, scope, "a", now()).await, ErrorKind::NotFound)?;
    ensure!(sessions.end(cx.stranger, scope, "a").await?.is_none());
    ensure!(sessions.get(cx.account, scope, "a").await? == session);
    let run = HookRun {
        id: HookRunId::generate(),
        kind: "message".into(),
        name: None,
        turn_id: None,
        template: None,
        conversation_id: None,
        sandbox_id: None,
        began_at: now(),
        outcome: None,
    };
    let runs = &cx.stores.hook_runs;
    runs.begin(cx.account, &run).await?;
    runs.begin(cx.stranger, &HookRun { kind: "theirs".into(), ..run.clone() }).await?;
    let outcome = HookOutcome { ended_at: now(), error: None };
    ensure_kind(runs.end(cx.stranger, run.id, &outcome).await, ErrorKind::NotFound)?;
    ensure!(runs.list(cx.stranger, None, &Page::first(9)).await?.items.is_empty());
    ensure!(runs.list(cx.account, None, &Page::first(9)).await?.items == [run]);
    Ok(())
}

async fn stored(cx: &Cx) -> Result<()> {
    let store = &cx.stores.stored;
    store.add(cx.account, "p", 7).await?;
    ensure!(store.total(cx.stranger).await? == 0 && store.places(cx.stranger, None, 9).await?.is_empty());
    store.add(cx.stranger, "p", -7).await?;
    store.set(cx.stranger, "p", 1).await?;
    store.forget(cx.stranger, "p").await?;
    ensure!(store.total(cx.account).await? == 7);
    Ok(())
}

async fn idempotency(cx: &Cx) -> Result<()> {
    let (store, long) = (&cx.stores.idempotency, Duration::from_secs(60));
    let Begun::New { receipt } = store.begin(cx.account, "k", &[1; 32], long, long).await? else {
        anyhow::bail!("the key was taken");
    };
    let theirs = store.begin(cx.stranger, "k", &[2; 32], long, long).await?;
    ensure!(matches!(theirs, Begun::New { .. }));
    ensure!(store.kept(cx.stranger).await? == (1, 0));
    ensure_kind(store.finish(cx.stranger, "k", receipt, b"theirs").await, ErrorKind::Conflict)?;
    store.abandon(cx.stranger, "k", receipt).await?;
    ensure!(store.begin(cx.account, "k", &[1; 32], long, long).await? == Begun::Running);
    Ok(())
}
