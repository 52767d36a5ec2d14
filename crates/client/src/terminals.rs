//! Terminals in a sandbox.

use crate::{
    Client, Error, Result,
    ws::{Socket, io_error},
};
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use seawall_api::{
    ErrorKind, ProcessId, SandboxId,
    http::{CreateTerminal, TerminalControl, TerminalEvent},
};
use std::fmt;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

/// What a terminal shows or tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    Bytes(Bytes),
    Event(TerminalEvent),
}

/// A connection to a terminal. The terminal outlives it.
pub struct Terminal {
    socket: Socket,
}

impl fmt::Debug for Terminal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Terminal")
    }
}

impl Client {
    /// The process of a new one.
    pub async fn create_terminal(&self, id: SandboxId, new: &CreateTerminal) -> Result<ProcessId> {
        let call = self.post(&["sandboxes", &id.to_string(), "terminals"]).json(new);
        let made: TerminalEvent = call.answer().await?;
        match made {
            TerminalEvent::Attached { process, .. } => Ok(process),
            other => Err(Error::unreadable("answer", format!("{other:?}"))),
        }
    }

    /// From an offset of what it showed on.
    pub async fn terminal(&self, id: SandboxId, process: ProcessId, from: u64) -> Result<Terminal> {
        let call = self.get(&["sandboxes", &id.to_string(), "terminals", &process.to_string()]);
        Ok(Terminal { socket: self.websocket(call.query("from", from)).await? })
    }
}

impl Terminal {
    /// What comes next; none when the connection is over. May be dropped at any await.
    pub async fn next(&mut self) -> Result<Option<Shown>> {
        while let Some(message) = self.socket.next().await {
            match message.map_err(broken)? {
                Message::Binary(bytes) => return Ok(Some(Shown::Bytes(bytes))),
                Message::Text(text) => {
                    let event = serde_json::from_str(text.as_str());
                    let event = event.map_err(|error| Error::unreadable("word", error))?;
                    return Ok(Some(Shown::Event(event)));
                }
                Message::Close(_) => return Ok(None),
                _ => {}
            }
        }
        Ok(None)
    }

    /// As if typed.
    pub async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.socket.send(Message::Binary(bytes)).await.map_err(broken)
    }

    pub async fn control(&mut self, control: &TerminalControl) -> Result<()> {
        let text = serde_json::to_string(control).map_err(|error| Error::unreadable("word", error))?;
        self.socket.send(Message::text(text)).await.map_err(broken)
    }
}

fn broken(error: WsError) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the connection to the terminal broke: {}", io_error(error)))
}
