//! Conversations, their messages and their turns.

use crate::{
    Client, Page, Result, TurnEvents,
    call::Call,
    events::{Begin, Events, Place},
};
use reqwest::Method;
use seawall_api::{
    ConversationId, MessageId, SandboxId, TurnId,
    conversation::{Conversation, Message, Turn},
    http::{Cancelled, CreateConversation, Encoding, List, PatchConversation, Prompt},
};
use std::time::Duration;

/// What to list. None: all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListConversations {
    pub page: Page,
    pub organization_id: Option<String>,
    pub agent_id: Option<String>,
    pub sandbox_id: Option<SandboxId>,
    /// By when they were made, and not by their last change.
    pub by_creation: bool,
}

/// A turn that is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TurnRequest {
    /// None: a new one.
    pub conversation: Option<ConversationId>,
    /// None: the conversation's, or a new one.
    pub sandbox: Option<SandboxId>,
    /// Take the sandbox even where the conversation has another.
    pub relink: bool,
    /// Wait so long for the turn before.
    pub wait: Option<Duration>,
    pub prompt: Prompt,
}

impl Client {
    /// The latest first.
    pub async fn conversations(&self, list: &ListConversations) -> Result<List<Conversation>> {
        let call = self
            .get(&["conversations"])
            .page(&list.page)
            .maybe("organization_id", list.organization_id.as_deref())
            .maybe("agent_id", list.agent_id.as_deref())
            .maybe("sandbox_id", list.sandbox_id)
            .maybe("sort", list.by_creation.then_some("created"));
        call.answer().await
    }

    /// One with the same id that is there stays as it is.
    pub async fn create_conversation(&self, new: &CreateConversation) -> Result<Conversation> {
        self.post(&["conversations"]).json(new).answer().await
    }

    pub async fn conversation(&self, id: ConversationId) -> Result<Conversation> {
        self.get(&["conversations", &id.to_string()]).answer().await
    }

    pub async fn update_conversation(
        &self,
        id: ConversationId,
        changes: &PatchConversation,
    ) -> Result<Conversation> {
        self.change(Method::PATCH, &["conversations", &id.to_string()]).json(changes).answer().await
    }

    /// With all that was said in it. `terminate`: its sandbox too; none: as the server has it.
    pub async fn delete_conversation(&self, id: ConversationId, terminate: Option<bool>) -> Result<()> {
        let call = self.change(Method::DELETE, &["conversations", &id.to_string()]);
        call.maybe("terminate", terminate).done().await
    }

    pub async fn messages(
        &self,
        id: ConversationId,
        newest_first: bool,
        page: &Page,
    ) -> Result<List<Message>> {
        let order = if newest_first { "newest" } else { "oldest" };
        let call = self.get(&["conversations", &id.to_string(), "messages"]);
        call.query("order", order).page(page).answer().await
    }

    pub async fn message(&self, id: ConversationId, message: MessageId) -> Result<Message> {
        self.get(&["conversations", &id.to_string(), "messages", &message.to_string()]).answer().await
    }

    /// Begins a turn and follows it. Hanging up ends nothing but the view.
    pub async fn prompt(&self, ask: &TurnRequest) -> Result<TurnEvents> {
        // The same key means the same turn, however often it is asked for.
        let begin =
            Begin { call: self.turn_call(ask), again: true, sandbox: None, encoding: Encoding::default() };
        Events::begin(self.clone(), begin).opened().await
    }

    /// Begins a turn, and returns when it is recorded.
    pub async fn begin_turn(&self, ask: &TurnRequest) -> Result<Turn> {
        self.turn_call(ask).query("stream", false).answer().await
    }

    fn turn_call(&self, ask: &TurnRequest) -> Call {
        let conversation = ask.conversation.map_or_else(|| "new".to_owned(), |id| id.to_string());
        let sandbox = ask.sandbox.map_or_else(|| "auto".to_owned(), |id| id.to_string());
        let call = self.post(&["conversations", &conversation, "sandbox", &sandbox]);
        let call = call.maybe("relink", ask.relink.then_some(true)).maybe("wait", ask.wait.map(seconds));
        call.json(&ask.prompt)
    }

    /// The latest first.
    pub async fn turns(&self, conversation: ConversationId, page: &Page) -> Result<List<Turn>> {
        self.get(&["conversations", &conversation.to_string(), "turns"]).page(page).answer().await
    }

    pub async fn turn(&self, conversation: ConversationId, turn: TurnId) -> Result<Turn> {
        self.get(&["conversations", &conversation.to_string(), "turns", &turn.to_string()]).answer().await
    }

    /// The events of a turn from a number on, to its end.
    pub fn turn_events(&self, conversation: ConversationId, turn: TurnId, from: u64) -> TurnEvents {
        Events::follow(self.clone(), Place::Turn { conversation, turn }, from)
    }

    /// Ends a turn; what it did is kept.
    pub async fn cancel_turn(&self, conversation: ConversationId, turn: TurnId) -> Result<Cancelled> {
        let path = ["conversations", &conversation.to_string(), "turns", &turn.to_string(), "cancel"];
        self.post(&path).answer().await
    }
}

/// Whole ones: whoever waits a little waits long enough.
fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn waits_are_whole_seconds() {
        assert_eq!([0, 1, 1000, 1001].map(|ms| seconds(Duration::from_millis(ms))), [0, 1, 1, 2]);
    }

    #[tokio::test]
    async fn lists_are_asked_for_as_they_are_wanted() {
        let server = testing::serve(vec![testing::answer(r#"{"items":[],"next":"x"}"#)]).await;
        let client = Client::new(&server.url, None).unwrap();
        let list = ListConversations {
            page: Page { limit: Some(5), after: Some("a b".into()) },
            agent_id: Some("me".into()),
            by_creation: true,
            ..ListConversations::default()
        };
        assert_eq!(client.conversations(&list).await.unwrap().next.as_deref(), Some("x"));
        let asked = server.asked().await;
        let wanted = "GET /conversations?limit=5&after=a+b&agent_id=me&sort=created HTTP/1.1";
        assert!(asked[0].starts_with(wanted), "{}", asked[0]);
    }
}
