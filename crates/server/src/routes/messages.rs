//! Messages: what was said, in order and in full.

use crate::{
    error::{ApiResult, Problems},
    extract::{self, Path, Query, Reader},
    lists,
    state::AppState,
};
use axum::{extract::State, response::Response};
use futures::FutureExt;
use seawall_api::{ConversationId, MessageId, conversation::Message, http::List};
use seawall_core::ports::store::{Direction, Page};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::default().routes(routes!(list)).routes(routes!(get))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// Of a page: 1 to 1000, 100 unless said.
    limit: Option<u32>,
    /// What the last page gave as `next`.
    after: Option<String>,
    /// Which come first: the oldest, unless said.
    #[param(inline)]
    order: Option<Order>,
}

#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Order {
    Oldest,
    Newest,
}

/// Lists the messages of a conversation.
#[utoipa::path(get, path = "/conversations/{id}/messages", tag = "messages", operation_id = "list_messages",
    security(("key" = ["read"])),
    params(("id" = String, Path, description = "The conversation's id"), ListQuery),
    responses(
        (status = 200, body = List<Message>),
        Problems,
    ))]
async fn list(
    State(state): State<AppState>,
    Reader(who): Reader,
    Path(id): Path<ConversationId>,
    Query(query): Query<ListQuery>,
) -> ApiResult<Response> {
    let stores = &state.services().stores;
    let page = extract::page(query.limit, query.after.as_deref())?;
    let direction = match query.order {
        Some(Order::Newest) => Direction::NewestFirst,
        Some(Order::Oldest) | None => Direction::OldestFirst,
    };
    // The store of messages knows no conversations.
    stores.conversations.get(who.account, id).await?;
    let (messages, account) = (&stores.messages, who.account);
    let sizes = |page: Page| async move { messages.sizes(account, id, direction, &page).await }.boxed();
    let fetch = |page: Page| async move { messages.list(account, id, direction, &page).await }.boxed();
    lists::gather(&state, who.account, page, sizes, fetch).await
}

/// Reads a message.
#[utoipa::path(get, path = "/conversations/{id}/messages/{message}", tag = "messages", operation_id = "get_message",
    security(("key" = ["read"])),
    params(
        ("id" = String, Path, description = "The conversation's id"),
        ("message" = String, Path, description = "The message's id"),
    ),
    responses(
        (status = 200, body = Message),
        Problems,
    ))]
async fn get(
    State(state): State<AppState>,
    Reader(who): Reader,
    Path((id, message)): Path<(ConversationId, MessageId)>,
) -> ApiResult<Response> {
    let stores = &state.services().stores;
    stores.conversations.get(who.account, id).await?;
    let size = stores.messages.size(who.account, id, message).await?;
    lists::value(&state, who.account, size * lists::COPIES, stores.messages.get(who.account, id, message))
        .await
}
