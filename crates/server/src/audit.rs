//! Who changed what: a line of JSON for every mutating call of a known caller, in a file that only grows.
//!
//! The file is opened anew for the lines that wait, so that it may be moved away at any time. It is the operator's to move. One
//! thread writes for all, so that a slow disk holds up no thread that others need; reading has a share for each account.

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
use seawall_api::{AccountId, KeyId};
use seawall_core::{Error, Result, shares::Shares};
use serde::{Deserialize, Serialize};
use std::{
    fs::{File, OpenOptions, Permissions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
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
/// The client was gone before there was an answer. As nginx has it.
const GONE: u16 = 499;

/// One call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AuditEntry {
    pub time: Timestamp,
    pub request_id: String,
    pub account: AccountId,
    pub key: KeyId,
    pub method: String,
    /// E.g. `/sandboxes/{id}`.
    pub route: String,
    /// Without its query, and at most 1024 bytes of it.
    pub path: String,
    /// 499: the caller hung up before there was an answer.
    pub status: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
}

/// Where entries go. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Audit(Option<Arc<Log>>);

#[derive(Debug)]
struct Log {
    path: PathBuf,
    /// To the thread that writes.
    lines: mpsc::Sender<Line>,
    /// Who may read, which takes a thread and a while.
    reads: Shares,
}

/// A line that waits, and who waits for it.
struct Line {
    text: Vec<u8>,
    written: oneshot::Sender<io::Result<()>>,
}

impl Audit {
    /// None: nowhere. An error where the file cannot be written.
    pub fn open(path: Option<&Path>) -> Result<Audit> {
        let Some(path) = path else { return Ok(Audit(None)) };
        // It may be there already, with another mode.
        let opened = append_to(path).and_then(|file| file.set_permissions(Permissions::from_mode(MODE)));
        opened.map_err(|error| {
            let text = format!("the audit file {} cannot be written; name another", path.display());
            Error::invalid(text).with_source(error)
        })?;
        let (lines, waiting) = mpsc::channel(WAITING);
        let file = path.to_owned();
        let writer = thread::Builder::new().name("audit".to_owned()).spawn(move || write_all(&file, waiting));
        writer
            .map_err(|error| Error::internal("there is no thread for the audit file").with_source(error))?;
        let log = Log { path: path.to_owned(), lines, reads: Shares::new(1, READERS) };
        Ok(Audit(Some(Arc::new(log))))
    }

    fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Written when it returns. A call is not undone because it cannot be written down, but the log tells of it.
    async fn write(&self, entry: AuditEntry) {
        let Some(log) = &self.0 else { return };
        if let Err(error) = log.write(&entry).await {
            ::metrics::counter!("audit_failures_total").increment(1);
            tracing::error!(%error, "a call could not be written to the audit file");
        }
    }

    /// The last entries of an account, newest first.
    pub async fn last(&self, account: AccountId, limit: usize) -> Result<Vec<AuditEntry>> {
        let Some(log) = self.0.clone() else { return Ok(Vec::new()) };
        let _share = log.reads.enter(account).await;
        let read = tokio::task::spawn_blocking(move || {
            tail(&mut File::open(&log.path)?, limit, |entry| entry.account == account)
        });
        let read = read.await.map_err(io::Error::other).flatten();
        read.map_err(|error| Error::internal("the audit file cannot be read").with_source(error))
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(MODE).open(path)
}

impl Log {
    async fn write(&self, entry: &AuditEntry) -> io::Result<()> {
        let mut text = serde_json::to_vec(entry)?;
        text.push(b'\n');
        let (written, waiting) = oneshot::channel();
        let gone = || io::Error::other("the thread of the audit file has ended");
        self.lines.send(Line { text, written }).await.map_err(|_| gone())?;
        waiting.await.map_err(|_| gone())?
    }
}

/// Writes what waits, all of it at once, until nobody can write any more.
fn write_all(path: &Path, mut waiting: mpsc::Receiver<Line>) {
    while let Some(first) = waiting.blocking_recv() {
        let mut lines = vec![first];
        while lines.len() < WAITING
            && let Ok(next) = waiting.try_recv()
        {
            lines.push(next);
        }
        let text: Vec<u8> = lines.iter().flat_map(|line| line.text.iter().copied()).collect();
        let done = append_to(path).and_then(|mut file| file.write_all(&text));
        for line in lines {
            let done = match &done {
                Ok(()) => Ok(()),
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            };
            // Whoever asked may be gone.
            let _ = line.written.send(done);
        }
    }
}

/// The last lines that are wanted, newest first. What is no entry is passed over.
fn tail<F>(file: &mut F, limit: usize, wanted: impl Fn(&AuditEntry) -> bool) -> io::Result<Vec<AuditEntry>>
where
    F: Read + Seek,
{
    let mut found = Vec::new();
    let mut start = file.seek(SeekFrom::End(0))?;
    let end = start;
    // The end of a line that begins before what was read.
    let mut rest: Vec<u8> = Vec::new();
    while start > 0 && found.len() < limit && end - start < MAX_READ {
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
            key: identity.key,
            method: request.method().to_string(),
            route: route(extensions).to_owned(),
            path: cut(request.uri().path()),
            status: GONE,
            remote: address.map(|address| address.to_string()),
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
        let (Some(mut entry), Ok(runtime)) = (entry, tokio::runtime::Handle::try_current()) else { return };
        if std::thread::panicking() {
            entry.status = StatusCode::INTERNAL_SERVER_ERROR.as_u16();
        }
        let audit = self.audit.clone();
        runtime.spawn(async move { audit.write(entry).await });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn entry(number: u16, account: AccountId) -> AuditEntry {
        AuditEntry {
            time: Timestamp::UNIX_EPOCH,
            request_id: format!("r{number}"),
            account,
            key: KeyId::try_from(account.as_uuid()).unwrap(),
            method: "POST".to_owned(),
            route: "/sandboxes".to_owned(),
            path: "/sandboxes".to_owned(),
            status: number,
            remote: None,
        }
    }

    fn numbers(found: &[AuditEntry]) -> Vec<u16> {
        found.iter().map(|entry| entry.status).collect()
    }

    fn lines(count: u16, mine: AccountId, other: AccountId) -> Vec<u8> {
        let mut text = Vec::new();
        for number in 0..count {
            let account = if number % 2 == 0 { mine } else { other };
            text.extend(serde_json::to_vec(&entry(number, account)).unwrap());
            text.push(b'\n');
        }
        text
    }

    #[test]
    fn k7_the_last_entries_are_found_from_the_end() {
        let (mine, other) = (AccountId::LOCAL, AccountId::generate());
        // Some blocks of it.
        let text = lines(2000, mine, other);
        assert!(text.len() as u64 > 3 * BLOCK);
        let read = |limit| tail(&mut Cursor::new(&text), limit, |entry| entry.account == mine).unwrap();
        assert_eq!(numbers(&read(3)), [1998, 1996, 1994]);
        assert_eq!(numbers(&read(0)), Vec::<u16>::new());
        let all = numbers(&read(5000));
        let expected: Vec<u16> = (0..2000).rev().filter(|number| number % 2 == 0).collect();
        assert_eq!(all, expected);
    }

    #[test]
    fn k7_broken_lines_are_passed_over() {
        let mine = AccountId::LOCAL;
        let mut text = lines(1, mine, mine);
        text.extend(b"{\"torn\": \n\nnonsense\n");
        text.extend(serde_json::to_vec(&entry(7, mine)).unwrap());
        let found = tail(&mut Cursor::new(&text), 10, |_| true).unwrap();
        assert_eq!(numbers(&found), [7, 0]);
        assert!(tail(&mut Cursor::new(b""), 10, |_| true).unwrap().is_empty());
    }

    #[tokio::test]
    async fn k7_the_file_is_the_owners_only_and_may_be_moved_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let audit = Audit::open(Some(&path)).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), MODE);
        audit.write(entry(1, AccountId::LOCAL)).await;
        assert_eq!(numbers(&audit.last(AccountId::LOCAL, 10).await.unwrap()), [1]);
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        audit.write(entry(2, AccountId::LOCAL)).await;
        assert_eq!(numbers(&audit.last(AccountId::LOCAL, 10).await.unwrap()), [2]);
        assert_eq!(mode(&path), MODE);
        assert!(audit.last(AccountId::generate(), 10).await.unwrap().is_empty());
    }
}
