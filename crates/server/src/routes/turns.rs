//! Turns: a prompt goes in, and its events stream out, as often as somebody asks for them.

use crate::{
    counts::Kind,
    error::{ApiError, ApiResult, Problems},
    extract::{self, Json, PageQuery, Path, Query, Reader, Runner},
    idempotency::ReplayAs,
    in_flight::{EVENTS, InFlight, KEY_REVOKED, revoked},
    lists, sse,
    state::AppState,
};
use axum::{
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header::LOCATION},
    response::{IntoResponse, Response},
};
use seawall_api::{
    AccountId, ConversationId, InvalidId, SandboxId, TurnId,
    conversation::Turn,
    event::Event,
    http::{Cancelled, List, Prompt},
};
use seawall_core::{
    Error,
    turns::{Choice, TurnAsk},
};
use serde::Deserialize;
use std::{str::FromStr, time::Duration};
use tracing::Instrument;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

/// In the place of a conversation's id: a new one.
const NEW: &str = "new";
/// In the place of a sandbox's id: the linked one, or a new one.
const AUTO: &str = "auto";
/// C8: the longest wait for the turn before, in seconds.
const LONGEST_WAIT: f64 = 600.0;
/// Of sandboxes that have no template (C6).
const CLAUDE: &str = "claude-code";
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const DEPRECATION: HeaderName = HeaderName::from_static("deprecation");

// Those that use them are told; this is where they are offered.
#[allow(deprecated)]
pub fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::default()
        .routes(routes!(prompt))
        .routes(routes!(prompt_singular))
        .routes(routes!(claude))
        .routes(routes!(list))
        .routes(routes!(get))
        .routes(routes!(events))
        .routes(routes!(cancel))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PromptQuery {
    /// Take this sandbox, whichever the conversation had before.
    relink: Option<bool>,
    /// How many seconds to wait for the turn before: 0 to 600, fractions allowed, 0 unless said.
    wait: Option<f64>,
    /// False: the turn is begun, and the answer is the turn and not its events.
    stream: Option<bool>,
}

/// Begins a turn, and streams its events. Each is JSON in `data:`, with its number in `id:`. A hang-up cancels
/// nothing: come back to `/conversations/{id}/turns/{turn}/events`.
#[utoipa::path(post, path = "/conversations/{id}/sandbox/{sandbox}", tag = "turns", operation_id = "prompt",
    security(("key" = ["run"])),
    params(
        ("id" = String, Path, description = "The conversation's id; one that is not known is made. `new`: a new one"),
        ("sandbox" = String, Path,
            description = "The sandbox's id; one that is not known is made. `auto`: the linked one, or a new one"),
        PromptQuery,
    ),
    request_body = Prompt,
    responses(
        (status = 200, body = Event, content_type = "text/event-stream", description = "The turn's events, to its end."),
        (status = 202, body = Turn, description = "With `stream=false`: the turn runs."),
        Problems,
    ))]
async fn prompt(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path((id, sandbox)): Path<(String, String)>,
    Query(query): Query<PromptQuery>,
    place: InFlight,
    Json(prompt): Json<Prompt>,
) -> ApiResult<Response> {
    let ask = asked(&id, &sandbox, &query, prompt)?;
    let streams = query.stream.unwrap_or(true);
    if streams {
        place.open(&state, who.account, Kind::Streams, EVENTS).await?;
    }
    let turn = start(&state, who.account, ask, &place).await?;
    match streams {
        false => Ok(accepted(turn)),
        true => Ok(streamed(&state, who.account, &turn)),
    }
}

/// The same under an older name: use `/conversations/{id}/sandbox/{sandbox}`.
#[utoipa::path(post, path = "/conversation/{id}/sandbox/{sandbox}", tag = "turns", operation_id = "prompt_singular",
    security(("key" = ["run"])),
    params(
        ("id" = String, Path, description = "The conversation's id; one that is not known is made. `new`: a new one"),
        ("sandbox" = String, Path,
            description = "The sandbox's id; one that is not known is made. `auto`: the linked one, or a new one"),
        PromptQuery,
    ),
    request_body = Prompt,
    responses(
        (status = 200, body = Event, content_type = "text/event-stream", description = "The turn's events, to its end."),
        (status = 202, body = Turn, description = "With `stream=false`: the turn runs."),
        Problems,
    ))]
