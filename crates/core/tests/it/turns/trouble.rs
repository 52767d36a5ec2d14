//! Stores that fail as told, lose their replies, or do not answer for a while.

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
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::watch;

/// The calls that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    Begin,
    Append,
    End,
    GetTurn,
    GetMessage,
    Renew,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It is not done; trying again may help.
    Fails,
    /// It is done, and the same error is told.
    LosesTheReply,
    /// It is not done, and never will be.
    Breaks,
}

/// What goes wrong from now on. Clones are one plan.
#[derive(Debug, Clone)]
pub struct Trouble {
    planned: Arc<Mutex<HashMap<Call, (u32, How)>>>,
    /// False: every call waits, as on a machine that is frozen.
    open: watch::Sender<bool>,
}

impl Default for Trouble {
    fn default() -> Self {
        Trouble { planned: Arc::default(), open: watch::Sender::new(true) }
    }
}

impl Trouble {
    /// The next `times` calls.
    pub fn next(&self, call: Call, times: u32, how: How) {
        self.planned.lock().unwrap().insert(call, (times, how));
    }

    pub fn heal(&self) {
        self.planned.lock().unwrap().clear();
    }

    pub fn freeze(&self) {
        self.open.send_replace(false);
    }

    pub fn thaw(&self) {
        self.open.send_replace(true);
    }

    /// The stores of a machine that has this trouble.
    pub fn around(&self, stores: Stores) -> Stores {
        Stores {
            turns: Arc::new(Troubled { inner: stores.turns.clone(), trouble: self.clone() }),
            leases: Arc::new(Troubled { inner: stores.leases.clone(), trouble: self.clone() }),
            messages: Arc::new(Troubled { inner: stores.messages.clone(), trouble: self.clone() }),
            ..stores
        }
    }

    fn due(&self, call: Call) -> Option<How> {
        let mut planned = self.planned.lock().unwrap();
        let (times, how) = planned.get_mut(&call).filter(|(times, _)| *times > 0)?;
        *times -= 1;
        Some(*how)
    }

    async fn pass(&self) {
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }

    async fn meet<T>(&self, call: Call, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.pass().await;
        match self.due(call) {
            None => work.await,
            Some(How::Fails) => Err(Error::unavailable("a test made it fail")),
            Some(How::LosesTheReply) => match work.await {
                Ok(_) => Err(Error::unavailable("a test lost the reply")),
                Err(error) => Err(error),
            },
            Some(How::Breaks) => Err(Error::internal("a test broke it")),
        }
    }
}

/// A store with trouble.
struct Troubled<S: ?Sized> {
    inner: Arc<S>,
    trouble: Trouble,
}

#[async_trait]
impl TurnStore for Troubled<dyn TurnStore> {
    async fn begin(&self, account: AccountId, fence: Option<&Fence>, turn: &BeginTurn) -> Result<Turn> {
        self.trouble.meet(Call::Begin, self.inner.begin(account, fence, turn)).await
    }

    async fn end(&self, account: AccountId, fence: Option<&Fence>, end: &EndTurn) -> Result<Conversation> {
        self.trouble.meet(Call::End, self.inner.end(account, fence, end)).await
    }

    async fn request_cancel(&self, account: AccountId, id: TurnId, at: Timestamp) -> Result<bool> {
        self.trouble.pass().await;
        self.inner.request_cancel(account, id, at).await
    }

    async fn save_answer(&self, account: AccountId, fence: Option<&Fence>, answer: &Message) -> Result<()> {
        self.trouble.pass().await;
        self.inner.save_answer(account, fence, answer).await
    }

    async fn get(&self, account: AccountId, id: TurnId) -> Result<Turn> {
        self.trouble.meet(Call::GetTurn, self.inner.get(account, id)).await
    }

    async fn list(
        &self,
        account: AccountId,
        conversation: ConversationId,
        page: &Page,
    ) -> Result<Paged<Turn>> {
        self.trouble.pass().await;
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
        let append = self.inner.append_events(account, fence, turn, first, events, output_offset);
        self.trouble.meet(Call::Append, append).await
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
        self.trouble.pass().await;
        self.inner.events(account, turn, from, limit).await
    }

    async fn running(&self, page: &Page) -> Result<Paged<RunningTurn>> {
        self.trouble.pass().await;
        self.inner.running(page).await
    }

    async fn running_in(&self, account: AccountId, sandbox: SandboxId) -> Result<Option<TurnId>> {
        self.trouble.pass().await;
        self.inner.running_in(account, sandbox).await
    }

    async fn summary(&self, account: AccountId, turn: TurnId) -> Result<Option<String>> {
        self.trouble.pass().await;
        self.inner.summary(account, turn).await
    }

    async fn boot(&self, account: AccountId, id: TurnId) -> Result<Option<String>> {
        self.trouble.pass().await;
        self.inner.boot(account, id).await
    }
}

#[async_trait]
impl Leases for Troubled<dyn Leases> {
    async fn acquire(&self, name: &str, holder: &str, time: Duration) -> Result<Option<Lease>> {
        self.trouble.pass().await;
        self.inner.acquire(name, holder, time).await
    }

    async fn take_over(&self, name: &str, holder: &str, time: Duration) -> Result<Takeover> {
        self.trouble.pass().await;
        self.inner.take_over(name, holder, time).await
    }

    async fn renew(&self, lease: &Lease, time: Duration) -> Result<bool> {
        self.trouble.meet(Call::Renew, self.inner.renew(lease, time)).await
    }

    async fn holds(&self, fence: &Fence) -> Result<bool> {
        self.trouble.pass().await;
        self.inner.holds(fence).await
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        self.trouble.pass().await;
        self.inner.release(lease).await
    }
}

#[async_trait]
impl Messages for Troubled<dyn Messages> {
    async fn put(&self, account: AccountId, messages: &[Message]) -> Result<()> {
        self.trouble.pass().await;
        self.inner.put(account, messages).await
    }

    async fn get(&self, account: AccountId, conversation: ConversationId, id: MessageId) -> Result<Message> {
        self.trouble.meet(Call::GetMessage, self.inner.get(account, conversation, id)).await
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
        self.trouble.pass().await;
        self.inner.list(account, conversation, direction, page).await
    }

    async fn delete_all(&self, account: AccountId, conversation: ConversationId) -> Result<()> {
        self.trouble.pass().await;
        self.inner.delete_all(account, conversation).await
    }
}
