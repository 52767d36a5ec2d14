//! Turns: what begins and ends exactly once, what it used, and the log that streams are resumed from.

use super::{Fence, Page, Paged};
use crate::Result;
use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use seawall_api::{
    AccountId, ConversationId, MessageId, SandboxId, TurnId,
    conversation::{Conversation, Message, Turn, TurnState, Usage},
};
use std::time::Duration;

#[derive(Debug, Clone, PartialEq)]
pub struct BeginTurn {
    pub id: TurnId,
    pub conversation_id: ConversationId,
    pub sandbox_id: Option<SandboxId>,
    pub template: Option<String>,
    /// Of this conversation and this turn.
    pub prompt: Message,
    /// Under which the answer will be.
    pub answer_id: MessageId,
    pub created_at: Timestamp,
    /// None: whoever runs it stores it.
    pub first_event: Option<Bytes>,
    /// For whoever begins it and runs it too: held from its first moment on, with epoch 1.
    pub lease: Option<NewLease>,
    /// The boot of the machine that begins it, where that is known: see [`Turns::boot`].
    pub boot: Option<String>,
}

/// A turn that runs, as rounds see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunningTurn {
    pub id: TurnId,
    pub account_id: AccountId,
    pub sandbox_id: Option<SandboxId>,
    pub created_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq)]
pub struct NewLease {
    pub name: String,
    pub holder: String,
    pub time: Duration,
}

#[derive(Debug, Clone, PartialEq)]
pub struct EndTurn {
    pub id: TurnId,
    /// Not `running`.
    pub state: TurnState,
    pub error: Option<String>,
    pub usage: Usage,
    /// None: there was none.
    pub answer: Option<Message>,
    pub ended_at: Timestamp,
}

/// One event of a turn, as it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnEvent {
    /// From 0 on, without gaps.
    pub number: u64,
    pub data: Bytes,
}

#[async_trait]
pub trait Turns: Send + Sync {
    /// In one transaction: the turn with the next number, its prompt in the outbox, one more message in the
    /// totals, and what else `turn` names. `conflict` while another turn of the conversation, or with its sandbox, runs. The same turn twice is
    /// one, and its row as it is now comes back. Where the conversation has messages already, the times of the turn and of
    /// its prompt are raised above its last change, so that a clock that steps back puts no message before an earlier one.
    async fn begin(&self, account: AccountId, fence: Option<&Fence>, turn: &BeginTurn) -> Result<Turn>;

    /// In one transaction: the usage row, unique by turn; only where it was inserted the totals grow, also by one
    /// message where there is an answer, those of the sandbox (V6) too, and the answer is in the outbox. What the
    /// turn's runs were charged ([`Tokens`](super::Tokens)) becomes part of the sums of its days, and where the turn
    /// used more than that, the rest is charged on the day of `ended_at`. The second time nothing happens, whatever
    /// it says. What comes back is the conversation as it is now.
    async fn end(&self, account: AccountId, fence: Option<&Fence>, end: &EndTurn) -> Result<Conversation>;

    /// Somebody wants its end, wherever it runs: see [`Turn::cancelling`]. False where it is over.
    async fn request_cancel(&self, account: AccountId, id: TurnId, at: Timestamp) -> Result<bool>;

    /// More of an answer that grows, into the outbox. `conflict` where the turn has ended.
    async fn save_answer(&self, account: AccountId, fence: Option<&Fence>, answer: &Message) -> Result<()>;

    async fn get(&self, account: AccountId, id: TurnId) -> Result<Turn>;

    /// Newest first.
    async fn list(
        &self,
        account: AccountId,
        conversation: ConversationId,
        page: &Page,
    ) -> Result<Paged<Turn>>;

    /// Events from `first` on, and how far the agent's output was read for them. Those that are there already are
    /// passed over, so that the call can be repeated; a gap is `conflict`. Of an embedded database a loss of power may
    /// undo it until the turn has ended: the sandbox is on the same machine, and its output is gone then too.
    async fn append_events(
        &self,
        account: AccountId,
        fence: Option<&Fence>,
        turn: TurnId,
        first: u64,
        events: &[Bytes],
        output_offset: u64,
    ) -> Result<()>;

    /// The sizes of the events from a number on, in bytes, at most `limit` of them: for who has to know that before they are
    /// read.
    async fn event_sizes(&self, account: AccountId, turn: TurnId, from: u64, limit: u32) -> Result<Vec<u64>>;

    /// In order, from a number on, at most `limit` of them.
    async fn events(&self, account: AccountId, turn: TurnId, from: u64, limit: u32)
    -> Result<Vec<TurnEvent>>;

    /// Turns that run, of all accounts, oldest first: for a server that takes them up again.
    async fn running(&self, page: &Page) -> Result<Paged<RunningTurn>>;

    /// The turn of an account that runs in one of its sandboxes. There is one at the most.
    async fn running_in(&self, account: AccountId, sandbox: SandboxId) -> Result<Option<TurnId>>;

    /// The boot of the machine that began a turn. `None` where that is not known.
    async fn boot(&self, account: AccountId, id: TurnId) -> Result<Option<String>>;
}
