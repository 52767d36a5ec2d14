//! What cases share: things to store.

use anyhow::{Result, ensure};
use jiff::Timestamp;
use seawall_api::{
    AccountId, ConversationId, ErrorKind, MessageId, SandboxId, TurnId,
    account::Account,
    conversation::{Message, Role, Turn, TurnState, Usage},
    sandbox::{SandboxSpec, SandboxState},
};
use seawall_core::ports::store::{BeginTurn, EndTurn, NewConversation, SandboxRow, Stores};
use std::{any::Any, sync::Arc};

/// What a case has to work with: stores of its own, and two accounts.
#[derive(Clone)]
pub struct Cx {
    pub stores: Stores,
    pub account: AccountId,
    /// Who must see nothing.
    pub stranger: AccountId,
    /// What is removed after the case.
    _substrate: Option<Arc<dyn Any + Send + Sync>>,
}

impl Cx {
    pub async fn new(stores: Stores, substrate: Option<Arc<dyn Any + Send + Sync>>) -> Result<Cx> {
        let [account, stranger] = [AccountId::generate(), AccountId::generate()];
        for (id, name) in [(account, "one"), (stranger, "other")] {
            let settings = serde_json::Map::new();
            stores.accounts.create(&Account::new(id, name.into(), settings, now())).await?;
        }
        Ok(Cx { stores, account, stranger, _substrate: substrate })
    }

    pub async fn conversation(&self) -> Result<ConversationId> {
        let new = conversation();
        self.stores.conversations.ensure(self.account, &new).await?;
        Ok(new.id)
    }

    /// One that has begun.
    pub async fn turn(&self, conversation: ConversationId) -> Result<Turn> {
        Ok(self.stores.turns.begin(self.account, None, &begin(conversation)).await?)
    }
}

/// To the microsecond, as stores keep it.
pub fn now() -> Timestamp {
    Timestamp::from_microsecond(Timestamp::now().as_microsecond()).unwrap()
}

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

pub fn conversation() -> NewConversation {
    NewConversation {
        id: ConversationId::generate(),
        organization_id: None,
        agent_id: None,
        template: None,
        sandbox_id: None,
        created_at: now(),
    }
}

pub fn message(conversation: ConversationId, turn: Option<TurnId>, role: Role, body: &str) -> Message {
    Message {
        id: MessageId::generate(),
        conversation_id: conversation,
        turn_id: turn,
        role,
        body: body.to_owned(),
        usage: None,
        tool_calls: Vec::new(),
        created_at: now(),
        revision: 0,
    }
}

pub fn begin(conversation: ConversationId) -> BeginTurn {
    let id = TurnId::generate();
    BeginTurn {
        id,
        conversation_id: conversation,
        sandbox_id: None,
        template: None,
        prompt: message(conversation, Some(id), Role::User, "what is 6 times 7?"),
        answer_id: MessageId::generate(),
        created_at: now(),
        first_event: None,
        lease: None,
        boot: None,
    }
}

pub const USAGE: Usage = Usage { input_tokens: 100, output_tokens: 20, cache_tokens: 3 };

pub fn end(turn: &Turn) -> EndTurn {
    let answer = message(turn.conversation_id, Some(turn.id), Role::Assistant, "42");
    EndTurn {
        id: turn.id,
        state: TurnState::Completed,
        error: None,
        usage: USAGE,
        answer: Some(Message { id: turn.answer_id, usage: Some(USAGE), ..answer }),
        ended_at: now(),
    }
}

pub fn sandbox(account: AccountId) -> SandboxRow {
    SandboxRow {
        id: SandboxId::generate(),
        account_id: account,
        name: None,
        provider: "native".into(),
        node: Some("node-1".into()),
        template: None,
        spec: SandboxSpec::default(),
        state: SandboxState::Creating,
        reason: None,
        removing: None,
        unsynced: None,
        metadata: serde_json::Map::new(),
        created_at: now(),
        started_at: None,
        last_used_at: now(),
        version: 1,
    }
}

/// That a call failed, and how.
#[track_caller]
pub fn ensure_kind<T>(result: seawall_core::Result<T>, wanted: ErrorKind) -> Result<()> {
    match result {
        Ok(_) => anyhow::bail!("it succeeded, and should have failed as {wanted:?}"),
        Err(error) => {
            ensure!(error.kind() == wanted, "{:?} and not {wanted:?}: {}", error.kind(), error.chain())
        }
    }
    Ok(())
}
