//! Databases and children.

use crate::postgres;
use anyhow::{Result, ensure};
use jiff::Timestamp;
use libtest_mimic::{Failed, Trial};
use seawall_api::{
    AccountId, ConversationId, MessageId, TurnId,
    conversation::{Message, Role, Turn, TurnState, Usage},
};
use seawall_core::{
    ports::store::{BeginTurn, EndTurn, NewConversation},
    testing::timed,
};
use seawall_stores::{Db, sql};
use std::{
    any::Any,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

pub type Run = fn() -> Result<()>;

/// A database that several processes open.
pub struct Database {
    /// As a child is told.
    pub address: String,
    /// What is removed afterwards.
    _substrate: Box<dyn Any>,
}

impl Database {
    /// Waits until nobody uses it: what a process began before it was killed, a server may still bring to its end.
    pub fn left(&self) -> Result<()> {
        let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
        let began = Instant::now();
        while self.address.starts_with("postgres")
            && postgres::psql(&self.address, &["-c", others])?.trim() != "0"
        {
            ensure!(began.elapsed() < Duration::from_secs(30), "somebody still uses the database");
        }
        Ok(())
    }
}

pub fn trial(name: &'static str, run: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    Trial::test(name, move || timed(name, run).map_err(|error| Failed::from(format!("{error:?}"))))
}

/// Skipped by name where there is no server.
pub fn postgres_trial(name: &'static str, run: Run) -> Trial {
    let name = format!("postgres::{name}");
    let skipped = !postgres::is_there() && !postgres::is_required();
    if skipped {
        println!("skipped {name}: {}", postgres::MISSING);
    }
    let shown = name.clone();
    Trial::test(name, move || timed(&shown, run).map_err(|error| Failed::from(format!("{error:?}"))))
        .with_ignored_flag(skipped)
}

pub fn sqlite() -> Database {
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("seawall.db").display().to_string();
    Database { address, _substrate: Box::new(folder) }
}

pub fn postgres() -> Result<Database> {
    let made = postgres::Database::new()?;
    Ok(Database { address: made.url.clone(), _substrate: Box::new(made) })
}

pub async fn open(address: &str) -> Result<Db> {
    Ok(match address.starts_with("postgres") {
        true => Db::postgres(address).await?,
        false => Db::sqlite(address.as_ref()).await?,
    })
}

/// This program in a role.
pub fn child(role: &str, database: &Database) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .env("SEAWALL_STORE_ROLE", role)
        .env("SEAWALL_STORE", &database.address)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// That the whole database agrees with itself.
pub async fn ensure_whole(db: &Db) -> Result<()> {
    let found = sql::check(db).await?;
    ensure!(found.wrong.is_empty(), "{:#?}", found.wrong);
    Ok(())
}

pub fn conversation(id: ConversationId) -> NewConversation {
    NewConversation {
        id,
        organization_id: None,
        agent_id: None,
        template: None,
        sandbox_id: None,
        created_at: Timestamp::now(),
    }
}

fn message(conversation_id: ConversationId, id: MessageId, turn: TurnId, role: Role) -> Message {
    Message {
        id,
        conversation_id,
        turn_id: Some(turn),
        role,
        body: "x".repeat(500),
        usage: None,
        tool_calls: Vec::new(),
        created_at: Timestamp::now(),
        revision: 0,
    }
}

pub fn begin(conversation_id: ConversationId) -> BeginTurn {
    let id = TurnId::generate();
    BeginTurn {
        id,
        conversation_id,
        sandbox_id: None,
        template: None,
        prompt: message(conversation_id, MessageId::generate(), id, Role::User),
        answer_id: MessageId::generate(),
        created_at: Timestamp::now(),
        first_event: None,
        lease: None,
        boot: None,
    }
}

/// What a turn used: known from its id, so that everybody can tell.
pub fn usage_of(turn: TurnId) -> Usage {
    let number = turn.as_uuid().as_u128() as u64;
    Usage { input_tokens: number % 1000, output_tokens: number % 77, cache_tokens: number % 13 }
}

pub fn end(turn: &Turn) -> EndTurn {
    EndTurn {
        id: turn.id,
        state: TurnState::Completed,
        error: None,
        usage: usage_of(turn.id),
        answer: Some(message(turn.conversation_id, turn.answer_id, turn.id, Role::Assistant)),
        ended_at: Timestamp::now(),
    }
}

/// An account as everybody knows it.
pub fn account() -> AccountId {
    "0190a5d0-7c1e-7b3a-9f00-3d2c1b0a9f8e".parse().unwrap()
}
