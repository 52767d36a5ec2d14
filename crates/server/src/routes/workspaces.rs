//! The files of sandboxes in their bucket: saved, listed, compared, brought back.

use crate::{
    error::{ApiResult, Problems},
    extract::{Json, OptionalJson, Path, Query, Reader, Runner},
    state::AppState,
};
use axum::extract::State;
use seawall_api::{
    SandboxId,
    files::FileName,
    http::{DroppedVersions, List, PruneVersions, RestoreVersion, SyncFiles, Version},
};
use seawall_core::{
    Error, Result,
    workspaces::{Change, Difference},
};
use seawall_sync::engine::Options;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::default()
        .routes(routes!(sync))
        .routes(routes!(versions))
        .routes(routes!(delete_version))
        .routes(routes!(prune))
        .routes(routes!(diff))
        .routes(routes!(restore))
}

/// Brings a sandbox's files and its bucket together, and says what was done. With `dry_run`: what would be.
#[utoipa::path(post, path = "/sandboxes/{id}/sync", tag = "workspaces", operation_id = "sync_files",
    security(("key" = ["run"])),
    params(("id" = String, Path, description = "The sandbox's id")),
    request_body = Option<SyncFiles>,
    responses(
        (status = 200, body = Value, content_type = "application/json",
            description = "What was done, or would be."),
        Problems,
    ))]
async fn sync(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path(id): Path<SandboxId>,
    OptionalJson(ask): OptionalJson<SyncFiles>,
) -> ApiResult<Json<Value>> {
    let sandboxes = &state.services().sandboxes;
    let options = Options { regenerate: ask.regenerate, rehash: ask.rehash };
    let told = match ask.dry_run {
        true => report(&sandboxes.dry_run(who.account, id, options).await?)?,
        false => report(&sandboxes.sync(who.account, id, options).await?)?,
    };
    Ok(Json(told))
}

/// Lists the versions of a sandbox's files, the oldest first. Also of a sandbox that was ended.
#[utoipa::path(get, path = "/sandboxes/{id}/versions", tag = "workspaces", operation_id = "list_versions",
    security(("key" = ["read"])),
    params(("id" = String, Path, description = "The sandbox's id")),
    responses(
        (status = 200, body = List<Version>),
        Problems,
    ))]
async fn versions(
    State(state): State<AppState>,
    Reader(who): Reader,
    Path(id): Path<SandboxId>,
) -> ApiResult<Json<List<Version>>> {
    let items = state.services().sandboxes.versions(who.account, id).await?;
    Ok(Json(List { items, next: None }))
}

/// Deletes a version, and what no other version has of its files. Also of a sandbox that was ended. The newest stays: it goes
/// only with all others, when the sandbox is deleted with `versions=delete`.
#[utoipa::path(delete, path = "/sandboxes/{id}/versions/{version}", tag = "workspaces", operation_id = "delete_version",
    security(("key" = ["run"])),
    params(
        ("id" = String, Path, description = "The sandbox's id"),
        ("version" = i64, Path, description = "The version, by its name or number"),
    ),
    responses(
        (status = 200, body = DroppedVersions, description = "It is gone."),
        Problems,
    ))]
async fn delete_version(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path((id, version)): Path<(SandboxId, i64)>,
) -> ApiResult<Json<DroppedVersions>> {
    let dropped = state.services().sandboxes.delete_version(who.account, id, version).await?;
    tracing::info!(account = %who.account, sandbox = %id, version, "version deleted");
    Ok(Json(dropped))
}

/// Drops old versions, and what only they have. Also of a sandbox that was ended.
#[utoipa::path(post, path = "/sandboxes/{id}/versions/prune", tag = "workspaces", operation_id = "prune_versions",
    security(("key" = ["run"])),
    params(("id" = String, Path, description = "The sandbox's id")),
    request_body = PruneVersions,
    responses(
        (status = 200, body = DroppedVersions),
        Problems,
    ))]
async fn prune(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path(id): Path<SandboxId>,
    Json(ask): Json<PruneVersions>,
) -> ApiResult<Json<DroppedVersions>> {
    let dropped = state.services().sandboxes.prune_versions(who.account, id, &ask).await?;
    tracing::info!(account = %who.account, sandbox = %id, ?ask, dropped = dropped.dropped.len(), "versions pruned");
    Ok(Json(dropped))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DiffQuery {
    /// A version, by its name or number.
    from: i64,
    /// The newest unless said.
    to: Option<i64>,
}

/// A path that two versions have differently.
#[derive(Debug, Serialize, ToSchema)]
struct PathChange {
    /// Beneath /work. Bytes that are no text are `\xNN`.
    #[schema(value_type = String)]
    path: FileName,
    /// `added`, `changed` or `removed`.
    #[schema(value_type = String)]
    change: Change,
}

impl From<Difference> for PathChange {
    fn from(difference: Difference) -> Self {
        PathChange { path: difference.path, change: difference.change }
    }
}

/// What differs between two versions.
#[utoipa::path(get, path = "/sandboxes/{id}/versions/diff", tag = "workspaces", operation_id = "diff_versions",
    security(("key" = ["read"])),
    params(("id" = String, Path, description = "The sandbox's id"), DiffQuery),
    responses(
        (status = 200, body = List<PathChange>),
        Problems,
    ))]
async fn diff(
    State(state): State<AppState>,
    Reader(who): Reader,
    Path(id): Path<SandboxId>,
    Query(query): Query<DiffQuery>,
) -> ApiResult<Json<List<PathChange>>> {
    let found = state.services().sandboxes.diff(who.account, id, query.from, query.to).await?;
    Ok(Json(List { items: found.into_iter().map(PathChange::from).collect(), next: None }))
}

/// Brings a version back, or a part of it. What is there becomes a version first, so that nothing is lost.
#[utoipa::path(post, path = "/sandboxes/{id}/restore", tag = "workspaces", operation_id = "restore_version",
    security(("key" = ["run"])),
    params(("id" = String, Path, description = "The sandbox's id")),
    request_body = RestoreVersion,
    responses(
        (status = 200, body = Value, content_type = "application/json", description = "What was done."),
        Problems,
    ))]
async fn restore(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path(id): Path<SandboxId>,
    Json(ask): Json<RestoreVersion>,
) -> ApiResult<Json<Value>> {
    let restored = state.services().sandboxes.restore(who.account, id, &ask).await?;
    tracing::info!(account = %who.account, sandbox = %id, version = restored.from, "version restored");
    Ok(Json(report(&restored)?))
}

fn report<T: Serialize>(told: &T) -> Result<Value> {
    serde_json::to_value(told).map_err(|error| Error::internal("a report that is no JSON").with_source(error))
}
