//! The server itself and its database, for operators. `GET /server` and `POST /server/stop` never change, so that a command of
//! any version can find out about a server and stop it.

use crate::{
    error::{ApiError, ApiResult, Problems},
    extract::{Admin, Json, OptionalJson, Path},
    routes::accounts::operator,
    state::AppState,
};
use axum::{
    body::Body,
    extract::State,
    http::{HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use futures::TryStreamExt;
use seawall_api::http::{DatabaseCheck, List, ServerStatus, StopServer, VolumeInfo};
use seawall_core::{Error, ports::store::Database};
use std::{path::PathBuf, sync::Arc};
use tokio_util::io::ReaderStream;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::default()
        .routes(routes!(get_server))
        .routes(routes!(stop_server))
        .routes(routes!(list_volumes))
        .routes(routes!(remove_volume))
        .routes(routes!(check_database))
        .routes(routes!(backup_database))
}

/// Which server this is, how it was started, and its current work. For operators.
#[utoipa::path(get, path = "/server", tag = "service", operation_id = "get_server",
    security(("key" = ["admin"])),
    responses(
        (status = 200, body = ServerStatus),
        Problems,
    ))]
async fn get_server(State(state): State<AppState>, Admin(who): Admin) -> ApiResult<Json<ServerStatus>> {
    operator(&who)?;
    let activity = state.services().activity().await?;
    Ok(Json(ServerStatus {
        server: state.instance().info.clone(),
        running_sandboxes: activity.sandboxes,
        running_turns: activity.turns,
        connections: state.places().count() as u64,
    }))
}

/// Asks the server to stop. Sandboxes run on, and the next server continues them and their turns. For operators.
#[utoipa::path(post, path = "/server/stop", tag = "service", operation_id = "stop_server",
    security(("key" = ["admin"])),
    request_body = Option<StopServer>,
    responses(
        (status = 202, description = "It stops."),
        Problems,
    ))]
async fn stop_server(
    State(state): State<AppState>,
    Admin(who): Admin,
    OptionalJson(ask): OptionalJson<StopServer>,
) -> ApiResult<StatusCode> {
    operator(&who)?;
    let instance = &state.instance().info.instance;
    if ask.instance.is_some_and(|named| named != *instance) {
        let detail = format!("another server runs by now, the instance {instance}; it was not stopped");
        return Err(ApiError::conflict("other_instance", detail));
    }
    tracing::info!(caller = ?who.caller, replaced = ask.replaced, "the server is asked to stop");
    state.instance().stop.ask(ask.replaced);
    Ok(StatusCode::ACCEPTED)
}

/// The data volumes, also of sandboxes that are gone. For operators.
#[utoipa::path(get, path = "/volumes", tag = "service", operation_id = "list_volumes",
    security(("key" = ["admin"])),
    responses(
        (status = 200, body = List<VolumeInfo>),
        Problems,
    ))]
async fn list_volumes(State(state): State<AppState>, Admin(who): Admin) -> ApiResult<Json<List<VolumeInfo>>> {
    operator(&who)?;
    let boxes = state.services().sandboxes.boxes();
    // A removal that a crash cut short is finished first, so that no volume is listed that is about to go.
    boxes.sweep().await?;
    Ok(Json(List { items: boxes.volumes().await?, next: None }))
}

/// Removes a volume that no sandbox uses, with all its files. For operators.
#[utoipa::path(delete, path = "/volumes/{name}", tag = "service", operation_id = "remove_volume",
    security(("key" = ["admin"])),
    params(("name" = String, Path, description = "The id of the sandbox that had it, or the name that it was shared by")),
    responses(
        (status = 204, description = "It is gone."),
        Problems,
    ))]
async fn remove_volume(
    State(state): State<AppState>,
    Admin(who): Admin,
    Path(name): Path<String>,
) -> ApiResult<StatusCode> {
    operator(&who)?;
    state.services().sandboxes.boxes().remove_volume(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Compares all totals of the database with the rows that they come from. For operators.
#[utoipa::path(get, path = "/db/check", tag = "service", operation_id = "check_database",
    security(("key" = ["admin"])),
    responses(
        (status = 200, body = DatabaseCheck),
        Problems,
    ))]
async fn check_database(State(state): State<AppState>, Admin(who): Admin) -> ApiResult<Json<DatabaseCheck>> {
    operator(&who)?;
    Ok(Json(database(&state)?.check().await?))
}

/// A whole and checked copy of the database, made while it is in use (SQLite). For operators.
#[utoipa::path(get, path = "/db/backup", tag = "service", operation_id = "backup_database",
    security(("key" = ["admin"])),
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        Problems,
    ))]
async fn backup_database(State(state): State<AppState>, Admin(who): Admin) -> ApiResult<Response> {
    operator(&who)?;
    let folder = PathBuf::from(&state.instance().info.data);
    let copy = Copy(folder.join(format!(".backup-{}.db", seawall_api::ProcessId::generate())));
    let found = database(&state)?.backup(&copy.0).await?;
    if !found.ok {
        let detail = format!("the database is damaged: {}", found.wrong.join("; "));
        return Err(ApiError::internal(&detail));
    }
    let failed = |error| Error::internal("the copy of the database cannot be read").with_source(error);
    let file = tokio::fs::File::open(&copy.0).await.map_err(failed)?;
    // The file goes with the answer, also where the caller hangs up.
    let body = ReaderStream::with_capacity(file, 256 << 10).inspect_ok(move |_| {
        let _kept = &copy;
    });
    let headers = [(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"))];
    Ok((headers, Body::from_stream(body)).into_response())
}

fn database(state: &AppState) -> ApiResult<Arc<dyn Database>> {
    let database = state.instance().database.clone();
    database.ok_or_else(|| ApiError::of(&Error::unavailable("this server has no database of its own")))
}

/// A file that is removed when it is dropped.
struct Copy(PathBuf);

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
