//! The files of sandboxes in their bucket: saved, listed, compared, brought back.

use crate::{
    error::{ApiResult, Problems},
    extract::{Json, OptionalJson, Path, Query, Reader, Runner},
    lists,
    state::AppState,
};
use axum::{extract::State, response::Response};
use seawall_api::{
    SandboxId,
    files::FileName,
    http::{DroppedVersions, List, PruneVersions, RestoreVersion, SyncFiles, SyncProgress, Version},
};
use seawall_core::workspaces::{Change, Difference};
use seawall_sync::{
    diff::Note,
    engine::{DryRun, Options, Restored, SyncReport},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// What a list of versions takes: some 100 bytes each.
const VERSIONS: u64 = 1 << 20;

pub fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::default()
        .routes(routes!(sync))
        .routes(routes!(progress))
        .routes(routes!(versions))
        .routes(routes!(delete_version))
        .routes(routes!(prune))
        .routes(routes!(verify))
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
) -> ApiResult<Response> {
    let sandboxes = &state.services().sandboxes;
    let options = Options { regenerate: ask.regenerate, rehash: ask.rehash };
    match ask.dry_run {
        true => {
            let fetch = async { Ok(Cut::new(sandboxes.dry_run(who.account, id, options).await?)) };
            lists::value(&state, who.account, REPORT, fetch).await
        }
        false => {
            let fetch = async { Ok(Cut::new(sandboxes.sync(who.account, id, options).await?)) };
            lists::value(&state, who.account, REPORT, fetch).await
        }
    }
}

/// How far the sync or restore of a sandbox is that runs now.
#[utoipa::path(get, path = "/sandboxes/{id}/progress", tag = "workspaces", operation_id = "sync_progress",
    security(("key" = ["read"])),
    params(("id" = String, Path, description = "The sandbox's id")),
    responses(
        (status = 200, body = SyncProgress),
        Problems,
    ))]
async fn progress(
    State(state): State<AppState>,
    Reader(who): Reader,
    Path(id): Path<SandboxId>,
) -> ApiResult<Json<SyncProgress>> {
    Ok(Json(state.services().sandboxes.progress(who.account, id).await?))
}

/// Entries of each list of a report, at the most, and bytes of their names.
const MOST_ENTRIES: usize = 10_000;
const MOST_NAMES: usize = 512 << 10;
/// What a report takes while it is written.
const REPORT: u64 = 8 << 20;

/// A report whose lists have an end.
#[derive(Debug, Serialize)]
struct Cut<T> {
    #[serde(flatten)]
    report: T,
    /// Some of its lists were longer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

impl<T: Lists> Cut<T> {
    fn new(mut report: T) -> Cut<T> {
        let truncated = report.cut();
        Cut { report, truncated }
    }
}

/// What has lists of a sandbox's files.
trait Lists {
    /// Cuts them. Whether one was longer.
    fn cut(&mut self) -> bool;
}

fn cut<T>(list: &mut Vec<T>, size: impl Fn(&T) -> usize) -> bool {
    let mut bytes = 0;
    let fits = list.iter().take(MOST_ENTRIES).take_while(|entry| {
        bytes += size(entry);
        bytes <= MOST_NAMES
    });
    let fits = fits.count();
    let is_longer = fits < list.len();
    list.truncate(fits);
    list.shrink_to_fit();
    is_longer
}

fn name(name: &FileName) -> usize {
    name.as_bytes().len()
}

fn named((path, why): &(FileName, String)) -> usize {
    name(path) + why.len()
}

fn noted(note: &Note) -> usize {
    match note {
        Note::Conflict { path, kept_as } => name(path) + name(kept_as),
        Note::KeptChanged { path } | Note::Restored { path } => name(path),
    }
}

impl Lists for DryRun {
    fn cut(&mut self) -> bool {
        let all = [
            &mut self.download,
            &mut self.upload,
            &mut self.delete_here,
            &mut self.delete_there,
            &mut self.ignored,
        ];
        let names = all.into_iter().fold(false, |longer, list| cut(list, name) | longer);
        names | cut(&mut self.notes, noted) | cut(&mut self.problems, named)
    }
}

impl Lists for SyncReport {
    fn cut(&mut self) -> bool {
        cut(&mut self.notes, noted) | cut(&mut self.problems, named) | cut(&mut self.damaged, named)
    }
}

impl Lists for Restored {
    fn cut(&mut self) -> bool {
        self.saved.cut() | self.report.cut()
    }
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
) -> ApiResult<Response> {
    let fetch =
        async { Ok(List { items: state.services().sandboxes.versions(who.account, id).await?, next: None }) };
    lists::value(&state, who.account, VERSIONS, fetch).await
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

/// What differs: the first of it, where there is too much for one answer.
#[derive(Debug, Serialize, ToSchema)]
struct PathChanges {
    items: Vec<PathChange>,
    /// There is more: 10,000 paths are told at the most.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

impl From<Difference> for PathChange {
    fn from(difference: Difference) -> Self {
        PathChange { path: difference.path, change: difference.change }
    }
}

/// Reads every body of every version again, and reports the damaged ones. The next sync stores a damaged file anew where the
/// sandbox still has it. Also of a sandbox that was ended.
#[utoipa::path(post, path = "/sandboxes/{id}/versions/verify", tag = "workspaces", operation_id = "verify_versions",
    security(("key" = ["run"])),
    params(("id" = String, Path, description = "The sandbox's id")),
    responses(
        (status = 200, body = Value, content_type = "application/json", description = "What was read, and what is damaged."),
        Problems,
    ))]
async fn verify(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path(id): Path<SandboxId>,
) -> ApiResult<Response> {
    let fetch = state.services().sandboxes.verify(who.account, id);
    lists::value(&state, who.account, REPORT, fetch).await
}

/// What differs between two versions.
#[utoipa::path(get, path = "/sandboxes/{id}/versions/diff", tag = "workspaces", operation_id = "diff_versions",
    security(("key" = ["read"])),
    params(("id" = String, Path, description = "The sandbox's id"), DiffQuery),
    responses(
        (status = 200, body = PathChanges),
        Problems,
    ))]
async fn diff(
    State(state): State<AppState>,
    Reader(who): Reader,
    Path(id): Path<SandboxId>,
    Query(query): Query<DiffQuery>,
) -> ApiResult<Response> {
    let fetch = async {
        let mut found = state.services().sandboxes.diff(who.account, id, query.from, query.to).await?;
        let truncated = cut(&mut found, |change| name(&change.path));
        let items = found.into_iter().map(PathChange::from).collect();
        Ok(PathChanges { items, truncated })
    };
    lists::value(&state, who.account, REPORT, fetch).await
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
) -> ApiResult<Response> {
    let fetch = async {
        let restored = state.services().sandboxes.restore(who.account, id, &ask).await?;
        tracing::info!(account = %who.account, sandbox = %id, version = restored.from, "version restored");
        Ok(Cut::new(restored))
    };
    lists::value(&state, who.account, REPORT, fetch).await
}
