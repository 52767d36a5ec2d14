//! A workspace behind a guest: what the sync's engine asks, carried over the wire.
//!
//! The guest is hostile territory: every entry that it tells is checked, and what it may make us remember is bounded.

use async_trait::async_trait;
use futures::{StreamExt, stream};
use seawall_api::{
    ErrorKind,
    files::{FileName, FileRef, ReadFile, Root},
    frame::{DATA_CHUNK, Frame, Kind},
    message::Request,
};
use seawall_sync::{
    Error, Result,
    diff::Step,
    disk::{Refused, ScanAsk, ScanReport},
    path::{self, STATE},
    protocol::{
        ABORT, CHANGED, Call, ScanEnd, WHOLE,
        codec::{self, Encoder, Item},
    },
    state::{CommitRef, Limits, StateFile, check_entry},
    tree::{Delta, Node},
    workspace::{Agree, Piece, Pieces, Put, Workspace},
};
use seawall_wire::{Guest, RawStream};
use std::{
    collections::BTreeSet,
    fmt,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};
use tokio::sync::{Mutex, mpsc};

/// The largest state file that is read from a sandbox.
const MAX_STATE: u64 = 512 << 20;
/// What names and texts of one scan may take.
const MAX_TOLD: usize = 1 << 30;
/// How long a sandbox may take for one step, whatever it has.
const PATIENCE: Duration = Duration::from_secs(1800);
/// More steps than a sync has.
const MAX_REFUSED: usize = 4_000_000;
/// What names of files may take in one request.
const MAX_NAMES: usize = 512 << 10;

/// A sync that holds a workspace's lock until it is dropped.
pub struct Session {
    guest: Guest,
    stream: Mutex<RawStream>,
    /// Of the names and texts that the present scan told.
    told: AtomicUsize,
    number: u64,
    limits: Limits,
    /// Its volume has other sandboxes too.
    shared: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({})", self.number)
    }
}

impl Session {
    pub async fn open(guest: Guest, wait: Duration, limits: Limits, shared: bool) -> Result<Session> {
        let (stream, opened) = guest.open_sync(wait).await.map_err(|error| failed(&error))?;
        let (stream, told) = (Mutex::new(stream), AtomicUsize::new(0));
        Ok(Session { guest, stream, told, number: opened.session, limits, shared })
    }
}

fn failed(error: &seawall_wire::Error) -> Error {
    Error::new(error.kind(), error.to_string())
}

/// The next frame of a sandbox that may be busy, but not for ever.
async fn soon(stream: &mut RawStream) -> Result<Frame> {
    match tokio::time::timeout(PATIENCE, stream.next()).await {
        Ok(frame) => frame.map_err(|error| failed(&error)),
        Err(_) => Err(Error::new(ErrorKind::Timeout, "the sandbox does not answer")),
    }
}

fn protocol(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Protocol, format!("the sandbox broke the protocol: {}", what.into()))
}

fn unexpected(frame: &Frame, place: &str) -> Error {
    protocol(format!("a {:?} frame {place}", frame.kind))
}

#[async_trait]
impl Workspace for Session {
    async fn scan(&self, ask: ScanAsk) -> Result<ScanReport> {
        let (report, end) = self.scanned(&Call::Scan(ScanAsk { shared: self.shared, ..ask })).await?;
        let report = finish(report, end)?;
        tracing::debug!(sandbox = %self.guest.sandbox(), path = STATE, bytes = report.state_bytes, "state file read");
        Ok(report)
    }

    async fn base(&self) -> Result<Option<StateFile>> {
        let file = FileRef::new(STATE).beneath(Root::Work);
        let read = ReadFile { file, offset: 0, length: None };
        let mut reader = match self.guest.read_bulk(read).await {
            Ok(reader) => reader,
            Err(error) if error.kind() == ErrorKind::NotFound => return self.deleted_base().await,
            Err(error) => return Err(failed(&error)),
        };
        if reader.entry().size > MAX_STATE {
            return Ok(None);
        }
        let mut json = Vec::new();
        while let Some(part) = reader.next().await.map_err(|error| failed(&error))? {
            json.extend_from_slice(&part);
        }
        Ok(StateFile::parse_local(&json, &self.limits).ok())
    }

    async fn collect(&self, files: Vec<FileName>) -> Result<Pieces> {
        let mut requests = Vec::new();
        let mut first = 0;
        for part in bounded(files) {
            let count = part.len();
            requests.push((self.guest.clone(), self.number, first, part));
            first += count;
        }
        let bodies = stream::iter(requests)
            .then(|(guest, session, first, files)| async move { collected(guest, session, first, files) })
            .flatten();
        Ok(bodies.boxed())
    }

    async fn apply(&self, steps: Vec<Step>) -> Result<Vec<Refused>> {
        let mut stream = self.stream.lock().await;
        let sent = async {
            stream.message(Kind::Control, &Call::Apply).await?;
            tell(&mut stream, steps.into_iter().map(Item::Step)).await?;
            stream.send(&Frame::empty(Kind::End)).await
        };
        sent.await.map_err(|error| failed(&error))?;
        refusals(&mut stream, true).await
    }

