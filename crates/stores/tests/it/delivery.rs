//! From a transaction by way of the outbox to another store: at least once, under a fixed key.

use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::{
    AccountId, ConversationId, ErrorKind, MessageId, TurnId,
    conversation::{Message, Role, TurnState, Usage},
};
use seawall_core::{
    Error, Result,
    delivery::{Courier, Round},
    ports::store::{BeginTurn, Direction, EndTurn, Messages, NewConversation, Page, Paged, Stores},
    testing::MemoryStore,
};
use seawall_stores::{Db, SqlStore};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Another store that fails so many times, after it has done what it was asked: the answer was lost.
struct Flaky {
    inner: Arc<dyn Messages>,
    failures: AtomicUsize,
}

#[async_trait]
impl Messages for Flaky {
    async fn put(&self, account: AccountId, messages: &[Message]) -> Result<()> {
        self.inner.put(account, messages).await?;
        match self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Err(Error::unavailable("the answer was lost")),
            Err(_) => Ok(()),
        }
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

struct World {
    stores: Stores,
    elsewhere: Arc<Flaky>,
    courier: Courier,
    account: AccountId,
    conversation: ConversationId,
    _folder: tempfile::TempDir,
}

impl World {
    async fn new(failures: usize) -> World {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::sqlite(&folder.path().join("seawall.db")).await.unwrap();
        let stores = SqlStore::with_messages_elsewhere(db).stores();
        let inner = MemoryStore::new().stores().messages;
        let elsewhere = Arc::new(Flaky { inner, failures: AtomicUsize::new(failures) });
        let courier = Courier::new(stores.outbox.clone(), elsewhere.clone());
        let (account, conversation) = (AccountId::generate(), ConversationId::generate());
        let new = NewConversation {
            id: conversation,
            organization_id: None,
            agent_id: None,
            template: None,
            sandbox_id: None,
            created_at: Timestamp::now(),
        };
        stores.conversations.ensure(account, &new).await.unwrap();
        World { stores, elsewhere, courier, account, conversation, _folder: folder }
    }

    fn message(&self, id: MessageId, turn: TurnId, role: Role, revision: u32) -> Message {
        Message {
            id,
            conversation_id: self.conversation,
            turn_id: Some(turn),
            role,
            body: format!("{role} {revision}"),
            usage: None,
            tool_calls: Vec::new(),
            created_at: Timestamp::now(),
            revision,
        }
    }

    /// A whole turn; what its messages are.
    async fn turn(&self) -> [Message; 2] {
        let id = TurnId::generate();
        let prompt = self.message(MessageId::generate(), id, Role::User, 0);
        let answer = self.message(MessageId::generate(), id, Role::Assistant, 1);
        let begin = BeginTurn {
            id,
            conversation_id: self.conversation,
            sandbox_id: None,
            template: None,
            prompt: prompt.clone(),
            answer_id: answer.id,
            created_at: Timestamp::now(),
            first_event: None,
            lease: None,
            boot: None,
        };
        self.stores.turns.begin(self.account, None, &begin).await.unwrap();
        self.stores.turns.save_answer(self.account, None, &answer).await.unwrap();
        let answer = Message { body: "whole".into(), revision: 2, ..answer };
        let end = EndTurn {
            id,
            state: TurnState::Completed,
            error: None,
            usage: Usage::default(),
            answer: Some(answer.clone()),
            ended_at: Timestamp::now(),
        };
        for _ in 0..2 {
            self.stores.turns.end(self.account, None, &end).await.unwrap();
        }
        [prompt, answer]
    }

    /// Rounds until nothing is due. What belongs to one conversation comes one after the other.
    async fn rounds(&self) -> Round {
        let mut all = Round::default();
        loop {
            let round = self.courier.round().await.unwrap();
            all.delivered += round.delivered;
            all.failed += round.failed;
            if round == Round::default() {
                return all;
            }
        }
    }

    async fn there(&self) -> Vec<Message> {
        let page = Page::first(100);
        self.elsewhere
            .list(self.account, self.conversation, Direction::OldestFirst, &page)
            .await
            .unwrap()
            .items
    }
}

#[tokio::test]
async fn m3_messages_reach_their_store_once_each() {
    let world = World::new(0).await;
    let messages = world.turn().await;
    assert!(world.there().await.is_empty(), "nothing but the outbox has them yet");
    assert_eq!(world.courier.round().await.unwrap(), Round { delivered: 1, failed: 0 });
    assert_eq!(world.there().await, messages[..1], "the prompt first");
    assert_eq!(world.rounds().await, Round { delivered: 2, failed: 0 });
    assert_eq!(world.there().await, messages);
    assert_eq!(world.stores.outbox.waiting().await.unwrap(), (0, None));
}

#[tokio::test]
async fn m5_what_fails_is_kept_and_tried_again_under_the_same_key() {
    let world = World::new(2).await;
    let messages = world.turn().await;
    assert_eq!(
        world.rounds().await,
        Round { delivered: 0, failed: 1 },
        "not at once again, and nothing passes it"
    );
    assert_eq!(world.stores.outbox.waiting().await.unwrap().0, 3);
    // Due after a second, and after two more.
    let mut done = 0;
    while done < 3 {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        done += world.rounds().await.delivered;
    }
    assert_eq!(world.there().await, messages, "each once, the newest revision of each");
}

#[tokio::test]
async fn c5_a_deleted_conversation_is_deleted_there_too_and_nothing_comes_after() {
    let world = World::new(0).await;
    world.turn().await;
    world.rounds().await;
    // These have not been delivered when the conversation goes.
    world.turn().await;
    world.stores.conversations.delete(world.account, world.conversation).await.unwrap();
    assert_eq!(world.courier.round().await.unwrap(), Round { delivered: 1, failed: 0 });
    assert!(world.there().await.is_empty());
    let gone = world.stores.conversations.get(world.account, world.conversation).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn c5_what_is_on_its_way_arrives_before_the_deletion() {
    let world = World::new(0).await;
    world.turn().await;
    // Somebody has taken the first, and will take a while.
    let taken = world.stores.outbox.take(10, std::time::Duration::from_millis(300)).await.unwrap();
    assert_eq!(taken.len(), 1);
    world.stores.conversations.delete(world.account, world.conversation).await.unwrap();
    assert_eq!(world.courier.round().await.unwrap(), Round::default(), "the deletion waits");
    tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    assert_eq!(world.courier.round().await.unwrap(), Round { delivered: 1, failed: 0 });
}

#[tokio::test]
async fn c5_a_conversation_made_again_keeps_what_came_after_the_deletion() {
    let world = World::new(0).await;
    world.turn().await;
    let conversations = &world.stores.conversations;
    conversations.delete(world.account, world.conversation).await.unwrap();
    let new = NewConversation {
        id: world.conversation,
        organization_id: None,
        agent_id: None,
        template: None,
        sandbox_id: None,
        created_at: Timestamp::now(),
    };
    conversations.ensure(world.account, &new).await.unwrap();
    let messages = world.turn().await;
    world.rounds().await;
    assert_eq!(world.there().await, messages);
}
