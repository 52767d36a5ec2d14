//! Sandboxes: made, looked at, stopped, ended.

use crate::{
    error::{ApiError, ApiResult, Problems},
    extract::{self, Json, OptionalJson, PageQuery, Path, Query, Reader, Runner},
    lists,
    state::AppState,
};
use axum::{extract::State, http::StatusCode, response::Response};
use futures::FutureExt;
use seawall_api::{
    SandboxId,
    hook::HookRun,
    http::{CreateSandbox, List, PatchSandbox, SandboxMetrics, StopSandbox},
    sandbox::{Sandbox, SandboxState},
};
use seawall_core::{
    ports::{
        Volumes,
        store::{Page, Paged, SandboxFilter},
    },
    sandboxes::MAX_GRACE,
    service::EndSandbox,
};
use serde::Deserialize;
use std::time::Duration;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

/// What a guest's list of processes may take: a frame, parsed and written again.
pub(super) const PROCESSES: u64 = 4 << 20;

pub fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::default()
        .routes(routes!(list, create))
        .routes(routes!(get, patch, delete))
        .routes(routes!(start))
        .routes(routes!(stop))
        .routes(routes!(metrics))
        .routes(routes!(hooks))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// Of a page: 1 to 1000, 100 unless said.
    limit: Option<u32>,
    /// What the last page gave as `next`.
    after: Option<String>,
    /// Only those in this state. All but the terminated ones, unless said.
    #[param(value_type = Option<String>)]
    state: Option<SandboxState>,
    /// Only the one of this name.
    name: Option<String>,
}

/// Lists sandboxes, the newest first.
#[utoipa::path(get, path = "/sandboxes", tag = "sandboxes", operation_id = "list_sandboxes",
    security(("key" = ["read"])),
    params(ListQuery),
    responses(
        (status = 200, body = List<Sandbox>),
        Problems,
    ))]
async fn list(
    State(state): State<AppState>,
    Reader(who): Reader,
    Query(query): Query<ListQuery>,
) -> ApiResult<Response> {
    let page = extract::page(query.limit, query.after.as_deref())?;
    let filter = SandboxFilter { name: query.name, state: query.state };
    let (sandboxes, account, filter) = (&state.services().sandboxes, who.account, &filter);
    let sizes = |page: Page| async move { sandboxes.sizes(account, filter, &page).await }.boxed();
    let fetch = |page: Page| async move { sandboxes.list(account, filter, &page).await }.boxed();
    lists::gather(&state, who.account, page, sizes, fetch).await
}

/// Makes a sandbox, and starts it unless told otherwise. With an id of the caller's own, asking twice makes one.
#[utoipa::path(post, path = "/sandboxes", tag = "sandboxes", operation_id = "create_sandbox",
    security(("key" = ["run"])),
    request_body = Option<CreateSandbox>,
    responses(
        (status = 201, body = Sandbox, description = "It is there, and runs unless it should not."),
        Problems,
    ))]
async fn create(
    State(state): State<AppState>,
    Runner(who): Runner,
    OptionalJson(ask): OptionalJson<Wish>,
) -> ApiResult<(StatusCode, Json<Sandbox>)> {
    let sandboxes = &state.services().sandboxes;
    let sandbox = sandboxes.create_with(who.account, &ask.0, who.is_host_user()).await?;
    tracing::info!(account = %who.account, sandbox = %sandbox.info.id, "sandbox made");
    Ok((StatusCode::CREATED, Json(sandbox)))
}

/// What is asked for, where no body is a sandbox as the server makes it: one that runs.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
struct Wish(CreateSandbox);

impl Default for Wish {
    fn default() -> Self {
        Wish(CreateSandbox { start: true, ..CreateSandbox::default() })
    }
}

/// Reads a sandbox, also one that was ended.
#[utoipa::path(get, path = "/sandboxes/{id}", tag = "sandboxes", operation_id = "get_sandbox",
    security(("key" = ["read"])),
    params(("id" = String, Path, description = "The sandbox's id")),
    responses(
        (status = 200, body = Sandbox),
        Problems,
    ))]
async fn get(
    State(state): State<AppState>,
    Reader(who): Reader,
    Path(id): Path<SandboxId>,
) -> ApiResult<Json<Sandbox>> {
    Ok(Json(state.services().sandboxes.get(who.account, id).await?))
}

/// Changes a sandbox's metadata: keys are set, and taken away where the value is null.
#[utoipa::path(patch, path = "/sandboxes/{id}", tag = "sandboxes", operation_id = "patch_sandbox",
    security(("key" = ["run"])),
    params(("id" = String, Path, description = "The sandbox's id")),
    request_body = PatchSandbox,
    responses(
        (status = 200, body = Sandbox),
        Problems,
    ))]
