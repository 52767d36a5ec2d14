//! Events of a turn or of a command, over as many connections as it takes.

use crate::{
    Client, Error, Result,
    call::Call,
    sse::{Parser, Sse},
};
use reqwest::{Response, header::HeaderName};
use seawall_api::{
    ConversationId, ErrorKind, ProcessId, SandboxId, TurnId,
    conversation::TurnState,
    event::Event,
    http::{Encoding, ExecEvent},
};
use serde::de::DeserializeOwned;
use std::{fmt, marker::PhantomData, time::Duration};
use tokio::time::{Instant, sleep, timeout};

/// A server says something every 15 seconds. One that does not is gone.
const SILENCE: Duration = Duration::from_secs(60);
/// Connections in a row that may bring nothing, and the pauses between them: about a minute.
const QUIET_TRIES: u32 = 16;
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The events of a turn, each with its number.
pub type TurnEvents = Events<Event>;
/// What a command prints, each with the offset behind it.
pub type ExecEvents = Events<ExecEvent>;

/// What travels as events.
pub trait Streamed: DeserializeOwned + Send {
    /// Nothing comes behind it.
    fn is_last(&self) -> bool;

    /// It begins the stream: there is one.
    fn is_first(&self) -> bool;

    /// Under which name more of the same can be asked for. `sandbox`: where it was started.
    #[doc(hidden)]
    fn place(&self, sandbox: Option<SandboxId>, encoding: Encoding) -> Option<Place>;
}

impl Streamed for Event {
    fn is_last(&self) -> bool {
        matches!(self, Event::TurnEnded { .. })
    }

    fn is_first(&self) -> bool {
        matches!(self, Event::TurnStarted { .. })
    }

    fn place(&self, _: Option<SandboxId>, _: Encoding) -> Option<Place> {
        match self {
            Event::TurnStarted { conversation_id, turn_id, .. } => {
                Some(Place::Turn { conversation: *conversation_id, turn: *turn_id })
            }
            _ => None,
        }
    }
}

impl Streamed for ExecEvent {
    fn is_last(&self) -> bool {
        matches!(self, ExecEvent::Exit { .. })
    }

    fn is_first(&self) -> bool {
        matches!(self, ExecEvent::Started { .. })
    }

    fn place(&self, sandbox: Option<SandboxId>, encoding: Encoding) -> Option<Place> {
        match (self, sandbox) {
            (ExecEvent::Started { process, .. }, Some(sandbox)) => {
                Some(Place::Output { sandbox, process: *process, encoding, follow: true })
            }
            _ => None,
        }
    }
}

/// Where events can be asked for again.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Turn { conversation: ConversationId, turn: TurnId },
    Output { sandbox: SandboxId, process: ProcessId, encoding: Encoding, follow: bool },
}

/// The call by which something begins.
#[derive(Debug, Clone)]
pub(crate) struct Begin {
    pub call: Call,
    /// Making it again means the same, and does it once.
    pub again: bool,
    pub sandbox: Option<SandboxId>,
    pub encoding: Encoding,
}

/// Events to their end. A connection that breaks is made again, and nothing is missed or told twice.
pub struct Events<T> {
    client: Client,
    begin: Option<Begin>,
    place: Option<Place>,
    /// The first that is wanted, while none has come.
    from: u64,
    last: Option<u64>,
    connection: Option<Connection>,
    /// Connections that brought nothing.
    quiet: u32,
    over: bool,
    what: PhantomData<fn() -> T>,
}

impl<T> fmt::Debug for Events<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Events");
        shown.field("place", &self.place).field("last", &self.last).field("over", &self.over);
        shown.finish_non_exhaustive()
    }
}

impl<T: Streamed> Events<T> {
    pub(crate) fn begin(client: Client, begin: Begin) -> Events<T> {
        Events { begin: Some(begin), ..Events::at(client, None, 0) }
    }

    pub(crate) fn follow(client: Client, place: Place, from: u64) -> Events<T> {
        Events::at(client, Some(place), from)
    }