#[deprecated = "use /conversations/{id}/sandbox/{sandbox}"]
async fn prompt_singular(
    state: State<AppState>,
    who: Runner,
    path: Path<(String, String)>,
    query: Query<PromptQuery>,
    place: InFlight,
    body: Json<Prompt>,
) -> ApiResult<Response> {
    prompt(state, who, path, query, place, body).await
}

/// Begins a turn in a sandbox, with a new conversation. Use `/conversations/new/sandbox/{id}`.
#[utoipa::path(post, path = "/sandboxes/{id}/claude", tag = "turns", operation_id = "claude",
    security(("key" = ["run"])),
    params(("id" = String, Path, description = "The sandbox's id")),
    request_body = Prompt,
    responses(
        (status = 200, body = Event, content_type = "text/event-stream", description = "The turn's events, to its end."),
        Problems,
    ))]
#[deprecated = "use /conversations/new/sandbox/{id}"]
async fn claude(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path(id): Path<SandboxId>,
    place: InFlight,
    Json(prompt): Json<Prompt>,
) -> ApiResult<Response> {
    place.open(&state, who.account, Kind::Streams, EVENTS).await?;
    let sandbox = state.services().sandboxes.get(who.account, id).await?;
    let template = prompt.template.or(sandbox.template).unwrap_or_else(|| CLAUDE.to_owned());
    let ask = TurnAsk {
        conversation: None,
        sandbox: Choice::This(id),
        prompt: prompt.prompt,
        agent_id: prompt.agent_id,
        organization_id: prompt.organization_id,
        template: Some(template),
        ..TurnAsk::default()
    };
    let turn = start(&state, who.account, ask, &place).await?;
    let mut response = streamed(&state, who.account, &turn);
    response.headers_mut().insert(DEPRECATION, HeaderValue::from_static("true"));
    Ok(response)
}

/// Lists the turns of a conversation, the newest first.
#[utoipa::path(get, path = "/conversations/{id}/turns", tag = "turns", operation_id = "list_turns",
    security(("key" = ["read"])),
    params(("id" = String, Path, description = "The conversation's id"), PageQuery),
    responses(
        (status = 200, body = List<Turn>),
        Problems,
    ))]
async fn list(
    State(state): State<AppState>,
    Reader(who): Reader,
    Path(id): Path<ConversationId>,
    Query(query): Query<PageQuery>,
) -> ApiResult<Response> {
    let stores = &state.services().stores;
    let page = extract::page(query.limit, query.after.as_deref())?;
    stores.conversations.get(who.account, id).await?;
    let fetch = stores.turns.list(who.account, id, &page);
    lists::list(&state, who.account, page.limit as usize, fetch).await
}

/// Reads a turn.
#[utoipa::path(get, path = "/conversations/{id}/turns/{turn}", tag = "turns", operation_id = "get_turn",
    security(("key" = ["read"])),
    params(
        ("id" = String, Path, description = "The conversation's id"),
        ("turn" = String, Path, description = "The turn's id"),
    ),
    responses(
        (status = 200, body = Turn),
        Problems,
    ))]
