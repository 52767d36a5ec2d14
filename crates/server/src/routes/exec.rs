//! Commands in sandboxes: run to their end, or streamed; and the processes that run there.

mod answer;
mod output;

use crate::{
    counts::Kind,
    error::{ApiError, ApiResult, Problems},
    extract::{Json, Path, Query, Reader, Reserved, Runner},
    idempotency::ReplayAs,
    in_flight::{InFlight, OUTPUT},
    lists,
    routes::sandboxes::PROCESSES,
    sse,
    state::AppState,
};
use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, StatusCode},
    response::Response,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::stream;
use output::Output;
use seawall_api::{
    ProcessId, SandboxId,
    account::KeyScope,
    exec::{ProcessInfo, StartProcess},
    http::{Encoding, Exec, ExecEvent, ExecResult, List, SendSignal},
    message::Attach,
};
use seawall_core::{ExecRequest, budget::Reservation, exec::DEFAULT_MAX_OUTPUT};
use seawall_wire::{Guest, Process};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

/// Of each stream of a command whose output is the answer.
const MAX_OUTPUT: u64 = 64 << 20;
/// Of one call with input for a process.
const MAX_INPUT: usize = 1 << 20;
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

pub fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::default()
        .routes(routes!(exec))
        .routes(routes!(exec_stream))
        .routes(routes!(list))
        .routes(routes!(read_output))
        .routes(routes!(input))
        .routes(routes!(signal))
        .routes(routes!(kill))
}

/// What a guest, or the wire to it, has to say.
pub(super) fn guest_error(error: seawall_wire::Error) -> ApiError {
    seawall_core::Error::from(error).into()
}

/// Runs a command to its end, and answers with what it printed.
#[utoipa::path(post, path = "/sandboxes/{id}/exec", tag = "exec", operation_id = "exec",
    security(("key" = ["run"])),
    params(("id" = String, Path, description = "The sandbox's id")),
    request_body = Exec,
    responses(
        (status = 200, body = ExecResult, description = "It ran, whatever its exit code."),
        Problems,
    ))]
async fn exec(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path(id): Path<SandboxId>,
    Json(ask): Json<Exec>,
) -> ApiResult<Response> {
    let encoding = ask.encoding;
    let max_output = kept(ask.max_output)?;
    let (start, stdin) = command(ask)?;
    let request = ExecRequest { start, stdin, max_output };
    let room = state.budget().open(Some(who.account));
    let done = state.services().sandboxes.exec_captured(who.account, id, request, Some(room)).await?;
    Ok(answer::answer(done, encoding).await?)
}

/// Runs a command, and streams what it prints. Each event is JSON in `data:`, with the offset behind it in `id:`. A
/// hang-up leaves it running: go on with `/sandboxes/{id}/processes/{process}/output?from=`.
#[utoipa::path(post, path = "/sandboxes/{id}/exec/stream", tag = "exec", operation_id = "exec_stream",
    security(("key" = ["run"])),
    params(("id" = String, Path, description = "The sandbox's id")),
    request_body = Exec,
    responses(
        (status = 200, body = ExecEvent, content_type = "text/event-stream",
            description = "What it says, to its end."),
        Problems,
    ))]
async fn exec_stream(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path(id): Path<SandboxId>,
    place: InFlight,
    Json(ask): Json<Exec>,
) -> ApiResult<Response> {
    let encoding = ask.encoding;
    // Nobody gathers it here, so the guest counts.
    let output_limit = ask.max_output;
    let (start, stdin) = command(ask)?;
    place.open(&state, who.account, Kind::Streams, OUTPUT).await?;
    let guest = state.services().sandboxes.guest(who.account, id).await?;
    let start = StartProcess { stdin: stdin.is_some(), output_limit, ..start };
    let process = guest.start(start).await.map_err(guest_error)?;
    if let Some(bytes) = stdin {
        feed(guest, &process, bytes, place.take_body());
    }
    let again = format!("/sandboxes/{id}/processes/{}/output", process.id());
    let mut response = streamed(&state, Output::new(process, encoding));
    response.extensions_mut().insert(ReplayAs(again));
    Ok(response)
}

/// Lists the processes of a running sandbox, with those that ended lately. It starts no sandbox.
#[utoipa::path(get, path = "/sandboxes/{id}/processes", tag = "exec", operation_id = "list_processes",
    security(("key" = ["read"])),
    params(("id" = String, Path, description = "The sandbox's id")),
    responses(
        (status = 200, body = List<ProcessInfo>),
        Problems,
    ))]