    fn at(client: Client, place: Option<Place>, from: u64) -> Events<T> {
        let (begin, last, connection, quiet, over) = (None, None, None, 0, false);
        Events { client, begin, place, from, last, connection, quiet, over, what: PhantomData }
    }

    /// Makes the connection now. What begins by it has begun when this returns.
    pub(crate) async fn opened(mut self) -> Result<Events<T>> {
        let response = self.call()?.open().await?;
        self.connection = Some(Connection::new(response));
        Ok(self)
    }

    /// The turn that is followed, as soon as it is known.
    pub fn turn(&self) -> Option<(ConversationId, TurnId)> {
        match self.place {
            Some(Place::Turn { conversation, turn }) => Some((conversation, turn)),
            _ => None,
        }
    }

    /// The process that is followed, as soon as it is known.
    pub fn process(&self) -> Option<ProcessId> {
        match self.place {
            Some(Place::Output { process, .. }) => Some(process),
            _ => None,
        }
    }

    /// The next event with its number; none after the last. May be dropped at any await.
    pub async fn next(&mut self) -> Result<Option<(u64, T)>> {
        while !self.over {
            let Some(connection) = &mut self.connection else {
                self.connect().await?;
                continue;
            };
            match connection.next().await {
                Ok(Some(said)) => {
                    if let Some(found) = self.take(said) {
                        return Ok(Some(found));
                    }
                }
                Ok(None) => self.ended().await?,
                Err(why) => self.broke(&why).await?,
            }
        }
        Ok(None)
    }

    /// What was said, where it is an event that is known and new.
    fn take(&mut self, said: Sse) -> Option<(u64, T)> {
        let number = said.id.as_deref().and_then(|id| id.parse::<u64>().ok());
        let number = number.unwrap_or_else(|| self.last.unwrap_or(self.from));
        let known = serde_json::from_str::<T>(&said.data);
        let was_placed = self.place.is_some();
        self.quiet = 0;
        if let Some(connection) = &mut self.connection {
            connection.brought = true;
        }
        let event = match known {
            Ok(event) => event,
            Err(error) => {
                // Of a later version: passed over, as the events' rule is.
                tracing::debug!(%error, "an event that is not known here");
                self.last = Some(number);
                return None;
            }
        };
        if let (false, Some(begin)) = (was_placed, &self.begin) {
            self.place = event.place(begin.sandbox, begin.encoding);
        }
        let told_before = event.is_first() && self.last.is_some();
        self.last = Some(number);
        if event.is_last() {
            self.over = true;
            self.connection = None;
        }
        (!told_before).then_some((number, event))
    }

    /// The call that brings what comes next.
    fn call(&self) -> Result<Call> {
        let call = match (&self.place, &self.begin) {
            (Some(Place::Turn { conversation, turn }), _) => {
                let (conversation, turn) = (conversation.to_string(), turn.to_string());
                let call = self.client.get(&["conversations", &conversation, "turns", &turn, "events"]);
                match self.last {
                    Some(last) => call.header(HeaderName::from_static("last-event-id"), &last.to_string()),
                    None => call.query("from", self.from),
                }
            }
            (Some(Place::Output { sandbox, process, encoding, follow }), _) => {
                let (sandbox, process) = (sandbox.to_string(), process.to_string());
                let call = self.client.get(&["sandboxes", &sandbox, "processes", &process, "output"]);
                let call = call.query("from", self.last.unwrap_or(self.from));
                call.query("follow", follow).query("encoding", word(*encoding))
            }
            (None, Some(begin)) => begin.call.clone(),
            (None, None) => return Err(Error::new(ErrorKind::Internal, "there is nothing to follow")),
        };
        Ok(call)
    }

    async fn connect(&mut self) -> Result<()> {
        let call = self.call()?;
        match call.open().await {
            Ok(response) => {
                self.connection = Some(Connection::new(response));
                Ok(())
            }
            // Servers are started again now and then.
            Err(error) if error.is_retryable() && self.may_ask_again(&error) => self.pause(error).await,
            Err(error) => Err(error),
        }
    }

