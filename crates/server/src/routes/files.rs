//! Files of sandboxes: listed, read, written, moved, removed. Paths are as the sandbox's user means them.

#[cfg(feature = "fuzzing")]
mod fuzzing;
mod ranges;

#[cfg(feature = "fuzzing")]
pub use fuzzing::ranges;

use super::exec::guest_error;
use crate::{
    error::{ApiError, ApiResult, Problems},
    extract::{Json, Path, Query, Reader, Runner},
    in_flight::{InFlight, UNREAD},
    lists,
    state::AppState,
};
use axum::{
    body::Body,
    extract::State,
    http::{
        HeaderMap, HeaderValue, Method, StatusCode,
        header::{
            ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH, IF_RANGE, RANGE,
            X_CONTENT_TYPE_OPTIONS,
        },
    },
    response::{IntoResponse, Response},
};
use futures::{StreamExt, stream};
use ranges::{Range, Wanted};
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    files::{EntryKind, FileName, FileRef, MakeDir, MoveFile, WriteFile, WriteMode},
    http::{FileInfo, List, MakeDirectory, MovePath, Problem, Tree},
    sandbox::WORKDIR,
};
use seawall_core::service::{ListFiles, ReadAsk, Source};
use seawall_wire::{Error, FileReader, FileWriter, Guest};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

/// How deep a tree is, where nobody says.
const DEPTH: u32 = 3;
/// What a list of files or a tree takes while it is made: see `MAX_NAMES` of core.
const NAMES: u64 = 6 << 20;
/// Bodies that are at least so large have a connection of their own.
const LARGE: u64 = 1 << 20;

pub fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::default()
        .routes(routes!(list, remove))
        .routes(routes!(tree))
        .routes(routes!(read, write))
        .routes(routes!(make_directory))
        .routes(routes!(move_path))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// A directory. /work unless said; relative paths begin there.
    path: Option<String>,
    /// 1, unless said: the directory alone.
    depth: Option<u32>,
    /// For names, with `*` and `?`.
    pattern: Option<String>,
    /// Only `file`, `directory`, `symlink`, `fifo`, `socket` or `device`.
    #[param(value_type = Option<String>)]
    kind: Option<EntryKind>,
    /// Also names that begin with a dot. True unless said.
    hidden: Option<bool>,
    /// Of a page: 1 to 1000, 100 unless said.
    limit: Option<u32>,
    /// What the last page gave as `next`.
    after: Option<String>,
}

/// Lists files, in the order of their names.
#[utoipa::path(get, path = "/sandboxes/{id}/files", tag = "files", operation_id = "list_files",
    security(("key" = ["read"])),
    params(("id" = String, Path, description = "The sandbox's id"), ListQuery),
    responses(
        (status = 200, body = List<FileInfo>),
        Problems,
    ))]
async fn list(
    State(state): State<AppState>,
    Reader(who): Reader,
    Path(id): Path<SandboxId>,
    Query(query): Query<ListQuery>,
) -> ApiResult<Response> {
    let unless_said = ListFiles::default();
    let ask = ListFiles {
        path: query.path.unwrap_or(unless_said.path),
        depth: query.depth.unwrap_or(unless_said.depth),
        pattern: query.pattern,
        kind: query.kind,
        hidden: query.hidden.unwrap_or(unless_said.hidden),
        limit: query.limit.unwrap_or(unless_said.limit),
        after: query.after,
    };
    let fetch = state.services().sandboxes.list_files(who.account, id, &ask);
    lists::value(&state, who.account, NAMES, fetch).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RemoveQuery {
    path: String,
    /// Also what is in it. False unless said.
    recursive: Option<bool>,
}

/// Removes a file or a directory.
#[utoipa::path(delete, path = "/sandboxes/{id}/files", tag = "files", operation_id = "remove_file",
    security(("key" = ["run"])),
    params(("id" = String, Path, description = "The sandbox's id"), RemoveQuery),
    responses(
        (status = 204, description = "It is gone."),
        Problems,
    ))]
