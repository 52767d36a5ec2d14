//! Stores that fail as told.

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use seawall_api::{
    AccountId, ConversationId, MessageId, SandboxId, TurnId,
    conversation::{Conversation, Message, Turn},
};
use seawall_core::{
    Error, Result,
    ports::store::{
        BeginTurn, Direction, EndTurn, Fence, Lease, Leases, Messages, Page, Paged, RunningTurn, Stores,
        Takeover, TurnEvent, Turns as TurnStore,
    },
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

/// The calls that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    BeginTurn,
    GetTurn,
    CancelTurn,
    PutMessage,
    AcquireLease,
}

/// How a call goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// It fails, and nothing was done.
    FailBefore,
    /// It was done, and its answer is lost.
    FailAfter,
    PanicAfter,
    /// It was done, and never returns.
    HangAfter,
}

/// What goes wrong from now on. Clones are one plan.
#[derive(Debug, Clone, Default)]
pub struct Trouble(Arc<Mutex<Plan>>);

#[derive(Debug, Default)]
struct Plan {
    troubles: BTreeMap<Call, Manner>,
    /// How often each was done.
    done: BTreeMap<Call, usize>,
    /// How often each was called.
    calls: BTreeMap<Call, usize>,
}

impl Trouble {
    /// From now on, until it is healed.
    pub fn with(&self, call: Call) {
        self.plan(call, Manner::FailBefore);
    }

    pub fn plan(&self, call: Call, manner: Manner) {
        self.0.lock().unwrap().troubles.insert(call, manner);
    }

    pub fn heal(&self) {
        self.0.lock().unwrap().troubles.clear();
    }

    /// How often a call was done, whatever became of its answer.
    pub fn done(&self, call: Call) -> usize {
        self.0.lock().unwrap().done.get(&call).copied().unwrap_or(0)
    }

    pub fn around(&self, stores: Stores) -> Stores {
        Stores {
            turns: Arc::new(Troubled { inner: stores.turns.clone(), trouble: self.clone() }),
            messages: Arc::new(Troubled { inner: stores.messages.clone(), trouble: self.clone() }),
            leases: Arc::new(Troubled { inner: stores.leases.clone(), trouble: self.clone() }),
            ..stores
        }
    }

    /// How often it was called.
    pub fn calls(&self, call: Call) -> usize {
        self.0.lock().unwrap().calls.get(&call).copied().unwrap_or(0)
    }

    fn meet(&self, call: Call) -> Result<()> {
        let failed = || Error::unavailable("a test made it fail");
        let mut plan = self.0.lock().unwrap();
        *plan.calls.entry(call).or_default() += 1;
        match plan.troubles.get(&call) {
            Some(Manner::FailBefore) => Err(failed()),
            _ => Ok(()),
        }
    }

    /// Does it, with what goes wrong before and after.
    async fn around_call<T>(&self, call: Call, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.meet(call)?;
        let done = work.await?;
        let manner = {
            let mut plan = self.0.lock().unwrap();
            *plan.done.entry(call).or_default() += 1;
            plan.troubles.get(&call).copied()
        };
        match manner {
            None => Ok(done),
            Some(Manner::PanicAfter) => panic!("a test made it panic"),
            Some(Manner::HangAfter) => std::future::pending().await,
            Some(_) => Err(Error::unavailable("a test lost its answer")),
        }
    }
}

struct Troubled<S: ?Sized> {
    inner: Arc<S>,
    trouble: Trouble,
}

#[async_trait]
impl TurnStore for Troubled<dyn TurnStore> {
    async fn begin(&self, account: AccountId, fence: Option<&Fence>, turn: &BeginTurn) -> Result<Turn> {
        self.trouble.around_call(Call::BeginTurn, self.inner.begin(account, fence, turn)).await
    }

    async fn end(&self, account: AccountId, fence: Option<&Fence>, end: &EndTurn) -> Result<Conversation> {
        self.inner.end(account, fence, end).await
    }