    async fn put(&self, files: mpsc::Receiver<Put>) -> Result<Vec<Refused>> {
        let request = Request::Put { session: self.number };
        let mut stream = self.guest.open_bulk(&request).await.map_err(|error| failed(&error))?;
        stream.reply::<()>().await.map_err(|error| failed(&error))?;
        if let Err(error) = feed(&mut stream, files).await {
            return Err(failed(&stream.why(error).await));
        }
        refusals(&mut stream, false).await
    }

    async fn prepare(&self, agree: Agree) -> Result<()> {
        let Agree { commit, now, from_base, delta } = agree;
        self.ask(Call::Prepare { commit, now, from_base }, Some(delta)).await.map(drop)
    }

    async fn settle(&self, commit: Option<CommitRef>, now: i64) -> Result<()> {
        self.ask(Call::Settle { commit, now }, None).await.map(drop)
    }

    async fn agree(&self, agree: Agree) -> Result<()> {
        let Agree { commit, now, from_base, delta } = agree;
        let reply = self.ask(Call::Agree { commit, now, from_base }, Some(delta)).await?;
        let bytes: Option<u64> = decode(&reply)?;
        tracing::debug!(sandbox = %self.guest.sandbox(), path = STATE, bytes, "state file written");
        Ok(())
    }
}

impl Session {
    /// A call, with a delta where one belongs to it, and its reply.
    async fn ask(&self, call: Call, delta: Option<Delta>) -> Result<Frame> {
        let mut stream = self.stream.lock().await;
        let sent = async {
            stream.message(Kind::Control, &call).await?;
            let Some(delta) = delta else { return Ok(()) };
            let changed = delta.changed.into_iter().map(|(path, node)| Item::Entry(path, node));
            tell(&mut stream, changed.chain(delta.removed.into_iter().map(Item::Removed))).await?;
            stream.send(&Frame::empty(Kind::End)).await
        };
        sent.await.map_err(|error| failed(&error))?;
        let frame = soon(&mut stream).await.map_err(|error| error.during("agreeing"))?;
        match frame.kind {
            Kind::Reply => Ok(frame),
            _ => Err(unexpected(&frame, "instead of an agreement")),
        }
    }

    /// A call that is answered as a scan is.
    async fn scanned(&self, call: &Call) -> Result<(ScanReport, ScanEnd)> {
        let mut stream = self.stream.lock().await;
        stream.message(Kind::Control, call).await.map_err(|error| failed(&error))?;
        let mut report = ScanReport::default();
        self.told.store(0, Ordering::Relaxed);
        loop {
            let frame = soon(&mut stream).await?;
            let told = self.told.fetch_add(frame.body.len(), Ordering::Relaxed) + frame.body.len();
            if told > MAX_TOLD {
                return Err(Error::new(ErrorKind::TooLarge, "the workspace has too many names to sync"));
            }
            match frame.kind {
                Kind::Event => self.take_part(&mut report, items(&frame)?)?,
                Kind::Reply => return Ok((report, decode(&frame)?)),
                _ => return Err(unexpected(&frame, "in a scan")),
            }
        }
    }

    /// The guest told of a base, so it knows what was in it. Nobody else is asked: an older one knows no such call.
    async fn deleted_base(&self) -> Result<Option<StateFile>> {
        let (told, end) = self.scanned(&Call::Base).await?;
        for (path, node) in &told.delta.changed {
            check_entry(path, node).map_err(|why| protocol(format!("{path:?}: {why}")))?;
        }
        Ok(end.base.map(|commit| StateFile {
            last_synced_at: end.last_synced_at.unwrap_or_default(),
            commit: Some(commit),
            packed: false,
            tree: told.delta.changed.into_iter().collect(),
        }))
    }

    fn take_part(&self, report: &mut ScanReport, items: Vec<Item>) -> Result<()> {
        for item in items {
            match item {
                Item::Entry(path, node) => report.delta.changed.push((path, node)),
                Item::Removed(path) => report.delta.removed.push(path),
                Item::Problem(path, why) => report.problems.push((path, why)),
                Item::Ignored(path) => report.ignored.push(path),
                Item::Step(_) | Item::Refused(_) => return Err(protocol("something else in a scan")),
            }
        }
        let told = report.delta.changed.len() + report.delta.removed.len();
        let most = self.limits.max_entries;
        match told.max(report.problems.len()).max(report.ignored.len()) > most {
            true => Err(Error::new(ErrorKind::TooLarge, format!("the workspace has more than {most} files"))),
            false => Ok(()),
        }
    }
}

fn items(frame: &Frame) -> Result<Vec<Item>> {
    codec::decode(&frame.body).map_err(|error| protocol(error.to_string()))
}

/// Items as events.
async fn tell(stream: &mut RawStream, items: impl Iterator<Item = Item>) -> Result<(), seawall_wire::Error> {
    let mut encoder = Encoder::default();
    for item in items {
        if let Some(bytes) = encoder.add(&item) {
            stream.send(&Frame::new(Kind::Event, bytes)).await?;
        }
    }
    match encoder.finish() {
        Some(bytes) => stream.send(&Frame::new(Kind::Event, bytes)).await,
        None => Ok(()),
    }
}