async fn remove(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path(id): Path<SandboxId>,
    Query(query): Query<RemoveQuery>,
) -> ApiResult<StatusCode> {
    let guest = state.services().sandboxes.guest(who.account, id).await?;
    let recursive = query.recursive.unwrap_or(false);
    guest.remove(FileRef::new(query.path), recursive).await.map_err(guest_error)?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TreeQuery {
    /// A directory. /work unless said; relative paths begin there.
    path: Option<String>,
    /// How many levels. 3 unless said.
    depth: Option<u32>,
}

/// A directory with what is in it.
#[utoipa::path(get, path = "/sandboxes/{id}/tree", tag = "files", operation_id = "file_tree",
    security(("key" = ["read"])),
    params(("id" = String, Path, description = "The sandbox's id"), TreeQuery),
    responses(
        (status = 200, body = Tree),
        Problems,
    ))]
async fn tree(
    State(state): State<AppState>,
    Reader(who): Reader,
    Path(id): Path<SandboxId>,
    Query(query): Query<TreeQuery>,
) -> ApiResult<Response> {
    let (path, depth) = (query.path.as_deref().unwrap_or(WORKDIR), query.depth.unwrap_or(DEPTH));
    let fetch = state.services().sandboxes.tree(who.account, id, path, depth);
    lists::value(&state, who.account, NAMES, fetch).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ReadQuery {
    path: String,
    /// `working_dir`, `home_dir` or `box`: beneath what the path is. `box` unless said.
    #[param(value_type = Option<String>)]
    source: Option<Source>,
    /// A file that is larger is refused.
    max_size: Option<u64>,
}

/// Reads a file, or a range of it. HEAD tells its size alone.
#[utoipa::path(get, path = "/sandboxes/{id}/content", tag = "files", operation_id = "read_file",
    security(("key" = ["read"])),
    params(
        ("id" = String, Path, description = "The sandbox's id"),
        ReadQuery,
        ("Range" = Option<String>, Header, description = "One range: `bytes=0-99`, `bytes=100-` or `bytes=-100`"),
        ("If-None-Match" = Option<String>, Header, description = "The ETag of what the caller has"),
    ),
    responses(
        (status = 200, content_type = "application/octet-stream", body = Vec<u8>),
        (status = 206, content_type = "application/octet-stream", body = Vec<u8>, description = "The range."),
        (status = 304, description = "The caller has it."),
        (status = 416, body = Problem, content_type = "application/problem+json", description = "No such range."),
        Problems,
    ))]
async fn read(
    State(state): State<AppState>,
    Reader(who): Reader,
    Path(id): Path<SandboxId>,
    Query(query): Query<ReadQuery>,
    method: Method,
    place: InFlight,
    headers: HeaderMap,
) -> ApiResult<Response> {
    place.reserve(who.account, UNREAD).await?;
    let file = ReadAsk {
        source: query.source.unwrap_or_default(),
        path: query.path,
        max_size: query.max_size,
        ..ReadAsk::default()
    };
    // Who asks for the whole is spared a look.
    let looks = method == Method::HEAD || headers.contains_key(RANGE) || headers.contains_key(IF_NONE_MATCH);
    if !looks {
        return whole(&state, who.account, id, &file).await;
    }
    let sandboxes = &state.services().sandboxes;
    let seen = sandboxes.stat_file(who.account, id, file.source, &file.path).await?;
    if ranges::is_known(&headers, &tag(&seen)) {
        return Ok((StatusCode::NOT_MODIFIED, [(ETAG, value(tag(&seen)))]).into_response());
    }
    if method == Method::HEAD {
        return head(&seen);
    }
    match wanted(&headers, &seen)? {
        Wanted::Whole => whole(&state, who.account, id, &file).await,
        Wanted::Part(range) => part(&state, who.account, id, &file, &seen, range).await,
    }
}

