//! Who changed what: a line of JSON for every mutating call of a known caller.
//!
//! The file is opened anew for the lines that wait, so that it may be moved away at any time. When it is large or old it is put aside
//! under a name with the time ([`segments`]), and what is kept long enough goes (K11). One thread writes for all, so that a slow disk
//! holds up no thread that others need; reading has a share for each account, and so has what is written in an hour ([`shares`]).

mod segments;
mod shares;
#[cfg(test)]
mod tests;

use crate::{
    error::request_id,
    extract::{outcome, remote},
    idempotency::is_mutating,
    request_id::route,
    state::AppState,
};
use axum::{
    extract::{Request, State},
    http::StatusCode,
    middleware::Next,
    response::Response,
};
use jiff::Timestamp;
use seawall_api::{AccountId, KeyId, account::LocalPeer};
use seawall_core::{Error, Result, keys::Caller, shares::Shares};
use segments::Segments;
pub use segments::{KeepAudit, tidy};
use serde::{Deserialize, Serialize};
use shares::HourlyShares;
use std::{
    fs::{File, OpenOptions, Permissions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
    sync::Arc,
    thread,
    time::Instant,
};
use tokio::sync::{mpsc, oneshot};

/// The owner's only: paths tell a lot.
const MODE: u32 = 0o600;
/// How much is read at once, from the end.
const BLOCK: u64 = 64 << 10;
/// How far back a caller's entries are looked for.
const MAX_READ: u64 = 16 << 20;
/// Of a path in an entry. Longer ones are cut: callers choose them.
const MAX_PATH: usize = 1024;
/// Lines that may wait for the thread that writes, and those who read at the same time.
const WAITING: usize = 256;
const READERS: usize = 4;
/// Calls whose caller hung up, and whose line waits for a place among those: of one account, and of all.
const HUNG_UP_OF_ACCOUNT: usize = 64;
const HUNG_UP: usize = 1024;
/// The client was gone before there was an answer. As nginx has it.
const GONE: u16 = 499;

/// One call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AuditEntry {
    pub time: Timestamp,
    pub request_id: String,
    pub account: AccountId,
    /// Absent where the caller is a process at the local socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
    /// The process at the local socket that called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<LocalPeer>,
    /// Whether the operator acted for the account.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_operator: bool,
    pub method: String,
    /// E.g. `/sandboxes/{id}`.
    pub route: String,
    /// Without its query, and at most 1024 bytes of it.
    pub path: String,
    /// 499: the caller hung up before there was an answer.
    pub status: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// How many calls of the account were left out of the log in an hour, since it had written its share. This one is the last of
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<u64>,
}

/// Where entries go. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Audit(Option<Arc<Log>>);

#[derive(Debug)]
struct Log {
    segments: Arc<Segments>,
    /// To the thread that writes.
    lines: mpsc::Sender<Line>,
    /// Who may read, which takes a thread and a while.
    reads: Shares,
    /// Bounds the tasks of callers that hung up.
    hung_up: Shares,
}

/// A call that waits to be written, and who waits for that, if anybody does.
struct Line {
    entry: AuditEntry,
    written: Option<oneshot::Sender<io::Result<()>>>,
}

impl Audit {
    /// None: nowhere. An error where the file cannot be written.
    pub fn open(path: Option<&Path>, keep: KeepAudit) -> Result<Audit> {
        let Some(path) = path else { return Ok(Audit(None)) };
        // It may be there already, with another mode.
        let opened = append_to(path).and_then(|file| file.set_permissions(Permissions::from_mode(MODE)));
        opened.map_err(|error| {
            let text = format!("the audit file {} cannot be written; name another", path.display());
            Error::invalid(text).with_source(error)
        })?;
        let (lines, waiting) = mpsc::channel(WAITING);
        let segments = Arc::new(Segments { path: path.to_owned(), keep });
        let files = segments.clone();
        let writer =
            thread::Builder::new().name("audit".to_owned()).spawn(move || write_all(&files, waiting));
        writer
            .map_err(|error| Error::internal("there is no thread for the audit file").with_source(error))?;
        Ok(Audit(Some(Arc::new(Log::new(segments, lines)))))
    }

    fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Written when it returns. A call is not undone because it cannot be written down, but the log tells of it.
    async fn write(&self, entry: AuditEntry) {
        let Some(log) = &self.0 else { return };
        if let Err(error) = log.write(entry).await {
            not_written(&error);
        }
    }

    /// The last entries of an account, newest first.
    pub async fn last(&self, account: AccountId, limit: usize) -> Result<Vec<AuditEntry>> {
        let Some(log) = self.0.clone() else { return Ok(Vec::new()) };
        let _share = log.reads.enter(account).await;
        let read = tokio::task::spawn_blocking(move || log.last(account, limit));
        let read = read.await.map_err(io::Error::other).flatten();
        read.map_err(|error| Error::internal("the audit file cannot be read").with_source(error))
    }
}

/// A call is not undone because it cannot be written down, but the log and the metrics tell of it.
fn not_written(error: &io::Error) {
    ::metrics::counter!("audit_failures_total").increment(1);
    tracing::error!(%error, "a call could not be written to the audit file");
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(MODE).open(path)
}

impl Log {
    fn new(segments: Arc<Segments>, lines: mpsc::Sender<Line>) -> Log {
        let hung_up = Shares::new(HUNG_UP_OF_ACCOUNT, HUNG_UP);
        Log { segments, lines, reads: Shares::new(1, READERS), hung_up }
    }

    /// Writes a call whose caller does not wait any more. Where the disk is slow, a bounded number of such lines of each account waits;
    /// those beyond it are lost, and counted as failures.
    fn write_later(&self, entry: AuditEntry) {
        let line = match self.lines.try_send(Line { entry, written: None }) {
            Ok(()) => return,
            Err(mpsc::error::TrySendError::Full(line) | mpsc::error::TrySendError::Closed(line)) => line,
        };
        let permit = self.hung_up.try_enter(line.entry.account);
        let (Some(permit), Ok(runtime)) = (permit, tokio::runtime::Handle::try_current()) else {
            ::metrics::counter!("audit_failures_total").increment(1);
            return;
        };
        let lines = self.lines.clone();
        runtime.spawn(async move {
            let _permit = permit;
            if lines.send(line).await.is_err() {
                not_written(&gone());
            }
        });
    }

    async fn write(&self, entry: AuditEntry) -> io::Result<()> {
        let (written, waiting) = oneshot::channel();
        self.lines.send(Line { entry, written: Some(written) }).await.map_err(|_| gone())?;
        waiting.await.map_err(|_| gone())?
    }

