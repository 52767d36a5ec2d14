//! A typed client of Seawall's HTTP API.
//!
//! [`Client`] has a method for each operation. What only looks is asked again when a connection breaks; what changes
//! something carries a key of its own, so that asking again does it once. [`Events`] follow a turn or a command over as
//! many connections as it takes. [`WsConnector`] carries the wire of a sandbox's guest through the server.

mod accounts;
mod call;
mod client;
mod conversations;
mod error;
mod events;
mod files;
mod local;
mod processes;
mod sandboxes;
mod server;
pub mod sse;
mod terminals;
mod wire;
mod workspaces;
mod ws;

#[cfg(test)]
mod testing;

pub use {
    client::{Client, Credentials, Page, is_on_this_machine},
    conversations::{ListConversations, TurnRequest},
    error::{Error, Result},
    events::{Events, ExecEvents, Streamed, TurnEvents},
    files::{Content, ContentHead, ListFiles, ReadContent, Source, WriteContent},
    local::{LocalServer, Starter},
    processes::OutputAsk,
    sandboxes::{EndSandbox, ListSandboxes},
    terminals::{Shown, Terminal},
    wire::WsConnector,
    ws::WsStream,
};