/// Which part is asked for, of a file as it is now.
fn wanted(headers: &HeaderMap, seen: &FileInfo) -> ApiResult<Wanted> {
    // Of what says it has no size, as files of /proc do, there are no parts.
    let asked = headers.get(RANGE).filter(|_| seen.size > 0);
    // Who has a part of something else wants the whole.
    let fits = headers.get(IF_RANGE).is_none_or(|has| has.as_bytes() == tag(seen).as_bytes());
    match asked.filter(|_| fits).and_then(|asked| asked.to_str().ok()) {
        None => Ok(Wanted::Whole),
        Some(asked) => ranges::parse(asked, seen.size).ok_or_else(|| {
            let detail = format!("`{asked}` is no range of a file of {} bytes", seen.size);
            ApiError::new(StatusCode::RANGE_NOT_SATISFIABLE, "invalid_range", detail)
                .header(CONTENT_RANGE, value(format!("bytes */{}", seen.size)))
        }),
    }
}

fn head(seen: &FileInfo) -> ApiResult<Response> {
    if seen.kind == EntryKind::Directory {
        let detail = format!("{} is a directory; list it instead", seen.path);
        return Err(ApiError::invalid(ErrorKind::Invalid.as_str(), detail));
    }
    Ok(answer(StatusCode::OK, seen, Some(seen.size), Body::empty()))
}

async fn whole(state: &AppState, account: AccountId, id: SandboxId, file: &ReadAsk) -> ApiResult<Response> {
    let (seen, reader) = state.services().sandboxes.read_file(account, id, file).await?;
    same(&seen, &reader)?;
    // What says it has no size may have bytes all the same.
    let length = Some(seen.size).filter(|size| *size > 0);
    Ok(answer(StatusCode::OK, &seen, length, body(reader)))
}

async fn part(
    state: &AppState,
    account: AccountId,
    id: SandboxId,
    file: &ReadAsk,
    seen: &FileInfo,
    range: Range,
) -> ApiResult<Response> {
    let ask = ReadAsk { offset: range.first, length: Some(range.length()), ..file.clone() };
    let (now, reader) = state.services().sandboxes.read_file(account, id, &ask).await?;
    same(&now, &reader)?;
    if tag(&now) != tag(seen) {
        return Err(changed(&now));
    }
    let mut response = answer(StatusCode::PARTIAL_CONTENT, &now, Some(range.length()), body(reader));
    let place = format!("bytes {}-{}/{}", range.first, range.last, now.size);
    response.headers_mut().insert(CONTENT_RANGE, value(place));
    Ok(response)
}

/// What was looked at must be what is read: its length is promised before its bytes come.
fn same(seen: &FileInfo, reader: &FileReader) -> ApiResult<()> {
    match reader.entry().size == seen.size {
        true => Ok(()),
        false => Err(changed(seen)),
    }
}

fn changed(seen: &FileInfo) -> ApiError {
    let detail = format!("{} was changed just now; read it again", seen.path);
    ApiError::conflict("changed", detail).retry_after(1)
}