    async fn request_cancel(&self, account: AccountId, id: TurnId, at: Timestamp) -> Result<bool> {
        self.trouble.around_call(Call::CancelTurn, self.inner.request_cancel(account, id, at)).await
    }

    async fn save_answer(&self, account: AccountId, fence: Option<&Fence>, answer: &Message) -> Result<()> {
        self.inner.save_answer(account, fence, answer).await
    }

    async fn get(&self, account: AccountId, id: TurnId) -> Result<Turn> {
        self.trouble.meet(Call::GetTurn)?;
        self.inner.get(account, id).await
    }

    async fn list(
        &self,
        account: AccountId,
        conversation: ConversationId,
        page: &Page,
    ) -> Result<Paged<Turn>> {
        self.inner.list(account, conversation, page).await
    }

    async fn append_events(
        &self,
        account: AccountId,
        fence: Option<&Fence>,
        turn: TurnId,
        first: u64,
        events: &[Bytes],
        output_offset: u64,
    ) -> Result<()> {
        self.inner.append_events(account, fence, turn, first, events, output_offset).await
    }

    async fn event_sizes(&self, account: AccountId, turn: TurnId, from: u64, limit: u32) -> Result<Vec<u64>> {
        self.inner.event_sizes(account, turn, from, limit).await
    }

    async fn events(
        &self,
        account: AccountId,
        turn: TurnId,
        from: u64,
        limit: u32,
    ) -> Result<Vec<TurnEvent>> {
        self.inner.events(account, turn, from, limit).await
    }

    async fn running(&self, page: &Page) -> Result<Paged<RunningTurn>> {
        self.inner.running(page).await
    }

    async fn running_in(&self, account: AccountId, sandbox: SandboxId) -> Result<Option<TurnId>> {
        self.inner.running_in(account, sandbox).await
    }

    async fn summary(&self, account: AccountId, turn: TurnId) -> Result<Option<String>> {
        self.inner.summary(account, turn).await
    }

    async fn boot(&self, account: AccountId, id: TurnId) -> Result<Option<String>> {
        self.inner.boot(account, id).await
    }
}

#[async_trait]
impl Leases for Troubled<dyn Leases> {
    async fn acquire(&self, name: &str, holder: &str, time: Duration) -> Result<Option<Lease>> {
        self.trouble.meet(Call::AcquireLease)?;
        self.inner.acquire(name, holder, time).await
    }

    async fn take_over(&self, name: &str, holder: &str, time: Duration) -> Result<Takeover> {
        self.inner.take_over(name, holder, time).await
    }

    async fn renew(&self, lease: &Lease, time: Duration) -> Result<bool> {
        self.inner.renew(lease, time).await
    }

    async fn holds(&self, fence: &Fence) -> Result<bool> {
        self.inner.holds(fence).await
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        self.inner.release(lease).await
    }
}

#[async_trait]
impl Messages for Troubled<dyn Messages> {
    async fn put(&self, account: AccountId, messages: &[Message]) -> Result<()> {
        self.trouble.meet(Call::PutMessage)?;
        self.inner.put(account, messages).await
    }

    async fn get(&self, account: AccountId, conversation: ConversationId, id: MessageId) -> Result<Message> {
        self.inner.get(account, conversation, id).await
    }

    async fn size(&self, account: AccountId, conversation: ConversationId, id: MessageId) -> Result<u64> {
        self.inner.size(account, conversation, id).await
    }

    async fn sizes(
        &self,
        account: AccountId,
        conversation: ConversationId,
        direction: Direction,
        page: &Page,
    ) -> Result<Vec<u64>> {
        self.inner.sizes(account, conversation, direction, page).await
    }

    async fn list(
        &self,
        account: AccountId,
        conversation: ConversationId,
        direction: Direction,
        page: &Page,
    ) -> Result<Paged<Message>> {
        self.inner.list(account, conversation, direction, page).await
    }

    async fn delete_all(&self, account: AccountId, conversation: ConversationId) -> Result<()> {
        self.inner.delete_all(account, conversation).await
    }
}