async fn get(
    State(state): State<AppState>,
    Reader(who): Reader,
    Path((id, turn)): Path<(ConversationId, TurnId)>,
) -> ApiResult<Json<Turn>> {
    Ok(Json(turn_of(&state, who.account, id, turn).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventsQuery {
    /// The number of the first event, 0 unless said.
    from: Option<u64>,
}

/// Streams the events of a turn: what there is, then what comes, to its end.
#[utoipa::path(get, path = "/conversations/{id}/turns/{turn}/events", tag = "turns", operation_id = "follow_turn",
    security(("key" = ["read"])),
    params(
        ("id" = String, Path, description = "The conversation's id"),
        ("turn" = String, Path, description = "The turn's id"),
        EventsQuery,
        ("Last-Event-ID" = Option<u64>, Header,
            description = "The number of the last event that was seen; it goes before `from`"),
    ),
    responses(
        (status = 200, body = Event, content_type = "text/event-stream", description = "The turn's events, to its end."),
        Problems,
    ))]
async fn events(
    State(state): State<AppState>,
    Reader(who): Reader,
    Path((id, turn)): Path<(ConversationId, TurnId)>,
    Query(query): Query<EventsQuery>,
    place: InFlight,
    headers: HeaderMap,
) -> ApiResult<Response> {
    // A browser comes back to the address that it had, so what it saw last counts.
    let from = seen(&headers)?.or(query.from).unwrap_or(0);
    turn_of(&state, who.account, id, turn).await?;
    place.open(&state, who.account, Kind::Streams, EVENTS).await?;
    let followed = state.services().turns.follow(who.account, turn, from).await?;
    Ok(sse::follow(&state, who.account, followed))
}

/// Ends a turn. What it did and said is kept.
#[utoipa::path(post, path = "/conversations/{id}/turns/{turn}/cancel", tag = "turns", operation_id = "cancel_turn",
    security(("key" = ["run"])),
    params(
        ("id" = String, Path, description = "The conversation's id"),
        ("turn" = String, Path, description = "The turn's id"),
    ),
    responses(
        (status = 200, body = Cancelled),
        Problems,
    ))]
async fn cancel(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path((id, turn)): Path<(ConversationId, TurnId)>,
) -> ApiResult<Json<Cancelled>> {
    turn_of(&state, who.account, id, turn).await?;
    let cancelled = state.services().turns.cancel_turn(who.account, turn).await?;
    Ok(Json(Cancelled { turn_id: turn, cancelled }))
}

/// What the words of a request mean.
fn asked(id: &str, sandbox: &str, query: &PromptQuery, prompt: Prompt) -> ApiResult<TurnAsk> {
    let conversation = if id == NEW { None } else { Some(parsed(id)?) };
    let sandbox = match (sandbox, query.relink) {
        (AUTO, _) => Choice::Auto,
        (id, Some(true)) => Choice::Relink(parsed(id)?),
        (id, _) => Choice::This(parsed(id)?),
    };
    Ok(TurnAsk {
        conversation,
        sandbox,
        prompt: prompt.prompt,
        agent_id: prompt.agent_id,
        organization_id: prompt.organization_id,
        template: prompt.template,
        wait: patience(query.wait)?,
        withdrawn: None,
    })
}

fn parsed<T: FromStr<Err = InvalidId>>(text: &str) -> ApiResult<T> {
    text.parse().map_err(|error: InvalidId| ApiError::invalid("invalid_id", error.to_string()))
}

fn patience(seconds: Option<f64>) -> ApiResult<Duration> {
    match seconds {
        None => Ok(Duration::ZERO),
        Some(seconds) if (0.0..=LONGEST_WAIT).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        Some(seconds) => {
            let detail = format!("`wait` is 0 to {LONGEST_WAIT} seconds, not {seconds}");
            Err(ApiError::invalid("invalid_wait", detail))
        }
    }
}

/// The number of the event after the last that a client saw.
fn seen(headers: &HeaderMap) -> ApiResult<Option<u64>> {
    let Some(value) = headers.get(LAST_EVENT_ID).filter(|value| !value.is_empty()) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse::<u64>().ok());
    let wrong = || {
        ApiError::invalid("invalid_event_id", "`Last-Event-ID` is the number of an event; pass on its `id`")
    };
    number.map(|number| Some(number.saturating_add(1))).ok_or_else(wrong)
}

