//! The wire of a sandbox's guest, through a WebSocket: for clients that speak its protocol themselves.
//!
//! The server reads the greeting, so that nobody takes the control wire, and passes bytes on from there. The guest is
//! hostile, and so may be the client; neither makes the server hold more than a message of each.

use super::terminals::{ENDED, Ends, FAILED, Receiver, SILENCE, Sender, goodbye, pings, say, websocket};
use crate::{
    counts,
    error::{ApiResult, Problems},
    extract::{Path, Runner},
    in_flight::InFlight,
    origin,
    state::AppState,
};
use axum::{
    extract::{
        State,
        ws::{Message, WebSocket, WebSocketUpgrade, rejection::WebSocketUpgradeRejection},
    },
    http::HeaderMap,
    response::Response,
};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use seawall_api::{
    AccountId, ErrorKind, Fault, SandboxId,
    frame::{self, Frame, HEADER, Kind},
    hello::{Hello, PREAMBLE, Role},
};
use seawall_core::host_paths::redact;
use seawall_wire::{Duplex, handshake::PATIENCE};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};
use utoipa_axum::{router::OpenApiRouter, routes};

/// A hello is small; who announces more is not ours.
const MAX_HELLO: usize = 4096;
/// Read from a guest at once: one message. Large, as each costs a system call on either side.
const READ: usize = 256 << 10;
/// Of a client, in one frame of the socket.
const MAX_MESSAGE: usize = 1 << 20;
/// Bytes of the memory budget for one wire: a message of each side, and both buffers of the socket.
const WIRE: u64 = MAX_MESSAGE as u64 + READ as u64 + (128 << 10);
/// With less room than this in the buffer there is a new one.
const ROOM: usize = 64 << 10;

pub fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::default().routes(routes!(connect))
}

/// A WebSocket whose binary frames, of at most 1 MiB, are the bytes of a connection to the sandbox's guest. The
/// greeting must be that of a client, or of a bulk connection, for this sandbox.
#[utoipa::path(get, path = "/sandboxes/{id}/wire", tag = "wire", operation_id = "connect_wire",
    security(("key" = ["run"])),
    params(("id" = String, Path, description = "The sandbox's id")),
    responses(
        (status = 101, description = "A WebSocket."),
        Problems,
    ))]
async fn connect(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path(id): Path<SandboxId>,
    place: InFlight,
    headers: HeaderMap,
    asked: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> ApiResult<Response> {
    let upgrade = websocket(asked, MAX_MESSAGE)?;
    origin::check(&state, &headers)?;
    place.open(&state, who.account, counts::Kind::Streams, WIRE).await?;
    // It runs from here on, or the answer says why not.
    state.services().sandboxes.guest(who.account, id).await?;
    Ok(upgrade.on_upgrade(move |socket| {
        let ends = Ends { shutdown: state.shutdown().clone(), place: place.clone() };
        place.drive(async move { serve(socket, state, who.account, id, ends).await })
    }))
}

async fn serve(socket: WebSocket, state: AppState, account: AccountId, id: SandboxId, ends: Ends) {
    let (mut sender, mut receiver) = socket.split();
    let close = match open(&mut receiver, &state, account, id).await {
        Ok(guest) => {
            let (from, to) = tokio::io::split(guest);
            tokio::select! {
                close = outward(from, &mut sender) => close,
                () = inward(&mut receiver, to) => None,
                code = ends.code() => Some(code),
            }
        }
        Err(fault) => {
            tracing::debug!(%account, sandbox = %id, %fault, "a wire was refused");
            refuse(&mut sender, &fault).await
        }
    };
    if let Some(code) = close {
        goodbye(&mut sender, &mut receiver, code).await;
    }
}

/// A connection to the guest, with the client's greeting passed on.
async fn open(
    receiver: &mut Receiver,
    state: &AppState,
    account: AccountId,
    id: SandboxId,
) -> Result<Box<dyn Duplex>, Fault> {
    let greeting = timeout(PATIENCE, greeting(receiver, id)).await.map_err(|_| {
        Fault::new(ErrorKind::Timeout, format!("no hello came for {} s", PATIENCE.as_secs()))
    })??;
    let connected = state.services().sandboxes.connect_raw(account, id).await;
    let mut guest =
        connected.map_err(|error| Fault::new(error.kind(), redact(&error.to_string()).into_owned()))?;
    let passed_on = async {
        guest.write_all(&greeting).await?;
        guest.flush().await
    };
    match passed_on.await {
        Ok(()) => Ok(guest),
        Err(error) => Err(Fault::new(ErrorKind::Unavailable, format!("the guest hung up: {error}"))),
    }
}

/// All that came up to the hello and with it, where the hello is one that may pass.
async fn greeting(receiver: &mut Receiver, id: SandboxId) -> Result<Bytes, Fault> {
    let mut bytes = BytesMut::new();
    loop {
        if let Some(hello) = hello(&bytes)? {
            check(&hello, id)?;
            return Ok(bytes.freeze());
        }
        match receiver.next().await {
            Some(Ok(Message::Binary(part))) => bytes.extend_from_slice(&part),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(Message::Text(_))) => return Err(protocol("a text frame; the wire is binary")),
            Some(Ok(Message::Close(_)) | Err(_)) | None => return Err(protocol("the end, before a hello")),
        }
    }
}