    /// What is followed may be asked for always; what begins, only where it did not happen or its outcome was not told.
    fn may_ask_again(&self, error: &Error) -> bool {
        let untold = !error.is_answer() || error.problem.nothing_done;
        self.place.is_some() || (untold && self.may_go_on())
    }

    /// Something is known by which it can be asked for again.
    fn may_go_on(&self) -> bool {
        self.place.is_some() || self.begin.as_ref().is_some_and(|begin| begin.again)
    }

    async fn pause(&mut self, error: Error) -> Result<()> {
        self.quiet += 1;
        if self.quiet > QUIET_TRIES {
            return Err(error);
        }
        tracing::debug!(%error, tries = self.quiet, "events are asked for again");
        sleep((PAUSE * 2_u32.pow(self.quiet.min(8))).min(LONGEST_PAUSE)).await;
        Ok(())
    }

    async fn broke(&mut self, why: &str) -> Result<()> {
        // One that held for a while was no vain try.
        if self.connection.take().is_some_and(|connection| connection.since.elapsed() > SILENCE) {
            self.quiet = 0;
        }
        let error = Error::new(ErrorKind::Unavailable, format!("the connection to the server broke ({why})"));
        match self.may_go_on() {
            true => self.pause(error).await,
            false => Err(error),
        }
    }

    /// The server said no more, without the last event.
    async fn ended(&mut self) -> Result<()> {
        let brought = self.connection.as_ref().is_some_and(|connection| connection.brought);
        if matches!(self.place, Some(Place::Output { follow: false, .. })) {
            (self.over, self.connection) = (true, None);
            return Ok(());
        }
        if let (false, Some(Place::Turn { conversation, turn })) = (brought, self.place) {
            // Whoever asks for what comes behind the end gets nothing, and is done.
            let next = self.last.map_or(self.from, |last| last + 1);
            match self.client.turn(conversation, turn).await {
                Ok(turn) if turn.state != TurnState::Running && next > turn.events => {
                    (self.over, self.connection) = (true, None);
                    return Ok(());
                }
                Err(error) if !error.is_retryable() => return Err(error),
                _ => {}
            }
        }
        self.broke("it ended early").await
    }
}

pub(crate) fn word(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Text => "text",
        Encoding::Base64 => "base64",
    }
}

/// One connection, and what was read of it.
struct Connection {
    response: Response,
    parser: Parser,
    since: Instant,
    brought: bool,
}

impl Connection {
    fn new(response: Response) -> Connection {
        Connection { response, parser: Parser::new(), since: Instant::now(), brought: false }
    }