async fn list(
    State(state): State<AppState>,
    Reader(who): Reader,
    Path(id): Path<SandboxId>,
) -> ApiResult<Response> {
    let guest = state.services().sandboxes.guest_if_running(who.account, id).await?;
    let fetch = async { Ok(List { items: guest.processes().await?, next: None }) };
    lists::value(&state, who.account, PROCESSES, fetch).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct OutputQuery {
    /// The first offset wanted: the `id` of the last event that was seen. `Last-Event-ID` goes before it.
    from: Option<u64>,
    /// Stay until its end. False: leave when what is there was told. True unless said.
    follow: Option<bool>,
    /// `text` or `base64`. Text unless said.
    #[param(value_type = Option<String>)]
    encoding: Option<Encoding>,
}

/// Streams what a process printed and prints, from an offset on. What nobody read in time is told as a gap.
#[utoipa::path(get, path = "/sandboxes/{id}/processes/{process}/output", tag = "exec",
    operation_id = "process_output",
    security(("key" = ["read"])),
    params(
        ("id" = String, Path, description = "The sandbox's id"),
        ("process" = String, Path, description = "The process's id"),
        OutputQuery,
    ),
    responses(
        (status = 200, body = ExecEvent, content_type = "text/event-stream", description = "What it says."),
        Problems,
    ))]
async fn read_output(
    State(state): State<AppState>,
    Reader(who): Reader,
    Path((id, process)): Path<(SandboxId, ProcessId)>,
    Query(query): Query<OutputQuery>,
    place: InFlight,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let from = match headers.get(LAST_EVENT_ID) {
        Some(last) => last.to_str().ok().and_then(|last| last.trim().parse().ok()).ok_or_else(|| {
            ApiError::invalid(
                "invalid_last_event_id",
                "Last-Event-ID is the `id` of the last event, a number",
            )
        })?,
        None => query.from.unwrap_or(0),
    };
    let follow = query.follow.unwrap_or(true);
    // A process waits for who may run things, as for a pipe's reader. Who may only look must not hold it up.
    let hold = follow && who.scopes.iter().any(|scope| matches!(scope, KeyScope::Run | KeyScope::Admin));
    let guest = state.services().sandboxes.guest_if_running(who.account, id).await?;
    place.open(&state, who.account, Kind::Streams, OUTPUT).await?;
    let process = guest.attach(Attach { process, from, hold, follow }).await.map_err(guest_error)?;
    Ok(streamed(&state, Output::new(process, query.encoding.unwrap_or_default())))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct InputQuery {
    /// Nothing comes after this. False unless said.
    close: Option<bool>,
}

/// Gives bytes to a process that was started with input, or to a terminal.
#[utoipa::path(post, path = "/sandboxes/{id}/processes/{process}/input", tag = "exec",
    operation_id = "process_input",
    security(("key" = ["run"])),
    params(
        ("id" = String, Path, description = "The sandbox's id"),
        ("process" = String, Path, description = "The process's id"),
        InputQuery,
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "At most 1 MiB."),
    responses(
        (status = 204, description = "It has them."),
        Problems,
    ))]
async fn input(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path((id, process)): Path<(SandboxId, ProcessId)>,
    Query(query): Query<InputQuery>,
    request: Request,
) -> ApiResult<StatusCode> {
    let guest = state.services().sandboxes.guest_if_running(who.account, id).await?;
    let (parts, body) = request.into_parts();
    let body = Reserved::read(&parts.extensions, &state, body, MAX_INPUT).await?;
    guest.input(process, &body.bytes, query.close.unwrap_or(false)).await.map_err(guest_error)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sends a signal to a process and its group.
#[utoipa::path(post, path = "/sandboxes/{id}/processes/{process}/signal", tag = "exec",
    operation_id = "signal_process",
    security(("key" = ["run"])),
    params(
        ("id" = String, Path, description = "The sandbox's id"),
        ("process" = String, Path, description = "The process's id"),
    ),
    request_body = SendSignal,
    responses(
        (status = 204, description = "It was sent."),
        Problems,
    ))]
async fn signal(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path((id, process)): Path<(SandboxId, ProcessId)>,
    Json(ask): Json<SendSignal>,
) -> ApiResult<StatusCode> {
    let guest = state.services().sandboxes.guest_if_running(who.account, id).await?;
    guest.signal(process, ask.signal).await.map_err(guest_error)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends a process and all that came from it.
#[utoipa::path(delete, path = "/sandboxes/{id}/processes/{process}", tag = "exec", operation_id = "kill_process",
    security(("key" = ["run"])),
    params(
        ("id" = String, Path, description = "The sandbox's id"),
        ("process" = String, Path, description = "The process's id"),
    ),
    responses(
        (status = 204, description = "They are gone."),
        Problems,
    ))]
