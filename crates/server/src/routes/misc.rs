//! What the server is made of, and how it is.

use crate::{
    docs_page,
    error::{ApiError, ApiResult, Problems},
    extract::{Admin, Caller, Json, Path, Query, Reader},
    health, openapi,
    routes::accounts::operator,
    state::AppState,
};
use axum::{
    extract::State,
    http::{HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use seawall_api::{
    account::KeyScope,
    http::{Health, HealthStatus, List, ProviderInfo, Reconciliation},
    sandbox::Limits,
};
use seawall_core::templates::Template;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::default()
        .routes(routes!(list_templates))
        .routes(routes!(get_template))
        .routes(routes!(list_providers))
        .routes(routes!(reconcile))
        .routes(routes!(get_health))
        .routes(routes!(get_ready))
        .routes(routes!(get_metrics))
        .routes(routes!(get_openapi))
        .routes(routes!(get_docs))
}

/// What callers may know of a template. Its variables and hooks may have secrets in them, and stay with the operator.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
struct TemplateInfo {
    name: String,
    description: String,
    /// The agent: `shell`, `claude-code`, `codex`.
    driver: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    /// Of a turn.
    timeout_seconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    limits: Limits,
    /// Whether its files are kept in a bucket.
    sync: bool,
    /// The repository that is cloned at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    repository: Option<String>,
}

impl From<&Template> for TemplateInfo {
    fn from(template: &Template) -> TemplateInfo {
        let Template { name, description, agent, sandbox, sync, git, .. } = template;
        TemplateInfo {
            name: name.clone(),
            description: description.clone(),
            driver: agent.driver.clone(),
            model: agent.model.clone(),
            timeout_seconds: agent.timeout_seconds,
            provider: sandbox.provider.clone(),
            image: sandbox.image.clone(),
            limits: sandbox.limits,
            sync: sync.enabled,
            repository: git.as_ref().map(|git| git.repo.clone()),
        }
    }
}

/// All templates, by name.
#[utoipa::path(get, path = "/templates", tag = "service", operation_id = "list_templates",
    security(("key" = ["read"])),
    responses(
        (status = 200, body = List<TemplateInfo>),
        Problems,
    ))]
async fn list_templates(State(state): State<AppState>, _: Reader) -> Json<List<TemplateInfo>> {
    let items = state.services().turns.templates().all().map(TemplateInfo::from).collect();
    Json(List { items, next: None })
}

/// One template.
#[utoipa::path(get, path = "/templates/{name}", tag = "service", operation_id = "get_template",
    security(("key" = ["read"])),
    params(("name" = String, Path, description = "E.g. `shell`")),
    responses(
        (status = 200, body = TemplateInfo),
        Problems,
    ))]
async fn get_template(
    State(state): State<AppState>,
    _: Reader,
    Path(name): Path<String>,
) -> ApiResult<Json<TemplateInfo>> {
    let templates = state.services().turns.templates();
    let found = templates.get(&name);
    // Core takes a wrong name for a wrong request; here it is what was asked for.
    let template = found.map_err(|error| ApiError::not_found("not_found", error.to_string()))?;
    Ok(Json(TemplateInfo::from(template)))
}

/// The providers, whether each can make sandboxes now, and what each can do.
#[utoipa::path(get, path = "/providers", tag = "service", operation_id = "list_providers",
    security(("key" = ["read"])),
    responses(
        (status = 200, body = List<ProviderInfo>),
        Problems,
    ))]
async fn list_providers(State(state): State<AppState>, Reader(who): Reader) -> Json<List<ProviderInfo>> {
    Json(List { items: state.services().sandboxes.providers(who.account).await, next: None })
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ReconcileQuery {
    /// Reports what would be done, and changes nothing. False by default.
    dry_run: Option<bool>,
}

/// Compares sandboxes with the boxes of all providers, and mends differences. A server does it each minute by itself. For
/// operators.
#[utoipa::path(post, path = "/reconcile", tag = "service", operation_id = "reconcile",
    security(("key" = ["admin"])),
    params(ReconcileQuery),
    responses(
        (status = 200, body = Reconciliation),
        Problems,
    ))]
async fn reconcile(
    State(state): State<AppState>,
    Admin(who): Admin,
    Query(query): Query<ReconcileQuery>,
) -> ApiResult<Json<Reconciliation>> {
    operator(&who)?;
    Ok(Json(state.services().sandboxes.reconcile(query.dry_run.unwrap_or(false)).await?))
}

/// Whether the process lives. It asks nobody else.
#[utoipa::path(get, path = "/health", tag = "service", operation_id = "get_health",
    security(()),
    responses((status = 200, body = Health)))]
async fn get_health() -> Json<Health> {
    Json(health::alive())
}

/// Whether the server can do its work: for who sends it requests.
#[utoipa::path(get, path = "/ready", tag = "service", operation_id = "get_ready",
    security(()),
    responses(
        (status = 200, body = Health),
        (status = 503, body = Health, description = "Not now: `checks` says why"),
    ))]
async fn get_ready(State(state): State<AppState>) -> Response {
    let health = state.readiness().get(&state).await;
    let status = match health.status {
        HealthStatus::Ok => StatusCode::OK,
        HealthStatus::Unready => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, Json(health)).into_response()
}

/// Numbers for Prometheus. The server may be set up to show them without a key.
#[utoipa::path(get, path = "/metrics", tag = "service", operation_id = "get_metrics",
    security(("key" = ["admin"])),
    responses(
        (status = 200, body = String, content_type = "text/plain"),
        Problems,
    ))]
async fn get_metrics(State(state): State<AppState>, caller: Caller) -> ApiResult<Response> {
    if !state.options().public_metrics {
        super::accounts::operator(&caller.need(KeyScope::Admin)?)?;
    }
    let text = crate::metrics::collect(&state).await;
    let headers = [(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"))];
    Ok((headers, text).into_response())
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "service", operation_id = "get_openapi",
    security(()),
    responses((status = 200, body = Value, content_type = "application/json")))]
async fn get_openapi() -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], openapi::json()).into_response()
}

/// This document, for people.
#[utoipa::path(get, path = "/docs", tag = "service", operation_id = "get_docs",
    security(()),
    responses((status = 200, body = String, content_type = "text/html")))]
async fn get_docs() -> Response {
    docs_page::page()
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_core::templates::{AgentPart, SandboxPart};
    use std::collections::BTreeMap;

    #[test]
    fn a_template_shows_no_secrets() {
        let env = BTreeMap::from([("TOKEN".to_owned(), "hunter2".to_owned())]);
        let template = Template {
            name: "mine".to_owned(),
            agent: AgentPart { env: env.clone(), ..AgentPart::default() },
            sandbox: SandboxPart { env, ..SandboxPart::default() },
            ..Template::default()
        };
        let told = serde_json::to_string(&TemplateInfo::from(&template)).unwrap();
        assert!(told.contains("mine") && !told.contains("hunter2"), "{told}");
    }
}
