//! Conversations: made, read, listed, changed, deleted.

use crate::{
    error::{ApiResult, Problems},
    extract::{self, Json, Path, Query, Reader, Runner},
    lists,
    state::AppState,
};
use axum::{extract::State, http::StatusCode, response::Response};
use seawall_api::{
    ConversationId, SandboxId,
    conversation::Conversation,
    http::{CreateConversation, List, PatchConversation},
};
use seawall_core::{
    Result, Services,
    ports::store::{ConversationFilter, NewConversation, SortBy},
    turns::check_name,
};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::default().routes(routes!(list, create)).routes(routes!(get, patch, delete))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// Of a page: 1 to 1000, 100 unless said.
    limit: Option<u32>,
    /// What the last page gave as `next`.
    after: Option<String>,
    /// Only those of this organization.
    organization_id: Option<String>,
    /// Only those of this agent.
    agent_id: Option<String>,
    /// Only those that are linked to this sandbox.
    #[param(value_type = Option<String>)]
    sandbox_id: Option<SandboxId>,
    /// By which time the latest come first: of the last change, unless said.
    #[param(inline)]
    sort: Option<Sort>,
}

#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Sort {
    Updated,
    Created,
}

/// Lists conversations, the latest first.
#[utoipa::path(get, path = "/conversations", tag = "conversations", operation_id = "list_conversations",
    security(("key" = ["read"])),
    params(ListQuery),
    responses(
        (status = 200, body = List<Conversation>),
        Problems,
    ))]
async fn list(
    State(state): State<AppState>,
    Reader(who): Reader,
    Query(query): Query<ListQuery>,
) -> ApiResult<Response> {
    let page = extract::page(query.limit, query.after.as_deref())?;
    let filter = ConversationFilter {
        organization_id: query.organization_id,
        agent_id: query.agent_id,
        sandbox_id: query.sandbox_id,
        sort: match query.sort {
            Some(Sort::Created) => SortBy::Created,
            Some(Sort::Updated) | None => SortBy::Updated,
        },
    };
    let fetch = state.services().stores.conversations.list(who.account, &filter, &page);
    lists::list(&state, who.account, page.limit as usize, fetch).await
}

/// Makes a conversation. One that is there already stays as it is, and is the answer.
#[utoipa::path(post, path = "/conversations", tag = "conversations", operation_id = "create_conversation",
    security(("key" = ["run"])),
    request_body = CreateConversation,
    responses(
        (status = 201, body = Conversation, description = "It was made."),
        (status = 200, body = Conversation, description = "It was there."),
        Problems,
    ))]
async fn create(
    State(state): State<AppState>,
    Runner(who): Runner,
    Json(ask): Json<CreateConversation>,
) -> ApiResult<(StatusCode, Json<Conversation>)> {
    let services = state.services();
    check_template(services, ask.template.as_deref())?;
    check_name("organization_id", ask.organization_id.as_deref())?;
    check_name("agent_id", ask.agent_id.as_deref())?;
    let new = NewConversation {
        id: ask.id.unwrap_or_else(ConversationId::generate),
        organization_id: ask.organization_id,
        agent_id: ask.agent_id,
        template: ask.template,
        sandbox_id: None,
        created_at: services.clock.now(),
    };
    let (conversation, is_new) = services.stores.conversations.ensure(who.account, &new).await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    tracing::info!(account = %who.account, conversation = %conversation.id, is_new, "conversation made");
    Ok((status, Json(conversation)))
}

/// Reads a conversation, with its totals.
#[utoipa::path(get, path = "/conversations/{id}", tag = "conversations", operation_id = "get_conversation",
    security(("key" = ["read"])),
    params(("id" = String, Path, description = "The conversation's id")),
    responses(
        (status = 200, body = Conversation),
        Problems,
    ))]
async fn get(
    State(state): State<AppState>,
    Reader(who): Reader,
    Path(id): Path<ConversationId>,
) -> ApiResult<Json<Conversation>> {
    Ok(Json(state.services().stores.conversations.get(who.account, id).await?))
}

/// Changes a conversation: what holds for the turns to come.
#[utoipa::path(patch, path = "/conversations/{id}", tag = "conversations", operation_id = "patch_conversation",
    security(("key" = ["run"])),
    params(("id" = String, Path, description = "The conversation's id")),
    request_body = PatchConversation,
    responses(
        (status = 200, body = Conversation),
        Problems,
    ))]
async fn patch(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path(id): Path<ConversationId>,
    Json(changes): Json<PatchConversation>,
) -> ApiResult<Json<Conversation>> {
    let services = state.services();
    let conversations = &services.stores.conversations;
    if let Some(template) = changes.template.as_deref() {
        check_template(services, Some(template))?;
        let now = services.clock.now();
        conversations.set_template(who.account, id, Some(template), now).await?;
    }
    Ok(Json(conversations.get(who.account, id).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DeleteQuery {
    /// Whether its sandbox ends too. As the server is set up, unless said.
    terminate: Option<bool>,
}

/// Deletes a conversation with its turns and messages. 409 while a turn runs.
#[utoipa::path(delete, path = "/conversations/{id}", tag = "conversations", operation_id = "delete_conversation",
    security(("key" = ["run"])),
    params(("id" = String, Path, description = "The conversation's id"), DeleteQuery),
    responses(
        (status = 204, description = "It is gone."),
        Problems,
    ))]
async fn delete(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path(id): Path<ConversationId>,
    Query(query): Query<DeleteQuery>,
) -> ApiResult<StatusCode> {
    let services = state.services();
    // C5.
    let terminate = query.terminate.unwrap_or(services.delete_terminates_sandbox);
    services.turns.delete_conversation(who.account, id, terminate).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// H7: a name that is not known is an error that says which are.
fn check_template(services: &Services, name: Option<&str>) -> Result<()> {
    if let Some(name) = name {
        services.turns.templates().get(name)?;
    }
    Ok(())
}
