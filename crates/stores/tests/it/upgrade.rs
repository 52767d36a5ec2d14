//! Copies of databases, and databases of earlier versions.
//!
//! `fixtures/v1` holds a database of the first version, with data, as SQLite's file and as PostgreSQL's dump. It was
//! written once by `write_the_fixture` and never changes.

use crate::postgres::{Database, psql};
use jiff::Timestamp;
use seawall_api::{
    AccountId, ConversationId, ErrorKind, HookRunId, KeyId, MessageId, SandboxId, TurnId,
    account::{Account, ApiKey, KeyScope},
    conversation::{Message, Role, Stats, TurnState, Usage},
    sandbox::{SandboxSpec, SandboxState},
};
use seawall_core::ports::store::{
    BeginTurn, Day, Direction, EndTurn, HookRun, HookUsage, KeyLimits, NewConversation, Page, SandboxRow,
    Session, SessionScope, Stores, Task,
};
use seawall_stores::{Db, SqlStore, sql};
use serde_json::json;
use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use uuid::Uuid;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1").join(name)
}

/// The same each time.
fn id<I: TryFrom<Uuid, Error: std::fmt::Debug>>(number: u128) -> I {
    I::try_from(Uuid::from_u128(0x0190a5d0_7c1e_7b3a_9f00_000000000000 + number)).unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

const USAGE: Usage = Usage { input_tokens: 11, output_tokens: 7, cache_tokens: 5 };

fn message(number: u128, turn: TurnId, role: Role, second: i64) -> Message {
    Message {
        id: id(number),
        conversation_id: id(10),
        turn_id: Some(turn),
        role,
        body: format!("body {number} ☃"),
        usage: None,
        tool_calls: Vec::new(),
        created_at: at(second),
        revision: 1,
    }
}

/// Something in every table.
async fn write(stores: &Stores) {
    let account: AccountId = id(1);
    let settings = json!({"models": ["m"]}).as_object().unwrap().clone();
    stores.accounts.create(&Account::new(account, "first".into(), settings, at(0))).await.unwrap();
    let key = ApiKey {
        id: id(2),
        account_id: account,
        name: "key".into(),
        prefix: "sw_".into(),
        scopes: [KeyScope::Admin].into(),
        created_at: at(0),
        expires_at: None,
        revoked_at: None,
        last_used_at: Some(at(1)),
    };
    stores.accounts.add_key(&key, &[7; 32], &KeyLimits::NONE).await.unwrap();
    let new = NewConversation {
        id: id(10),
        organization_id: Some("org".into()),
        agent_id: Some("agent".into()),
        template: Some("shell".into()),
        sandbox_id: Some(id(20)),
        created_at: at(1),
    };
    stores.conversations.ensure(account, &new).await.unwrap();
    for number in 0..3 {
        let turn: TurnId = id(30 + number);
        let second = 10 * number as i64;
        let begin = BeginTurn {
            id: turn,
            conversation_id: id(10),
            sandbox_id: Some(id(20)),
            template: None,
            prompt: message(100 + number, turn, Role::User, second),
            answer_id: id(200 + number),
            created_at: at(second),
            first_event: None,
            lease: None,
            boot: None,
        };
        stores.turns.begin(account, None, &begin).await.unwrap();
        stores.turns.append_events(account, None, turn, 0, &["one".into(), "two".into()], 6).await.unwrap();
        if number < 2 {
            let end = EndTurn {
                id: turn,
                state: TurnState::Completed,
                error: None,
                usage: USAGE,
                answer: Some(message(200 + number, turn, Role::Assistant, second + 5)),
                ended_at: at(second + 5),
            };
            stores.turns.end(account, None, &end).await.unwrap();
        }
    }
    rows(stores, account).await;
}

async fn rows(stores: &Stores, account: AccountId) {
    let sandbox = SandboxRow {
        id: id(20),
        account_id: account,
        name: Some("box".into()),
        provider: "native".into(),
        node: Some("node".into()),
        template: Some("shell".into()),
        spec: SandboxSpec::default(),
        state: SandboxState::Running,
        reason: None,
        removing: None,
        unsynced: Some(String::new()),
        metadata: json!({"last_synced_at": 9}).as_object().unwrap().clone(),
        created_at: at(1),
        started_at: Some(at(2)),
        last_used_at: at(3),
        version: 1,
    };
    stores.sandboxes.insert(&sandbox).await.unwrap();
    let session = Session {
        account_id: account,
        scope: SessionScope::Workflow,
        scope_id: "w".into(),
        sandbox_id: id(20),
        image: None,
        created_at: at(1),
        last_used_at: at(2),
    };
    stores.sessions.open(&session).await.unwrap();
    let run = HookRun {
        id: id::<HookRunId>(40),
        kind: "message".into(),
        name: None,
        turn_id: None,
        template: None,
        conversation_id: Some(id(10)),
        sandbox_id: Some(id(20)),
        began_at: at(4),
        outcome: None,
    };
    stores.hook_runs.begin(account, &run).await.unwrap();
    let task = Task::DeleteMessages { account, conversation: id::<ConversationId>(99) };
    stores.outbox.add(&task, at(1_000_000_000)).await.unwrap();
    let long = Duration::from_secs(3_000_000_000);
    stores.idempotency.begin(account, "key", &[1; 32], long, long).await.unwrap();
    stores.leases.acquire("lease", "holder", long).await.unwrap().unwrap();
}

/// That all of it is there.
async fn read(stores: &Stores) {
    let account: AccountId = id(1);
    assert_eq!(stores.accounts.get(account).await.unwrap().name, "first");
    let key = stores.accounts.find_key(&[7; 32]).await.unwrap().unwrap();
    assert_eq!((key.id, key.last_used_at), (id::<KeyId>(2), Some(at(1))));
    let conversation = stores.conversations.get(account, id(10)).await.unwrap();
    let stats = Stats {
        messages_exchanged: 5,
        total_input_tokens: 22,
        total_output_tokens: 14,
        total_cache_tokens: 10,
    };
    assert_eq!((conversation.stats, conversation.sandbox_id), (stats, Some(id::<SandboxId>(20))));
    let messages =
        stores.messages.list(account, id(10), Direction::OldestFirst, &Page::first(50)).await.unwrap();
    let ids: Vec<MessageId> = messages.items.iter().map(|message| message.id).collect();
    assert_eq!(ids, [100, 200, 101, 201, 102].map(id::<MessageId>));
    assert_eq!(messages.items[1].body, "body 200 ☃");
    // K8: what was used before there were charges is charged.
    let charged = stores.tokens.charge(account, &[], Day::of(at(0))).await.unwrap();
    assert_eq!((charged.day, charged.month), (46, 46));
    let running = stores.turns.running(&Page::first(10)).await.unwrap();
    assert_eq!(running.items.iter().map(|turn| turn.id).collect::<Vec<_>>(), [id::<TurnId>(32)]);
    assert_eq!(stores.turns.boot(account, id(32)).await.unwrap(), None);
    // Its row is from before there were columns for what rounds read.
    let head = stores.sandboxes.head(id(20)).await.unwrap().unwrap();
    assert_eq!(head, stores.sandboxes.get(account, id(20)).await.unwrap().head());
    assert_eq!(stores.turns.events(account, id(31), 0, 10).await.unwrap()[1].data, "two");
    let sandbox = stores.sandboxes.get(account, id(20)).await.unwrap();
    assert_eq!((sandbox.name.as_deref(), sandbox.unsynced), (Some("box"), Some(String::new())));
    assert_eq!(sandbox.metadata["last_synced_at"], 9);
    let session = stores.sessions.get(account, SessionScope::Workflow, "w").await.unwrap();
    assert_eq!(session.sandbox_id, id::<SandboxId>(20));
    assert_eq!(stores.hook_runs.list(account, None, &Page::first(9)).await.unwrap().items.len(), 1);
    assert_eq!(stores.outbox.waiting().await.unwrap().0, 1);
    assert!(stores.leases.acquire("lease", "another", Duration::from_secs(1)).await.unwrap().is_none());
    // And it is used on.
    let new = message(300, id(32), Role::Assistant, 90);
    stores.turns.save_answer(account, None, &new).await.unwrap();
}

async fn is_upgraded(db: Db) {
    assert_eq!((db.migrated().from, db.migrated().to), (1, sql::newest_version()));
    read(&SqlStore::new(db.clone()).stores()).await;
    let found = sql::check(&db).await.unwrap();
    assert_eq!(found.wrong, Vec::<String>::new());
    assert_eq!((found.conversations, found.turns), (1, 3));
}

#[tokio::test]
async fn sqlite_of_the_first_version_is_upgraded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("seawall.db");
    std::fs::copy(fixture("sqlite.db"), &path).unwrap();
    is_upgraded(Db::sqlite(&path).await.unwrap()).await;
}