fn decode<T: serde::de::DeserializeOwned>(frame: &Frame) -> Result<T> {
    frame.decode().map_err(|error| protocol(error.to_string()))
}

/// Nothing that a sandbox tells of its files is believed before it could be a tree.
fn finish(mut report: ScanReport, end: ScanEnd) -> Result<ScanReport> {
    let mut seen: BTreeSet<&FileName> = BTreeSet::new();
    for (path, node) in &report.delta.changed {
        check_entry(path, node).map_err(|why| protocol(format!("{path:?}: {why}")))?;
        if matches!(node, Node::File(file) if file.sums.strong.is_none()) || node_lacks_mode(node) {
            return Err(protocol(format!("{path:?} is told by halves")));
        }
        if !seen.insert(path) {
            return Err(protocol(format!("{path:?} is told twice")));
        }
    }
    for path in &report.delta.removed {
        path::check(path.as_bytes()).map_err(|why| protocol(format!("{path:?}: {why}")))?;
    }
    report.base = end.base;
    report.pending = end.pending;
    report.last_synced_at = end.last_synced_at;
    report.state_bytes = end.state_bytes;
    report.base_problem = end.base_problem;
    report.ignored_count = end.ignored_count;
    report.special = end.special;
    report.scanned = end.scanned;
    report.hashed = end.hashed;
    Ok(report)
}

fn node_lacks_mode(node: &Node) -> bool {
    !matches!(node, Node::Link { .. }) && node.mode().is_none()
}

/// Names that fit into one request.
fn bounded(files: Vec<FileName>) -> Vec<Vec<FileName>> {
    let mut parts: Vec<Vec<FileName>> = Vec::new();
    let mut size = MAX_NAMES;
    for file in files {
        let heavy = file.as_bytes().len() + 8;
        match parts.last_mut() {
            Some(part) if size + heavy <= MAX_NAMES => {
                size += heavy;
                part.push(file);
            }
            _ => {
                size = heavy;
                parts.push(vec![file]);
            }
        }
    }
    parts
}

/// The bodies that one request brings. The numbers start at `first`.
fn collected(guest: Guest, session: u64, first: usize, files: Vec<FileName>) -> Pieces {
    enum At {
        Start(Guest, u64, Vec<FileName>),
        File(RawStream, usize, usize),
    }
    stream::try_unfold(At::Start(guest, session, files), move |at| async move {
        let (mut stream, number, count) = match at {
            At::Start(guest, session, files) => {
                let count = files.len();
                let request = Request::Collect { session, files };
                (guest.open_bulk(&request).await.map_err(|error| failed(&error))?, 0, count)
            }
            At::File(stream, number, count) => (stream, number, count),
        };
        if number == count {
            return Ok(None);
        }
        let frame = stream.next_soon().await.map_err(|error| failed(&error))?;
        let at = first + number;
        let (piece, number) = match (frame.kind, &frame.body[..]) {
            (Kind::Data, body) if !body.is_empty() => (Piece::Data(at, frame.body), number),
            (Kind::End, [WHOLE]) => (Piece::End(at), number + 1),
            (Kind::End, [CHANGED]) => (Piece::Changed(at), number + 1),
            _ => return Err(unexpected(&frame, "in a body")),
        };
        Ok(Some((piece, At::File(stream, number, count))))
    })
    .boxed()
}

async fn feed(stream: &mut RawStream, mut files: mpsc::Receiver<Put>) -> Result<(), seawall_wire::Error> {
    while let Some(put) = files.recv().await {
        match put {
            Put::Begin(path, node) => {
                let mut encoder = Encoder::default();
                let full = encoder.add(&Item::Entry(path, node));
                if let Some(entry) = full.or_else(|| encoder.finish()) {
                    stream.queue(Kind::Event, &entry).await?;
                }
            }
            Put::Data(bytes) => {
                for chunk in bytes.chunks(DATA_CHUNK) {
                    stream.queue(Kind::Data, chunk).await?;
                }
            }
            Put::End => stream.queue(Kind::End, &[WHOLE]).await?,
            Put::Abort => stream.queue(Kind::End, &[ABORT]).await?,
        }
    }
    stream.send(&Frame::empty(Kind::Control)).await
}

/// What was not done, up to the reply.
async fn refusals(stream: &mut RawStream, patient: bool) -> Result<Vec<Refused>> {
    let mut all: Vec<Refused> = Vec::new();
    loop {
        let frame = match patient {
            true => soon(stream).await?,
            false => stream.next_soon().await.map_err(|error| failed(&error))?,
        };
        if all.len() > MAX_REFUSED {
            return Err(protocol("more refusals than steps"));
        }
        match frame.kind {
            Kind::Event => {
                for item in items(&frame)? {
                    match item {
                        Item::Refused(refused) => all.push(refused),
                        _ => return Err(protocol("something else among refusals")),
                    }
                }
            }
            Kind::Reply => return Ok(all),
            _ => return Err(unexpected(&frame, "instead of what came of it")),
        }
    }
}
