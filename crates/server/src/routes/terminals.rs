//! Terminals: a process with a terminal, and WebSockets that come to it and go.
//!
//! Nothing of a terminal is in this server's memory. The guest keeps the process and what it showed last, so a
//! connection that broke, or a server that was started anew, finds both.

use super::exec::{guest_error, words};
use crate::{
    counts::Kind,
    error::{ApiError, ApiResult, Problems},
    extract::{Json, OptionalJson, Path, Query, Runner},
    in_flight::{InFlight, UNREAD},
    origin,
    state::AppState,
};
use axum::{
    extract::{
        State,
        ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, rejection::WebSocketUpgradeRejection},
    },
    http::{HeaderMap, HeaderValue, StatusCode, header::UPGRADE},
    response::Response,
};
use bytes::Bytes;
use futures::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use seawall_api::{
    ProcessId, SandboxId,
    exec::{StartProcess, TtySize},
    http::{CreateTerminal, TerminalControl, TerminalEvent},
    message::Attach,
};
use seawall_core::host_paths::redact;
use seawall_wire::{Error, Process, ProcessInput, ProcessOutput};
use serde::Deserialize;
use std::time::Duration;
use tokio::{
    sync::mpsc,
    time::{Instant, Interval, MissedTickBehavior, interval_at, timeout},
};
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

/// How often the other side is asked whether it is there, and how long it may be silent or take nothing.
const PING_EVERY: Duration = Duration::from_secs(20);
pub(super) const SILENCE: Duration = Duration::from_secs(60);
/// How long the other side may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(2);
/// Of what a client says at once.
const MAX_TYPED: usize = 64 << 10;
/// Messages that were typed and that the process has not taken. Beyond them whoever types waits.
const TYPED: usize = 4;
/// Bytes of the memory budget for one terminal: what was typed, a frame of the guest's, and both buffers of the socket.
const TERMINAL: u64 = (TYPED as u64 + 2) * MAX_TYPED as u64 + UNREAD;
/// Of the buffers of a socket.
const SOCKET: usize = 64 << 10;
const NOTICES: usize = 8;
const TERM: &str = "xterm-256color";

/// Why a socket is closed.
pub(super) const ENDED: u16 = 1000;
pub(super) const GOING_AWAY: u16 = 1001;
pub(super) const FAILED: u16 = 1011;
/// RFC 6455: against a policy. The key is not good any more.
pub(super) const REVOKED: u16 = 1008;

pub(super) type Sender = SplitSink<WebSocket, Message>;
pub(super) type Receiver = SplitStream<WebSocket>;

pub fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::default().routes(routes!(create)).routes(routes!(attach))
}

/// Opens a terminal: a shell, or a program. It lives on without anybody at it.
#[utoipa::path(post, path = "/sandboxes/{id}/terminals", tag = "terminals", operation_id = "create_terminal",
    security(("key" = ["run"])),
    params(("id" = String, Path, description = "The sandbox's id")),
    request_body = Option<CreateTerminal>,
    responses(
        (status = 201, body = TerminalEvent, description = "It runs: `attached`, with its process."),
        Problems,
    ))]
async fn create(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path(id): Path<SandboxId>,
    OptionalJson(ask): OptionalJson<CreateTerminal>,
) -> ApiResult<(StatusCode, Json<TerminalEvent>)> {
    if ask.size.rows == 0 || ask.size.cols == 0 {
        return Err(ApiError::invalid("invalid_size", "a terminal has at least one row and one column"));
    }
    words(ask.cwd.as_deref(), ask.user.as_deref(), None)?;
    let mut env = ask.env;
    env.entry("TERM".to_owned()).or_insert_with(|| TERM.to_owned());
    let start = StartProcess {
        env: env.into_iter().collect(),
        cwd: ask.cwd,
        user: ask.user,
        tty: Some(ask.size),
        stdin: true,
        ..StartProcess::new(ask.args)
    };
    let guest = state.services().sandboxes.guest(who.account, id).await?;
    let started = guest.start_detached(start).await.map_err(guest_error)?;
    tracing::info!(account = %who.account, sandbox = %id, process = %started.process, "terminal opened");
    Ok((StatusCode::CREATED, Json(TerminalEvent::Attached { process: started.process, offset: 0 })))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct AttachQuery {
    /// The first offset wanted. 0 unless said: all that is kept, which brings the screen back.
    from: Option<u64>,
}

/// A WebSocket at a terminal. Binary frames are what is typed and what is shown; text frames are JSON: first
/// `attached`, then `gap`, `exit` and `error` from the server, `resize` and `signal` to it. It starts no sandbox.
#[utoipa::path(get, path = "/sandboxes/{id}/terminals/{process}", tag = "terminals",
    operation_id = "attach_terminal",
    security(("key" = ["run"])),
    params(
        ("id" = String, Path, description = "The sandbox's id"),
        ("process" = String, Path, description = "The terminal's process"),
        AttachQuery,
    ),
    responses(
        (status = 101, description = "A WebSocket. It is closed with 1000 after `exit`."),
        Problems,
    ))]