#[tokio::test]
async fn postgres_of_the_first_version_is_upgraded() {
    let Some(database) = Database::or_skip("upgrade::postgres_of_the_first_version_is_upgraded") else {
        return;
    };
    psql(&database.url, &["-f", fixture("postgres.sql").to_str().unwrap()]).unwrap();
    is_upgraded(Db::postgres(&database.url).await.unwrap()).await;
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("seawall.db");
    Db::sqlite(&path).await.unwrap().close().await;
    let add = "INSERT INTO schema_versions VALUES (9999, 'from the future', 0)";
    let python = format!("import sqlite3; c = sqlite3.connect({path:?}); c.execute({add:?}); c.commit()");
    assert!(Command::new("python3").args(["-c", &python]).status().unwrap().success());
    let refused = Db::sqlite(&path).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(refused.to_string().contains("9999"), "{refused}");
}

#[tokio::test]
async fn many_replicas_may_upgrade_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("seawall.db");
    let opened = futures::future::join_all((0..8).map(|_| Db::sqlite(&path))).await;
    assert_eq!(opened.into_iter().map(Result::unwrap).filter(|db| db.migrated().from == 0).count(), 1);
    let Some(database) = Database::or_skip("upgrade::many_replicas_may_upgrade_at_once") else { return };
    let opened = futures::future::join_all((0..8).map(|_| Db::postgres(&database.url))).await;
    assert_eq!(opened.into_iter().map(Result::unwrap).filter(|db| db.migrated().from == 0).count(), 1);
}