/// On a task of its own: whoever hangs up meanwhile leaves no turn behind that was begun and that nobody runs.
async fn start(state: &AppState, account: AccountId, ask: TurnAsk, place: &InFlight) -> ApiResult<Turn> {
    let turns = state.services().turns.clone();
    let waiter = match ask.wait.is_zero() {
        true => None,
        false => Some(state.enter(account, Kind::Waiters).await?),
    };
    // What waits is counted for as long as it does, also where its caller hangs up.
    let held = (waiter, place.take_body(), place.clone());
    let ask = TurnAsk { withdrawn: place.withdrawn(), ..ask };
    let starting = async move {
        let begun = turns.start(account, ask).await;
        drop(held);
        begun
    };
    let starting = tokio::spawn(starting.in_current_span());
    let begun =
        starting.await.map_err(|error| Error::internal("the turn was not begun").with_source(error))?;
    match begun {
        Err(error) if error.code() == KEY_REVOKED => Err(revoked()),
        begun => Ok(begun?.turn),
    }
}

/// The events from the first on. The same request again follows the same turn.
fn streamed(state: &AppState, account: AccountId, turn: &Turn) -> Response {
    let followed = state.services().turns.follow_begun(account, turn.id);
    let mut response = sse::follow(state, account, followed);
    response.extensions_mut().insert(ReplayAs(format!("{}/events", place(turn))));
    response
}

fn accepted(turn: Turn) -> Response {
    (StatusCode::ACCEPTED, [(LOCATION, place(&turn))], Json(turn)).into_response()
}

fn place(turn: &Turn) -> String {
    format!("/conversations/{}/turns/{}", turn.conversation_id, turn.id)
}

/// A turn, where it is of this conversation.
async fn turn_of(
    state: &AppState,
    account: AccountId,
    conversation: ConversationId,
    id: TurnId,
) -> ApiResult<Turn> {
    let turn = state.services().stores.turns.get(account, id).await?;
    if turn.conversation_id != conversation {
        let message = format!("there is no turn {id} in conversation {conversation}");
        return Err(Error::not_found(message).into());
    }
    Ok(turn)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(relink: Option<bool>, wait: Option<f64>) -> PromptQuery {
        PromptQuery { relink, wait, stream: None }
    }

    fn header(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(LAST_EVENT_ID, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn c2_the_words_of_a_path_mean_what_they_say() {
        let (conversation, sandbox) = (ConversationId::generate(), SandboxId::generate());
        let asked = |id: &str, sandbox: &str, relink| {
            asked(id, sandbox, &query(relink, None), Prompt::default())
                .map(|ask| (ask.conversation, ask.sandbox))
                .map_err(|error| error.code().to_owned())
        };
        let (id, of) = (conversation.to_string(), sandbox.to_string());
        assert_eq!(asked("new", "auto", None), Ok((None, Choice::Auto)));
        assert_eq!(asked("new", "auto", Some(true)), Ok((None, Choice::Auto)));
        assert_eq!(asked(&id, &of, None), Ok((Some(conversation), Choice::This(sandbox))));
        assert_eq!(asked(&id, &of, Some(false)), Ok((Some(conversation), Choice::This(sandbox))));
        assert_eq!(asked(&id, &of, Some(true)), Ok((Some(conversation), Choice::Relink(sandbox))));
        assert_eq!(asked("auto", &of, None), Err("invalid_id".to_owned()));
        assert_eq!(asked(&id, "new", None), Err("invalid_id".to_owned()));
    }

    #[test]
    fn c8_a_wait_is_some_seconds() {
        assert_eq!(patience(None).unwrap(), Duration::ZERO);
        assert_eq!(patience(Some(0.25)).unwrap(), Duration::from_millis(250));
        assert_eq!(patience(Some(600.0)).unwrap(), Duration::from_secs(600));
        for wrong in [-1.0, 600.5, f64::NAN, f64::INFINITY] {
            assert_eq!(patience(Some(wrong)).unwrap_err().status(), StatusCode::BAD_REQUEST, "{wrong}");
        }
    }

    #[test]
    fn c2_whoever_saw_an_event_wants_the_next() {
        assert_eq!(seen(&HeaderMap::new()).unwrap(), None);
        assert_eq!(seen(&header("")).unwrap(), None);
        assert_eq!(seen(&header("7")).unwrap(), Some(8));
        assert_eq!(seen(&header(&u64::MAX.to_string())).unwrap(), Some(u64::MAX));
        assert_eq!(seen(&header("seven")).unwrap_err().status(), StatusCode::BAD_REQUEST);
    }
}