    /// From the newest file to the oldest, as far as is read at all.
    fn last(&self, account: AccountId, limit: usize) -> io::Result<Vec<AuditEntry>> {
        let (mut found, mut left) = (Vec::new(), MAX_READ);
        for path in self.segments.newest_first()? {
            let mut file = match File::open(&path) {
                // Moved away, or removed, since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            let size = file.metadata()?.len();
            let more = tail(&mut file, limit - found.len(), left, |entry| entry.account == account)?;
            found.extend(more);
            left = left.saturating_sub(size);
            if found.len() >= limit || left == 0 {
                break;
            }
        }
        Ok(found)
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread of the audit file has ended")
}

/// Writes what waits, all of it at once, until nobody can write any more.
fn write_all(segments: &Segments, mut waiting: mpsc::Receiver<Line>) {
    let mut shares = HourlyShares::new(segments.keep.bytes, Instant::now());
    while let Some(first) = waiting.blocking_recv() {
        let mut lines = vec![first];
        while lines.len() < WAITING
            && let Ok(next) = waiting.try_recv()
        {
            lines.push(next);
        }
        let mut text = Vec::new();
        let now = Instant::now();
        let added = lines.iter().try_for_each(|line| shares.add(&line.entry, now, &mut text));
        let done = added.and_then(|()| write(segments, &text));
        for line in lines {
            match (&done, line.written) {
                // The caller may be gone.
                (Ok(()), Some(written)) => drop(written.send(Ok(()))),
                (Err(error), Some(written)) => {
                    let _ = written.send(Err(io::Error::new(error.kind(), error.to_string())));
                }
                (Ok(()), None) => {}
                (Err(error), None) => not_written(error),
            }
        }
    }
    let mut rest = Vec::new();
    if let Err(error) = shares.close(&mut rest).and_then(|()| write(segments, &rest)) {
        not_written(&error);
    }
}

/// A file that is full is put aside first.
fn write(segments: &Segments, text: &[u8]) -> io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let mut file = append_to(&segments.path)?;
    if segments.is_full(file.metadata()?.len()) {
        drop(file);
        segments.tidy(Timestamp::now())?;
        file = append_to(&segments.path)?;
    }
    file.write_all(text)
}

/// The last lines that are wanted, newest first. What is no entry is passed over.
fn tail<F>(
    file: &mut F,
    limit: usize,
    most: u64,
    wanted: impl Fn(&AuditEntry) -> bool,
) -> io::Result<Vec<AuditEntry>>
where
    F: Read + Seek,
{
    let mut found = Vec::new();
    let mut start = file.seek(SeekFrom::End(0))?;
    let end = start;
    // The end of a line that begins before what was read.
    let mut rest: Vec<u8> = Vec::new();
    while start > 0 && found.len() < limit && end - start < most {
        let size = BLOCK.min(start);
        start -= size;
        file.seek(SeekFrom::Start(start))?;
        let mut block = Vec::new();
        file.by_ref().take(size).read_to_end(&mut block)?;
        block.append(&mut rest);
        let mut lines = block.split(|byte| *byte == b'\n');
        if start > 0 {
            rest = lines.next().unwrap_or_default().to_vec();
        }
        let entries = lines.rev().filter_map(|line| serde_json::from_slice::<AuditEntry>(line).ok());
        found.extend(entries.filter(&wanted).take(limit - found.len()));
    }
    Ok(found)
}

/// The layer. It is behind the limits: who is over them must not fill the disk.
pub async fn record(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let mut pending = Pending::of(&state, &request);
    let response = next.run(request).await;
    if let Some(entry) = pending.answered(response.status()) {
        state.audit().write(entry).await;
    }
    response
}

fn cut(path: &str) -> String {
    path[..path.floor_char_boundary(MAX_PATH)].to_owned()
}

/// A call that is not answered yet. Dropped before, it is written down as that.
struct Pending {
    audit: Audit,
    entry: Option<AuditEntry>,
    mutating: bool,
}

impl Pending {
    fn of(state: &AppState, request: &Request) -> Pending {
        let audit = state.audit().clone();
        let (headers, extensions) = (request.headers(), request.extensions());
        let address = remote(headers, extensions, state.options().trust_forwarded).0;
        let known = outcome(extensions);
        let entry = known.identity().filter(|_| audit.is_on()).map(|identity| AuditEntry {
            time: state.services().clock.now(),
            request_id: request_id(),
            account: identity.account,
            key: match identity.caller {
                Caller::Key(key) => Some(key),
                Caller::Peer(_) => None,
            },
            peer: match identity.caller {
                Caller::Peer(peer) => Some(peer),
                Caller::Key(_) => None,
            },
            by_operator: identity.is_delegated,
            method: request.method().to_string(),
            route: route(extensions).to_owned(),
            path: cut(request.uri().path()),
            status: GONE,
            remote: address.map(|address| address.to_string()),
            left_out: None,
        });
        Pending { audit, entry, mutating: is_mutating(request.method()) }
    }

    /// What to write down, if anything. A socket is opened by a GET, and is good for more than looking.
    fn answered(&mut self, status: StatusCode) -> Option<AuditEntry> {
        let written = self.mutating || status == StatusCode::SWITCHING_PROTOCOLS;
        let entry = self.entry.take().filter(|_| written)?;
        Some(AuditEntry { status: status.as_u16(), ..entry })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let entry = self.entry.take().filter(|_| self.mutating);
        let (Some(mut entry), Some(log)) = (entry, &self.audit.0) else { return };
        if std::thread::panicking() {
            entry.status = StatusCode::INTERNAL_SERVER_ERROR.as_u16();
        }
        log.write_later(entry);
    }
}