async fn attach(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path((id, process)): Path<(SandboxId, ProcessId)>,
    Query(query): Query<AttachQuery>,
    place: InFlight,
    headers: HeaderMap,
    asked: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> ApiResult<Response> {
    let upgrade = websocket(asked, MAX_TYPED)?;
    origin::check(&state, &headers)?;
    // A page that connects again and again must not keep a sandbox awake that nobody uses.
    let guest = state.services().sandboxes.guest_if_running(who.account, id).await?;
    place.open(&state, who.account, Kind::Streams, TERMINAL).await?;
    let wanted = Attach { process, from: query.from.unwrap_or(0), hold: true, follow: true };
    let process = guest.attach(wanted).await.map_err(guest_error)?;
    let shutdown = state.shutdown().clone();
    Ok(upgrade.on_upgrade(move |socket| {
        let ends = Ends { shutdown, place: place.clone() };
        place.drive(async move { serve(socket, process, ends).await })
    }))
}

/// When a socket has to end, besides by itself.
#[derive(Debug)]
pub(super) struct Ends {
    pub shutdown: CancellationToken,
    pub place: InFlight,
}

impl Ends {
    /// The code to close with, when the server goes down or the key is revoked.
    pub async fn code(&self) -> u16 {
        tokio::select! {
            () = self.shutdown.cancelled() => GOING_AWAY,
            () = self.place.revoked() => REVOKED,
        }
    }
}

/// A request that asks for a WebSocket, with our limits.
pub(super) fn websocket(
    asked: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    largest: usize,
) -> ApiResult<WebSocketUpgrade> {
    let upgrade = asked.map_err(|rejection| {
        let detail = format!("this is a WebSocket; connect to it as one ({})", rejection.body_text());
        ApiError::new(StatusCode::UPGRADE_REQUIRED, "websocket_expected", detail)
            .header(UPGRADE, HeaderValue::from_static("websocket"))
    })?;
    let upgrade = upgrade.max_message_size(largest).max_frame_size(largest);
    Ok(upgrade.read_buffer_size(SOCKET).write_buffer_size(SOCKET))
}

/// One client at a terminal, until it goes or the process ends. The process does not mind either.
async fn serve(socket: WebSocket, mut process: Process, ends: Ends) {
    let (mut sender, mut receiver) = socket.split();
    let input = process.input();
    let (typed, to_type) = mpsc::channel(TYPED);
    let (notices, to_tell) = mpsc::channel(NOTICES);
    let close = tokio::select! {
        close = show(&mut sender, &mut process, to_tell, &ends) => close,
        () = hear(&mut receiver, &input, typed, &notices) => None,
        () = enter(&input, to_type, &notices) => None,
    };
    if let Some(code) = close {
        goodbye(&mut sender, &mut receiver, code).await;
    }
}

/// Shows what the process prints. The code to close with; none where nobody is there any more.
async fn show(
    sender: &mut Sender,
    process: &mut Process,
    mut notices: mpsc::Receiver<TerminalEvent>,
    ends: &Ends,
) -> Option<u16> {
    let attached = TerminalEvent::Attached { process: process.id(), offset: process.offset() };
    say(sender, event(&attached)).await?;
    let mut pings = pings();
    loop {
        let output = tokio::select! {
            output = process.next() => output,
            Some(notice) = notices.recv() => {
                say(sender, event(&notice)).await?;
                continue;
            }
            _ = pings.tick() => {
                say(sender, Message::Ping(Bytes::new())).await?;
                continue;
            }
            code = ends.code() => return Some(code),
        };
        match output {
            Ok(ProcessOutput::Data { bytes, .. }) => say(sender, Message::Binary(bytes)).await?,
            Ok(ProcessOutput::Gap { from, to }) => {
                say(sender, event(&TerminalEvent::Gap { from, to })).await?;
            }
            Ok(ProcessOutput::Reconnected) => {}
            Ok(ProcessOutput::End(status)) => {
                let exit = TerminalEvent::Exit { exit_code: status.shell_code(), status };
                say(sender, event(&exit)).await?;
                return Some(ENDED);
            }
            Ok(ProcessOutput::Drained) => return Some(ENDED),
            Err(error) => {
                say(sender, event(&trouble(&error))).await?;
                return Some(FAILED);
            }
        }
    }
}

/// Takes what the client says, until it goes.
async fn hear(
    receiver: &mut Receiver,
    input: &ProcessInput,
    typed: mpsc::Sender<Bytes>,
    notices: &mpsc::Sender<TerminalEvent>,
) {
    // Pings are answered, so only who is gone is silent.
    while let Ok(Some(Ok(message))) = timeout(SILENCE, receiver.next()).await {
        match message {
            // A process that does not read makes whoever types wait.
            Message::Binary(bytes) => {
                if typed.send(bytes).await.is_err() {
                    return;
                }
            }
            // Beside the queue: what hangs must be interrupted by somebody.
            Message::Text(text) => {
                if let Err(trouble) = control(input, &text).await {
                    // Where nobody reads notices, one is lost.
                    let _ = notices.try_send(trouble);
                }
            }
            Message::Ping(_) | Message::Pong(_) => {}
            Message::Close(_) => return,
        }
    }
}

async fn control(input: &ProcessInput, text: &str) -> Result<(), TerminalEvent> {
    let asked: TerminalControl = serde_json::from_str(text).map_err(|error| TerminalEvent::Error {
        code: "invalid".to_owned(),
        detail: format!("text frames are `resize` or `signal`; what is typed is binary: {error}"),
    })?;
    let done = match asked {
        TerminalControl::Resize { rows, cols } => input.resize(TtySize { rows, cols }).await,
        TerminalControl::Signal { signal } => input.signal(signal).await,
    };
    done.map_err(|error| trouble(&error))
}

/// Types, as fast as the process reads.
async fn enter(
    input: &ProcessInput,
    mut typed: mpsc::Receiver<Bytes>,
    notices: &mpsc::Sender<TerminalEvent>,
) {
    while let Some(bytes) = typed.recv().await {
        if let Err(error) = input.write(&bytes).await {
            // What was under way is lost; the next write has a new wire.
            let _ = notices.try_send(trouble(&error));
        }
    }
}

fn trouble(error: &Error) -> TerminalEvent {
    TerminalEvent::Error {
        code: error.kind().as_str().to_owned(),
        detail: redact(&error.to_string()).into_owned(),
    }
}

fn event(event: &TerminalEvent) -> Message {
    // Strings and numbers are JSON in any case.
    Message::Text(serde_json::to_string(event).unwrap_or_default().into())
}

pub(super) fn pings() -> Interval {
    let mut pings = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pings
}

/// None where the other side is gone, or takes nothing for too long.
pub(super) async fn say(sender: &mut Sender, message: Message) -> Option<()> {
    timeout(SILENCE, sender.send(message)).await.ok()?.ok()
}

/// Closes a socket, and waits a moment for the other side to do so: what it has not read yet must not be lost.
pub(super) async fn goodbye(sender: &mut Sender, receiver: &mut Receiver, code: u16) {
    let frame = CloseFrame { code, reason: "".into() };
    let left = async {
        if sender.send(Message::Close(Some(frame))).await.is_ok() {
            while let Some(Ok(_)) = receiver.next().await {}
        }
    };
    // Whoever does not answer is left.
    let _ = timeout(GOODBYE, left).await;
}