fn answer(status: StatusCode, seen: &FileInfo, length: Option<u64>, body: Body) -> Response {
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    // Whatever it is, no browser shall run it here.
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(ETAG, value(tag(seen)));
    if let Some(length) = length {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    response
}

/// A file as it is: another size or time is another file.
fn tag(seen: &FileInfo) -> String {
    format!("\"{:x}-{:x}\"", seen.size, seen.modified_at.as_nanosecond())
}

/// Numbers and plain words are header values in any case.
fn value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// An error breaks the connection off: a part must not pass for the whole.
fn body(reader: FileReader) -> Body {
    Body::from_stream(stream::try_unfold(reader, |mut reader| async move {
        let next = reader.next().await?;
        Ok::<_, Error>(next.map(|bytes| (bytes, reader)))
    }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WriteQuery {
    path: String,
    /// Permissions in octal, e.g. `0755`. Those of the file that is there, else 0644, unless said.
    mode: Option<String>,
    /// Directories above it are made. True unless said.
    parents: Option<bool>,
    /// A body that is larger is refused.
    max_size: Option<u64>,
}

/// Writes a file. It has its old body until the new one is whole.
#[utoipa::path(put, path = "/sandboxes/{id}/content", tag = "files", operation_id = "write_file",
    security(("key" = ["run"])),
    params(("id" = String, Path, description = "The sandbox's id"), WriteQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "Of any size."),
    responses(
        (status = 200, body = FileInfo),
        Problems,
    ))]
async fn write(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path(id): Path<SandboxId>,
    Query(query): Query<WriteQuery>,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<Json<FileInfo>> {
    let sandboxes = &state.services().sandboxes;
    let file = WriteFile {
        file: FileRef::new(query.path.as_str()),
        mode: WriteMode::Replace,
        permissions: query.mode.as_deref().map(permissions).transpose()?,
        mtime: None,
        parents: query.parents.unwrap_or(true),
        max_size: query.max_size,
    };
    let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if let (Some(most), Some(length)) = (query.max_size, announced)
        && length > most
    {
        let detail = format!("the body has {length} bytes, more than {most}");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorKind::TooLarge.as_str(), detail));
    }
    let guest = sandboxes.guest(who.account, id).await?;
    let writer = begin(&guest, file, announced).await.map_err(guest_error)?;
    fill(writer, body).await?;
    Ok(Json(sandboxes.stat_file(who.account, id, Source::Box, &query.path).await?))
}

async fn begin(guest: &Guest, file: WriteFile, announced: Option<u64>) -> Result<FileWriter, Error> {
    match announced.is_some_and(|length| length < LARGE) {
        true => guest.write(file).await,
        false => guest.write_bulk(file).await,
    }
}

/// Only a body that arrived whole is finished. A writer that is dropped before leaves the file as it was.
async fn fill(mut writer: FileWriter, body: Body) -> ApiResult<()> {
    let mut parts = body.into_data_stream();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|error| {
            ApiError::invalid("body_incomplete", format!("the body did not arrive whole: {error}"))
        })?;
        writer.write(&part).await.map_err(guest_error)?;
    }
    writer.finish().await.map_err(guest_error)?;
    Ok(())
}

fn permissions(mode: &str) -> ApiResult<u32> {
    let bits = u32::from_str_radix(mode, 8).map_err(|_| {
        ApiError::invalid("invalid_mode", format!("`{mode}` is no mode; it is octal, e.g. 0644"))
    })?;
    checked(bits)
}

fn checked(bits: u32) -> ApiResult<u32> {
    match bits {
        0..=0o7777 => Ok(bits),
        _ => Err(ApiError::invalid("invalid_mode", format!("a mode is at most 7777 in octal, not {bits:o}"))),
    }
}

/// Makes a directory, with those above it unless told otherwise.
#[utoipa::path(post, path = "/sandboxes/{id}/directories", tag = "files", operation_id = "make_directory",
    security(("key" = ["run"])),
    params(("id" = String, Path, description = "The sandbox's id")),
    request_body = MakeDirectory,
    responses(
        (status = 201, body = FileInfo),
        Problems,
    ))]
async fn make_directory(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path(id): Path<SandboxId>,
    Json(ask): Json<MakeDirectory>,
) -> ApiResult<(StatusCode, Json<FileInfo>)> {
    let sandboxes = &state.services().sandboxes;
    let make = MakeDir {
        dir: FileRef::new(ask.path.as_str()),
        parents: ask.parents,
        permissions: ask.mode.map(checked).transpose()?,
    };
    let guest = sandboxes.guest(who.account, id).await?;
    guest.make_dir(make).await.map_err(guest_error)?;
    let made = sandboxes.stat_file(who.account, id, Source::Box, &ask.path).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Moves a file or a directory.
#[utoipa::path(post, path = "/sandboxes/{id}/move", tag = "files", operation_id = "move_file",
    security(("key" = ["run"])),
    params(("id" = String, Path, description = "The sandbox's id")),
    request_body = MovePath,
    responses(
        (status = 204, description = "It is there."),
        Problems,
    ))]
async fn move_path(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path(id): Path<SandboxId>,
    Json(ask): Json<MovePath>,
) -> ApiResult<StatusCode> {
    let moved =
        MoveFile { from: FileRef::new(ask.from), to: FileName::from(ask.to), overwrite: ask.overwrite };
    let guest = state.services().sandboxes.guest(who.account, id).await?;
    guest.move_file(moved).await.map_err(guest_error)?;
    Ok(StatusCode::NO_CONTENT)
}
