//! Who asks a server, and who follows a turn: also one that is killed, and comes back.

use super::http::{Answer, Ask, Stream, ask};
use serde_json::{Value, json};

/// A new conversation, with a sandbox of its own.
pub const ANY: &str = "/conversations/new/sandbox/auto";

/// An address, and the key by which one is known there.
#[derive(Debug, Clone, Default)]
pub struct Client {
    pub address: String,
    pub key: String,
}

impl Client {
    pub fn ask(&self, method: &str, path: &str) -> Ask {
        ask(method, path).header("authorization", format!("Bearer {}", self.key))
    }

    pub fn send(&self, ask: &Ask) -> Answer {
        ask.send(&self.address).unwrap_or_else(|error| panic!("{ask:?}: {error}"))
    }

    /// The status, and the body. Null is none.
    pub fn call(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let ask = self.ask(method, path);
        let answer = self.send(&if body.is_null() { ask } else { ask.json(body) });
        (answer.status, answer.json())
    }

    /// Must succeed; the body.
    pub fn done(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, answer) = self.call(method, path, body);
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        answer
    }

    pub fn get(&self, path: &str) -> Value {
        self.done("GET", path, &Value::Null)
    }

    pub fn items(&self, path: &str) -> Vec<Value> {
        self.get(path)["items"].as_array().unwrap().clone()
    }

    /// Begins a turn.
    pub fn turn(&self, path: &str, prompt: &str) -> Followed {
        self.turn_with(path, &json!({"prompt": prompt}))
    }

    pub fn turn_with(&self, path: &str, body: &Value) -> Followed {
        Followed::of(self.send(&self.ask("POST", path).json(body)))
    }

    /// A turn of a conversation, to its end; what it said.
    pub fn said(&self, conversation: &str, prompt: &str) -> String {
        let mut view = self.turn(&auto(conversation), prompt);
        assert_eq!(view.follow_to_the_end(), "completed");
        view.text()
    }

    /// A turn that began before, from its first event on.
    pub fn follow(&self, place: &str) -> Followed {
        Followed::of(self.send(&self.ask("GET", &format!("{place}/events"))))
    }

    /// Role and body of each.
    pub fn messages(&self, conversation: &str) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let found = self.items(&format!("/conversations/{conversation}/messages"));
        found.iter().map(|message| (text(&message["role"]), text(&message["body"]))).collect()
    }

    pub fn stats(&self, conversation: &str) -> Value {
        self.get(&format!("/conversations/{conversation}"))["stats"].clone()
    }

    pub fn sandbox(&self, id: &str) -> Value {
        self.get(&format!("/sandboxes/{id}"))
    }

    /// A new one, without a conversation.
    pub fn make_sandbox(&self) -> String {
        self.done("POST", "/sandboxes", &json!({}))["id"].as_str().unwrap().to_owned()
    }

    /// Whether it ended by itself, for this reason.
    pub fn ended_by(&self, id: &str, reason: &str) -> bool {
        let now = self.sandbox(id);
        now["state"] == "stopped" && now["reason"] == reason
    }

    /// How many versions of its files there are.
    pub fn versions(&self, id: &str) -> usize {
        self.items(&format!("/sandboxes/{id}/versions")).len()
    }

    /// A command that succeeds; its stdout.
    pub fn exec(&self, id: &str, command: &str) -> String {
        let done = self.done("POST", &format!("/sandboxes/{id}/exec"), &json!({"command": command}));
        assert_eq!(done["exit_code"], 0, "{done}");
        done["stdout"].as_str().unwrap().to_owned()
    }
}

/// Where the next turn of a conversation is begun.
pub fn auto(conversation: &str) -> String {
    format!("/conversations/{conversation}/sandbox/auto")
}

/// Who follows a turn, and all that was seen of it.
pub struct Followed {
    stream: Option<Stream>,
    pub seen: Vec<Value>,
}

impl Followed {
    pub fn of(answer: Answer) -> Followed {
        let status = answer.status;
        if status != 200 {
            panic!("{status} {}", answer.text());
        }
        let kind = answer.header("content-type").unwrap_or_default();
        assert!(kind.starts_with("text/event-stream"), "{kind}");
        Followed { stream: Some(answer.stream()), seen: Vec::new() }
    }

    /// One event more. False: the stream ended, or broke off.
    fn take(&mut self) -> bool {
        let Some(sent) = self.stream.as_mut().and_then(|stream| stream.next()) else { return false };
        // So none is missing, and none comes twice, however often one comes back.
        assert_eq!(sent.id, self.seen.len() as u64, "behind {:?} comes {:?}", self.seen.last(), sent.event);
        self.seen.push(sent.event);
        true
    }

    fn until(&mut self, what: &str, holds: impl Fn(&Followed) -> bool) {
        while !holds(self) {
            assert!(self.take(), "the stream ended before `{what}`: {:?}", self.seen);
        }
    }

    /// Until the answer has this text.
    pub fn until_said(&mut self, text: &str) {
        self.until(text, |seen| seen.text().contains(text));
    }

    /// Until there is an event of this type.
    pub fn until_seen(&mut self, kind: &str) {
        self.until(kind, |seen| !seen.all(kind).is_empty());
    }

    /// To the end of the stream. True: that was the end of the turn.
    pub fn rest(&mut self) -> bool {
        while self.take() {}
        self.seen.last().is_some_and(|last| last["type"] == "turn_ended")
    }

    /// To the end of the turn; the state that it ended in.
    pub fn follow_to_the_end(&mut self) -> String {
        assert!(self.rest(), "the stream ended before its turn: {:?}", self.seen);
        self.ended()["state"].as_str().unwrap().to_owned()
    }

    /// The last event.
    pub fn ended(&self) -> &Value {
        let last = self.seen.last().unwrap();
        assert_eq!(last["type"], "turn_ended");
        last
    }

    pub fn hang_up(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.hang_up();
        }
    }

    /// Goes on after the last event that was seen, at a server that may be another one.
    pub fn come_back(&mut self, client: &Client) {
        let last = self.seen.len() - 1;
        let ask = client.ask("GET", &format!("{}/events", self.place())).header("last-event-id", last);
        self.stream = Followed::of(client.send(&ask)).stream;
    }

    /// What the stream said beside its events.
    pub fn comments(&self) -> &[String] {
        self.stream.as_ref().map(|stream| stream.comments.as_slice()).unwrap_or_default()
    }

    /// A field of the first event.
    pub fn id(&self, field: &str) -> String {
        let first = &self.seen[0];
        assert_eq!(first["type"], "turn_started");
        first[field].as_str().unwrap_or_else(|| panic!("no {field} in {first}")).to_owned()
    }

    /// Where the turn is.
    pub fn place(&self) -> String {
        format!("/conversations/{}/turns/{}", self.id("conversation_id"), self.id("turn_id"))
    }

    pub fn all(&self, kind: &str) -> Vec<&Value> {
        self.seen.iter().filter(|event| event["type"] == kind).collect()
    }

    pub fn text(&self) -> String {
        self.all("text").iter().map(|event| event["text"].as_str().unwrap()).collect()
    }
}