async fn kill(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path((id, process)): Path<(SandboxId, ProcessId)>,
) -> ApiResult<StatusCode> {
    let guest = state.services().sandboxes.guest_if_running(who.account, id).await?;
    guest.kill(process).await.map_err(guest_error)?;
    Ok(StatusCode::NO_CONTENT)
}

/// What shall be started, and what it is given.
fn command(ask: Exec) -> ApiResult<(StartProcess, Option<Bytes>)> {
    let args: Vec<String> = match (ask.command, ask.args.is_empty()) {
        // A command may begin with a dash.
        (Some(command), true) => {
            ["/bin/sh", "-c", "--"].map(String::from).into_iter().chain([command]).collect()
        }
        (None, false) => ask.args,
        _ => {
            let detail = "give either `command`, for a shell, or `args`, a program and its arguments";
            return Err(ApiError::invalid("invalid_command", detail));
        }
    };
    words(ask.cwd.as_deref(), ask.user.as_deref(), ask.tag.as_deref())?;
    let stdin = ask.stdin.map(|text| decoded(text, ask.encoding)).transpose()?;
    let start = StartProcess {
        env: ask.env.into_iter().collect(),
        cwd: ask.cwd,
        user: ask.user,
        timeout_ms: ask.timeout_ms,
        tag: ask.tag,
        ..StartProcess::new(args)
    };
    Ok((start, stdin))
}

/// Bounds of what the guest keeps of a process beside its arguments.
pub(super) fn words(cwd: Option<&str>, user: Option<&str>, tag: Option<&str>) -> ApiResult<()> {
    for (what, word, most) in [("cwd", cwd, 4096), ("user", user, 512), ("tag", tag, 256)] {
        if word.is_some_and(|word| word.len() > most) {
            return Err(ApiError::invalid("invalid_command", format!("`{what}` has at most {most} bytes")));
        }
    }
    Ok(())
}

fn kept(max_output: Option<u64>) -> ApiResult<usize> {
    match max_output {
        None => Ok(DEFAULT_MAX_OUTPUT),
        Some(bytes) if bytes <= MAX_OUTPUT => Ok(bytes as usize),
        Some(_) => {
            let detail = format!("`max_output` is at most {MAX_OUTPUT}; stream what is larger");
            Err(ApiError::invalid("invalid_max_output", detail))
        }
    }
}

fn decoded(text: String, encoding: Encoding) -> ApiResult<Bytes> {
    match encoding {
        Encoding::Text => Ok(text.into()),
        Encoding::Base64 => STANDARD.decode(&text).map(Bytes::from).map_err(|error| {
            ApiError::invalid("invalid_base64", format!("`stdin` is not base64, as `encoding` says: {error}"))
        }),
    }
}

/// Gives a command its input and closes it, whoever listens meanwhile.
fn feed(guest: Guest, process: &Process, bytes: Bytes, room: Option<Reservation>) {
    let (id, input) = (process.id(), process.input());
    tokio::spawn(async move {
        let fed = match input.write(&bytes).await {
            Ok(()) => input.close().await,
            Err(error) => Err(error),
        };
        if let Err(error) = fed {
            let sandbox = guest.sandbox();
            tracing::warn!(%sandbox, process = %id, %error, "input did not arrive whole; the command is ended");
            // Half of its input must not pass for the whole. It may have ended by itself.
            let _ = guest.kill(id).await;
        }
        drop(room);
    });
}

fn streamed(state: &AppState, output: Output) -> Response {
    let events = stream::unfold(output, |mut output| async move {
        let told = output.next().await.transpose()?;
        Some((told, output))
    });
    sse::answer(state, events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p5_a_command_is_either_a_line_or_its_words() {
        let line = Exec { command: Some("-x".into()), ..Exec::default() };
        assert_eq!(command(line.clone()).unwrap().0.args, ["/bin/sh", "-c", "--", "-x"]);
        let both = Exec { args: vec!["true".into()], ..line };
        assert_eq!(command(both).unwrap_err().code(), "invalid_command");
        assert_eq!(command(Exec::default()).unwrap_err().code(), "invalid_command");
        let odd = Exec { command: Some("cat".into()), stdin: Some("%".into()), ..Exec::default() };
        assert!(command(odd.clone()).is_ok());
        let odd = Exec { encoding: Encoding::Base64, ..odd };
        assert_eq!(command(odd).unwrap_err().code(), "invalid_base64");
        assert_eq!(kept(Some(MAX_OUTPUT + 1)).unwrap_err().code(), "invalid_max_output");
    }
}