#[tokio::test]
async fn a_backup_is_whole_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let [path, copy, second] = ["seawall.db", "copy.db", "second.db"].map(|name| folder.path().join(name));
    let db = Db::sqlite(&path).await.unwrap();
    let stores = SqlStore::new(db.clone()).stores();
    write(&stores).await;
    // While somebody writes.
    let account: AccountId = id(1);
    let writing = async {
        for number in 0..200 {
            let more = Message { conversation_id: id(11), ..message(1000 + number, id(31), Role::User, 1) };
            stores.messages.put(account, &[more]).await.unwrap();
        }
    };
    let ((), found) = futures::join!(writing, sql::backup(&db, &copy));
    assert_eq!(found.unwrap().wrong, Vec::<String>::new());
    assert_eq!(
        sql::backup(&db, &copy).await.unwrap_err().kind(),
        ErrorKind::Conflict,
        "no copy is overwritten"
    );
    // Not while it is used.
    assert_eq!(sql::restore(&path, &copy, "1").await.unwrap_err().kind(), ErrorKind::Conflict);
    stores.conversations.set_template(account, id(10), Some("changed"), at(99)).await.unwrap();
    // What a hook used is part of the ledger.
    let used = HookUsage {
        conversation_id: id(10),
        sandbox_id: id(20),
        name: "hook".to_owned(),
        usage: Usage { input_tokens: 7, ..Usage::default() },
        at: at(99),
    };
    assert!(stores.conversations.add_usage(account, &used).await.unwrap());
    assert_eq!(sql::check(&db).await.unwrap().wrong, Vec::<String>::new());
    drop(stores);
    db.close().await;
    let (kept, _) = sql::restore(&path, &copy, "1").await.unwrap();
    let restored = Db::sqlite(&path).await.unwrap();
    read(&SqlStore::new(restored.clone()).stores()).await;
    restored.close().await;
    // What was there before is not lost.
    let old = Db::sqlite(&kept.unwrap()).await.unwrap();
    let template = SqlStore::new(old).stores().conversations.get(account, id(10)).await.unwrap().template;
    assert_eq!(template.as_deref(), Some("changed"));
    // What is no database of ours is refused, and replaces nothing: no text, no empty file, no copy without its log.
    for content in [&b"no database"[..], b""] {
        std::fs::write(&second, content).unwrap();
        assert_eq!(sql::restore(&path, &second, "2").await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    std::fs::copy(&copy, &second).unwrap();
    std::fs::write(folder.path().join("second.db-wal"), "something").unwrap();
    assert_eq!(sql::restore(&path, &second, "2").await.unwrap_err().kind(), ErrorKind::Invalid);
    let again = Db::sqlite(&path).await.unwrap();
    assert_eq!(sql::check(&again).await.unwrap().wrong, Vec::<String>::new());
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o077, 0, "conversations are nobody else's business");
}

/// Run once, for a new version: `cargo test -p seawall-stores --test it write_the_fixture -- --ignored`.
#[tokio::test]
#[ignore = "writes the fixture"]
async fn write_the_fixture() {
    let path = fixture("sqlite.db");
    assert!(!path.exists(), "fixtures never change");
    let db = Db::sqlite(&path).await.unwrap();
    write(&SqlStore::new(db.clone()).stores()).await;
    db.close().await;
    let database = Database::new().unwrap();
    let db = Db::postgres(&database.url).await.unwrap();
    write(&SqlStore::new(db.clone()).stores()).await;
    db.close().await;
    let dump = Command::new("pg_dump").args(["--no-owner", "--inserts", &database.url]).output().unwrap();
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    std::fs::write(fixture("postgres.sql"), dump.stdout).unwrap();
}