    /// The next event; none when the server ended it. The error is for people.
    async fn next(&mut self) -> Result<Option<Sse>, String> {
        loop {
            if let Some(event) = self.parser.next_event() {
                return Ok(Some(event));
            }
            match timeout(SILENCE, self.response.chunk()).await {
                Ok(Ok(Some(part))) => self.parser.feed(&part).map_err(|error| error.to_string())?,
                Ok(Ok(None)) => return Ok(None),
                Ok(Err(error)) => return Err(crate::error::root(&error)),
                Err(_) => return Err(format!("nothing came for {} s", SILENCE.as_secs())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TurnRequest, testing};
    use seawall_api::http::Prompt;

    fn started(conversation: ConversationId, turn: TurnId) -> String {
        let id = turn.to_string();
        let event = serde_json::json!({
            "type": "turn_started", "conversation_id": conversation, "turn_id": turn, "sandbox_id": id,
            "prompt_id": id, "answer_id": id, "template": "shell",
        });
        format!("id: 0\ndata: {event}\n\n")
    }

    fn ended(number: u64) -> String {
        let event = serde_json::json!({
            "type": "turn_ended", "state": "completed",
            "usage": { "input_tokens": 0, "output_tokens": 0, "cache_tokens": 0 },
            "stats": {
                "messages_exchanged": 2, "total_input_tokens": 0, "total_output_tokens": 0,
                "total_cache_tokens": 0,
            },
        });
        format!("id: {number}\ndata: {event}\n\n")
    }

    fn text(number: u64, text: &str) -> String {
        format!("id: {number}\ndata: {{\"type\":\"text\",\"text\":\"{text}\"}}\n\n")
    }

    async fn texts(events: &mut TurnEvents) -> Vec<(u64, String)> {
        let mut found = Vec::new();
        while let Some((number, event)) = events.next().await.unwrap() {
            if let Event::Text { text, .. } = event {
                found.push((number, text));
            }
        }
        found
    }

    fn ask() -> TurnRequest {
        let prompt = Prompt { prompt: "ls".into(), ..Prompt::default() };
        TurnRequest { prompt, ..TurnRequest::default() }
    }

    #[tokio::test]
    async fn a_turn_is_followed_over_broken_connections() {
        let (conversation, turn) = (ConversationId::generate(), TurnId::generate());
        let first = started(conversation, turn) + &text(1, "a") + ": keep-alive\n\nid: 2\nda";
        // An event that is not known, and one that is.
        let second = "id: 2\ndata: {\"type\":\"later\"}\n\n".to_owned() + &text(3, "b") + &ended(4);
        let server = testing::serve(vec![testing::events(&first), testing::events(&second)]).await;
        let client = Client::new(&server.url, None).unwrap();
        let mut events = client.prompt(&ask()).await.unwrap();
        assert_eq!(texts(&mut events).await, [(1, "a".to_owned()), (3, "b".to_owned())]);
        assert_eq!(events.turn(), Some((conversation, turn)));
        let asked = server.asked().await;
        assert!(asked[0].starts_with("POST /conversations/new/sandbox/auto"), "{}", asked[0]);
        let again = format!("GET /conversations/{conversation}/turns/{turn}/events");
        assert!(asked[1].starts_with(&again), "{}", asked[1]);
        assert_eq!(testing::header(&asked[1], "last-event-id").as_deref(), Some("1"));
    }

    #[tokio::test]
    async fn a_prompt_that_nobody_confirmed_is_the_same_prompt_again() {
        let (conversation, turn) = (ConversationId::generate(), TurnId::generate());
        let whole = started(conversation, turn) + &ended(1);
        let server = testing::serve(vec![testing::events(": hello\n\n"), testing::events(&whole)]).await;
        let client = Client::new(&server.url, None).unwrap();
        let mut events = client.prompt(&ask()).await.unwrap();
        assert!(texts(&mut events).await.is_empty());
        assert!(events.next().await.unwrap().is_none());
        let asked = server.asked().await;
        let key = |asked: &str| testing::header(asked, "idempotency-key").unwrap();
        assert_eq!(key(&asked[0]), key(&asked[1]));
    }

    #[tokio::test]
    async fn a_turn_that_is_gone_is_an_error() {
        let (conversation, turn) = (ConversationId::generate(), TurnId::generate());
        let gone = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned();
        let first = started(conversation, turn);
        let server = testing::serve(vec![testing::events(&first), gone]).await;
        let client = Client::new(&server.url, None).unwrap();
        let mut events = client.prompt(&ask()).await.unwrap();
        assert!(events.next().await.unwrap().is_some());
        assert_eq!(events.next().await.unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn what_is_behind_the_end_is_nothing() {
        let (conversation, turn) = (ConversationId::generate(), TurnId::generate());
        let id = turn.to_string();
        let row = serde_json::json!({
            "id": id, "conversation_id": conversation, "number": 1, "state": "completed", "prompt_id": id,
            "answer_id": id, "events": 4, "created_at": "2026-01-01T00:00:00Z",
        });
        let server = testing::serve(vec![testing::events(""), testing::answer(&row.to_string())]).await;
        let client = Client::new(&server.url, None).unwrap();
        let mut events = client.turn_events(conversation, turn, 5);
        assert!(events.next().await.unwrap().is_none());
    }
}