/// The hello at the beginning of these bytes; none while it is not all there.
fn hello(bytes: &[u8]) -> Result<Option<Hello>, Fault> {
    let begun = bytes.len().min(PREAMBLE.len());
    if bytes[..begun] != PREAMBLE[..begun] {
        return Err(protocol("the preamble is wrong"));
    }
    let rest = &bytes[begun..];
    let Some(head) = rest.first_chunk::<HEADER>() else { return Ok(None) };
    let (kind, length) = frame::parse_header(*head).map_err(|error| protocol(&error.to_string()))?;
    if kind != Kind::Hello || length > MAX_HELLO {
        return Err(protocol("a hello was due"));
    }
    let Some(body) = rest[HEADER..].get(..length) else { return Ok(None) };
    let frame = Frame::new(kind, Bytes::copy_from_slice(body));
    frame.decode().map(Some).map_err(|error| protocol(&error.to_string()))
}

fn check(hello: &Hello, id: SandboxId) -> Result<(), Fault> {
    if hello.sandbox != id {
        let asked = hello.sandbox;
        return Err(Fault::new(ErrorKind::Conflict, format!("this is sandbox {id}, not {asked}")));
    }
    match hello.role {
        Role::Client | Role::Bulk => Ok(()),
        Role::Control { .. } => {
            Err(Fault::new(ErrorKind::Denied, "the control wire is the server's own; connect as a client"))
        }
    }
}

fn protocol(why: &str) -> Fault {
    Fault::new(ErrorKind::Protocol, format!("this is no greeting for a guest: {why}"))
}

/// Says it as a guest would.
async fn refuse(sender: &mut Sender, fault: &Fault) -> Option<u16> {
    let frame = Frame::message(Kind::Fault, fault).ok()?;
    say(sender, Message::Binary(frame.to_bytes().into())).await?;
    Some(FAILED)
}

/// From the guest to the client. The code to close with; none where the client is gone.
async fn outward(mut from: impl AsyncRead + Unpin, sender: &mut Sender) -> Option<u16> {
    let mut buffer = BytesMut::with_capacity(READ);
    let mut pings = pings();
    loop {
        if buffer.capacity() - buffer.len() < ROOM {
            buffer.reserve(READ);
        }
        let read = tokio::select! {
            read = from.read_buf(&mut buffer) => read,
            _ = pings.tick() => {
                say(sender, Message::Ping(Bytes::new())).await?;
                continue;
            }
        };
        match read {
            Ok(0) | Err(_) => return Some(ENDED),
            Ok(_) => say(sender, Message::Binary(buffer.split().freeze())).await?,
        }
    }
}

/// From the client to the guest, until either goes.
async fn inward(receiver: &mut Receiver, mut to: impl AsyncWrite + Unpin) {
    // Pings are answered, so only who is gone is silent.
    while let Ok(Some(Ok(message))) = timeout(SILENCE, receiver.next()).await {
        let bytes = match message {
            Message::Binary(bytes) => bytes,
            Message::Ping(_) | Message::Pong(_) => continue,
            Message::Text(_) | Message::Close(_) => break,
        };
        if to.write_all(&bytes).await.is_err() || to.flush().await.is_err() {
            break;
        }
    }
    // The guest learns that nothing more comes. It may be gone itself.
    let _ = to.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(role: Role, id: SandboxId) -> Vec<u8> {
        let frame = Frame::message(Kind::Hello, &Hello::new(role, id)).unwrap();
        [&PREAMBLE[..], &frame.to_bytes()].concat()
    }

    #[test]
    fn p1_a_hello_is_found_however_it_is_cut() {
        let id = SandboxId::generate();
        let whole = bytes(Role::Client, id);
        for at in 0..whole.len() {
            assert_eq!(hello(&whole[..at]).unwrap(), None, "{at}");
        }
        let longer = [&whole[..], b"more"].concat();
        assert_eq!(hello(&longer).unwrap().unwrap().sandbox, id);
    }

    #[test]
    fn p1_nobody_takes_the_control_wire_or_another_sandbox() {
        let id = SandboxId::generate();
        let kind = |role, of| check(&Hello::new(role, of), id).err().map(|fault| fault.kind);
        assert_eq!(kind(Role::Client, id), None);
        assert_eq!(kind(Role::Bulk, id), None);
        assert_eq!(kind(Role::Control { epoch: u64::MAX }, id), Some(ErrorKind::Denied));
        assert_eq!(kind(Role::Client, SandboxId::generate()), Some(ErrorKind::Conflict));
    }

    #[test]
    fn p1_what_is_no_greeting_is_refused_early() {
        assert!(hello(b"GET / HT").is_err());
        let long = [&PREAMBLE[..], &frame::header(Kind::Hello, MAX_HELLO + 1)].concat();
        assert!(hello(&long).is_err());
        let other = [&PREAMBLE[..], &frame::header(Kind::Request, 3)].concat();
        assert!(hello(&other).is_err());
    }
}