async fn patch(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path(id): Path<SandboxId>,
    Json(changes): Json<PatchSandbox>,
) -> ApiResult<Json<Sandbox>> {
    Ok(Json(state.services().sandboxes.set_metadata(who.account, id, &changes.metadata).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EndQuery {
    /// Whether its files are saved first. True unless said.
    sync: Option<bool>,
    /// Also where they cannot be saved. False unless said.
    force: Option<bool>,
    /// `keep` or `delete`. They go where the bucket has them, unless said; one that sandboxes share stays. Those of
    /// accounts other than the operator's always go, but for one that another sandbox uses.
    #[param(value_type = Option<String>)]
    volumes: Option<Volumes>,
    /// `keep` or `delete`: what becomes of all versions of its files. They stay unless said. With `delete` its files are
    /// saved first only where `sync` says so.
    #[param(value_type = Option<String>)]
    versions: Option<Versions>,
}

/// What becomes of all versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Versions {
    Keep,
    Delete,
}

/// Ends a sandbox for good. Where its files cannot be saved it stays, unless forced. With `versions=delete` nothing of its
/// files stays in the bucket; that can also be asked for after its end.
#[utoipa::path(delete, path = "/sandboxes/{id}", tag = "sandboxes", operation_id = "delete_sandbox",
    security(("key" = ["run"])),
    params(("id" = String, Path, description = "The sandbox's id"), EndQuery),
    responses(
        (status = 200, body = Sandbox, description = "It is ended. Ending it again is fine."),
        Problems,
    ))]
async fn delete(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path(id): Path<SandboxId>,
    Query(query): Query<EndQuery>,
) -> ApiResult<Json<Sandbox>> {
    let delete_versions = query.versions == Some(Versions::Delete);
    let how = EndSandbox {
        sync: query.sync.unwrap_or(!delete_versions),
        force: query.force.unwrap_or(false),
        volumes: query.volumes,
        delete_versions,
    };
    let sandbox = state.services().sandboxes.end(who.account, id, &how).await?;
    tracing::info!(account = %who.account, sandbox = %id, ?how, "sandbox ended");
    Ok(Json(sandbox))
}

/// Starts a sandbox that does not run. One that runs stays as it is.
#[utoipa::path(post, path = "/sandboxes/{id}/start", tag = "sandboxes", operation_id = "start_sandbox",
    security(("key" = ["run"])),
    params(("id" = String, Path, description = "The sandbox's id")),
    responses(
        (status = 200, body = Sandbox),
        Problems,
    ))]
async fn start(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path(id): Path<SandboxId>,
) -> ApiResult<Json<Sandbox>> {
    Ok(Json(state.services().sandboxes.start(who.account, id).await?))
}

/// Stops a sandbox: its processes end, its files stay. The next use starts it again.
#[utoipa::path(post, path = "/sandboxes/{id}/stop", tag = "sandboxes", operation_id = "stop_sandbox",
    security(("key" = ["run"])),
    params(("id" = String, Path, description = "The sandbox's id")),
    request_body = Option<StopSandbox>,
    responses(
        (status = 200, body = Sandbox),
        Problems,
    ))]
async fn stop(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path(id): Path<SandboxId>,
    OptionalJson(ask): OptionalJson<StopSandbox>,
) -> ApiResult<Json<Sandbox>> {
    let grace = ask.grace_ms.map(Duration::from_millis);
    if grace.is_some_and(|grace| grace > MAX_GRACE) {
        let detail = format!("`grace_ms` is at most {}", MAX_GRACE.as_millis());
        return Err(ApiError::invalid("invalid", detail));
    }
    Ok(Json(state.services().sandboxes.stop(who.account, id, grace, ask.force).await?))
}

/// What a running sandbox uses now. It does not start one that does not run.
#[utoipa::path(get, path = "/sandboxes/{id}/metrics", tag = "sandboxes", operation_id = "sandbox_metrics",
    security(("key" = ["read"])),
    params(("id" = String, Path, description = "The sandbox's id")),
    responses(
        (status = 200, body = SandboxMetrics),
        Problems,
    ))]
async fn metrics(
    State(state): State<AppState>,
    Reader(who): Reader,
    Path(id): Path<SandboxId>,
) -> ApiResult<Response> {
    let fetch = state.services().sandboxes.metrics(who.account, id);
    lists::value(&state, who.account, PROCESSES, fetch).await
}

/// Lists the runs of hooks in a sandbox, the newest first: which failed, and why. Also of a sandbox that was ended.
#[utoipa::path(get, path = "/sandboxes/{id}/hooks", tag = "sandboxes", operation_id = "list_hook_runs",
    security(("key" = ["read"])),
    params(("id" = String, Path, description = "The sandbox's id"), PageQuery),
    responses(
        (status = 200, body = List<HookRun>),
        Problems,
    ))]
async fn hooks(
    State(state): State<AppState>,
    Reader(who): Reader,
    Path(id): Path<SandboxId>,
    Query(query): Query<PageQuery>,
) -> ApiResult<Response> {
    let services = state.services();
    let page = extract::page(query.limit, query.after.as_deref())?;
    let fetch = async {
        let found = services.stores.hook_runs.list(who.account, Some(id), &page).await?;
        if found.items.is_empty() {
            // Of one that could not be made nothing is left but its runs.
            services.sandboxes.get(who.account, id).await?;
        }
        let items = found.items.into_iter().map(|run| run.told_to(who.account)).collect();
        Ok(Paged { items, next: found.next })
    };
    lists::list(&state, who.account, page.limit as usize, fetch).await
}
