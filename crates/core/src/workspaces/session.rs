//! A workspace behind a guest: what the sync's engine asks, carried over the wire.
//!
//! The guest is hostile territory: every entry that it tells is checked, what it may make us remember is bounded
//! ([`Bounds`], [`Held::large`]), and so is the time that it may take ([`Pace`]).

use super::{
    pace::{self, Pace, failed},
    slots::{Held, LARGE_FILES, LARGE_NAMES},
};
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
    disk::{MAX_HOLE_BYTES, Refused, ScanAsk, ScanReport},
    engine::Budget,
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
use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};
use tokio::sync::{Mutex, mpsc};

/// The largest state file that is read from a sandbox.
const MAX_STATE: u64 = 512 << 20;
/// What an entry takes in a state file beside its name.
const ENTRY: u64 = 300;
/// What names of files may take in one request.
const MAX_NAMES: usize = 512 << 10;
/// What a sync may store beside twice the sandbox's disk: objects have lists, and bodies of few zeros keep them.
const SLACK: u64 = 64 << 20;

/// What is taken from a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Files, links and directories of a workspace.
    pub files: usize,
    /// Bytes of their names, and of what links point to.
    pub name_bytes: u64,
    /// Bytes in holes of files.
    pub hole_bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { files: 1_000_000, name_bytes: 256 << 20, hole_bytes: MAX_HOLE_BYTES }
    }
}

impl Bounds {
    /// What one sync takes from a sandbox with a disk of so many bytes: all of it twice, since files may change
    /// meanwhile. None where the disk has no limit, and neither has the sync.
    pub fn budget(&self, disk: Option<u64>) -> Budget {
        let (files, name_bytes) = (self.files, self.name_bytes);
        let twice = disk.map_or(u64::MAX, |disk| disk.saturating_mul(2));
        let (taken, stored) = (twice.saturating_add(self.hole_bytes), twice.saturating_add(SLACK));
        Budget { taken, stored, files, name_bytes }
    }

    fn max_state(&self) -> u64 {
        (self.files as u64).saturating_mul(ENTRY).saturating_add(self.name_bytes).min(MAX_STATE)
    }
}

/// How a workspace is synced.
#[derive(Debug, Clone, Copy)]
pub struct SessionSettings {
    /// How long another sync of the workspace is waited for.
    pub wait: Duration,
    pub bounds: Bounds,
    /// Its volume has other sandboxes too.
    pub shared: bool,
}

/// A sync that holds a workspace's lock until it is dropped.
pub struct Session {
    guest: Guest,
    stream: Mutex<RawStream>,
    number: u64,
    settings: SessionSettings,
    held: Arc<Held>,
    pace: Arc<Pace>,
}

/// How much a scan has told.
#[derive(Debug, Default)]
struct Told {
    entries: usize,
    name_bytes: u64,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({})", self.number)
    }
}

impl Session {
    pub async fn open(guest: Guest, settings: SessionSettings, held: Arc<Held>) -> Result<Session> {
        let (stream, opened) = guest.open_sync(settings.wait).await.map_err(|error| failed(&error))?;
        let (stream, pace) = (Mutex::new(stream), Arc::default());
        Ok(Session { guest, stream, number: opened.session, settings, held, pace })
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
        let max_hole_bytes = Some(self.settings.bounds.hole_bytes);
        let ask = ScanAsk { shared: self.settings.shared, max_hole_bytes, ..ask };
        let (report, end) = self.scanned(&Call::Scan(ask)).await?;
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
        let (bounds, size) = (&self.settings.bounds, reader.entry().size);
        if size > bounds.max_state() {
            return Ok(None);
        }
        if size > LARGE_NAMES {
            self.be_large().await?;
        }
        let mut json = Vec::new();
        while let Some(part) = self.pace.wait(pace::SOON, reader.next()).await? {
            self.pace.moved(part.len());
            json.extend_from_slice(&part);
        }
        let limits = Limits { max_entries: bounds.files, ..Limits::default() };
        Ok(StateFile::parse_local(&json, &limits).ok())
    }

    async fn collect(&self, files: Vec<FileName>) -> Result<Pieces> {
        let mut requests = Vec::new();
        let mut first = 0;
        for part in bounded(files) {
            let count = part.len();
            requests.push(Collect { guest: self.guest.clone(), session: self.number, first, files: part });
            first += count;
        }
        let pace = self.pace.clone();
        let bodies = stream::iter(requests).map(move |request| collected(request, pace.clone())).flatten();
        Ok(bodies.boxed())
    }

    async fn apply(&self, steps: Vec<Step>) -> Result<Vec<Refused>> {
        let most = steps.len();
        let mut stream = self.stream.lock().await;
        let sent = async {
            stream.message(Kind::Control, &Call::Apply).await?;
            tell(&mut stream, steps.into_iter().map(Item::Step)).await?;
            stream.send(&Frame::empty(Kind::End)).await
        };
        sent.await.map_err(|error| failed(&error))?;
        self.refusals(&mut stream, pace::CHANGE, most).await
    }

    async fn put(&self, files: mpsc::Receiver<Put>) -> Result<Vec<Refused>> {
        let request = Request::Put { session: self.number };
        let mut stream = self.guest.open_bulk(&request).await.map_err(|error| failed(&error))?;
        stream.reply::<()>().await.map_err(|error| failed(&error))?;
        let sent = match feed(&mut stream, files).await {
            Ok(sent) => sent,
            Err(error) => return Err(failed(&stream.why(error).await)),
        };
        self.refusals(&mut stream, pace::SOON, sent).await
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
        let reply = self.pace.wait(pace::CHANGE, stream.next()).await;
        let frame = reply.map_err(|error| error.during("agreeing"))?;
        match frame.kind {
            Kind::Reply => Ok(frame),
            _ => Err(unexpected(&frame, "instead of an agreement")),
        }
    }

    /// A call that is answered as a scan is.
    async fn scanned(&self, call: &Call) -> Result<(ScanReport, ScanEnd)> {
        let mut stream = self.stream.lock().await;
        stream.message(Kind::Control, call).await.map_err(|error| failed(&error))?;
        let (mut report, mut told) = (ScanReport::default(), Told::default());
        // All files are looked at before the first word.
        let mut frame = self.pace.wait_long(stream.next()).await?;
        loop {
            self.pace.moved(frame.body.len());
            match frame.kind {
                Kind::Event => self.take_part(&mut report, &mut told, items(&frame)?).await?,
                Kind::Reply => return Ok((report, decode(&frame)?)),
                _ => return Err(unexpected(&frame, "in a scan")),
            }
            frame = self.pace.wait(pace::SOON, stream.next()).await?;
        }
    }

    /// What is told from now on may be much.
    async fn be_large(&self) -> Result<()> {
        self.held.large().await.map_err(|error| Error::new(error.kind(), error.chain()))
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

    async fn take_part(&self, report: &mut ScanReport, told: &mut Told, items: Vec<Item>) -> Result<()> {
        told.entries += items.len();
        told.name_bytes += items.iter().map(name_bytes).sum::<u64>();
        let Bounds { files, name_bytes, .. } = self.settings.bounds;
        if told.entries > files {
            let why = format!("the workspace has more than {files} files; leave some out by .sandboxignore");
            return Err(Error::new(ErrorKind::TooLarge, why));
        }
        if told.name_bytes > name_bytes {
            let why = format!("the names of its files have more than {name_bytes} bytes");
            return Err(Error::new(ErrorKind::TooLarge, why));
        }
        if told.entries > LARGE_FILES || told.name_bytes > LARGE_NAMES {
            self.be_large().await?;
        }
        for item in items {
            match item {
                Item::Entry(path, node) => report.delta.changed.push((path, node)),
                Item::Removed(path) => report.delta.removed.push(path),
                Item::Problem(path, why) => report.problems.push((path, why)),
                Item::Ignored(path) => report.ignored.push(path),
                Item::Step(_) | Item::Refused(_) => return Err(protocol("something else in a scan")),
            }
        }
        Ok(())
    }

    /// What was not done of so many steps, up to the reply.
    async fn refusals(
        &self,
        stream: &mut RawStream,
        patience: Duration,
        most: usize,
    ) -> Result<Vec<Refused>> {
        let mut all: Vec<Refused> = Vec::new();
        loop {
            let frame = self.pace.wait(patience, stream.next()).await?;
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
            if all.len() > most {
                return Err(protocol("more refusals than steps"));
            }
        }
    }
}

/// What an item takes of the bound on names.
fn name_bytes(item: &Item) -> u64 {
    let (path, more) = match item {
        Item::Entry(path, Node::Link { target, .. }) => (path, target.as_bytes().len()),
        Item::Problem(path, why) => (path, why.len()),
        Item::Entry(path, _) | Item::Removed(path) | Item::Ignored(path) => (path, 0),
        Item::Step(step) => (step.path(), 0),
        Item::Refused(refused) => (&refused.path, refused.why.len()),
    };
    (path.as_bytes().len() + more) as u64
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

/// A request for bodies. The numbers of their files start at `first`.
struct Collect {
    guest: Guest,
    session: u64,
    first: usize,
    files: Vec<FileName>,
}

/// The bodies that one request brings.
fn collected(request: Collect, pace: Arc<Pace>) -> Pieces {
    enum At {
        Start(Guest, Request),
        File(RawStream, usize),
    }
    let Collect { guest, session, first, files } = request;
    let count = files.len();
    let start = (At::Start(guest, Request::Collect { session, files }), pace);
    stream::try_unfold(start, move |(at, pace)| async move {
        let (mut stream, number) = match at {
            At::Start(guest, request) => {
                (guest.open_bulk(&request).await.map_err(|error| failed(&error))?, 0)
            }
            At::File(stream, number) => (stream, number),
        };
        if number == count {
            return Ok(None);
        }
        let frame = pace.wait(pace::SOON, stream.next()).await?;
        pace.moved(frame.body.len());
        let at = first + number;
        let (piece, number) = match (frame.kind, &frame.body[..]) {
            (Kind::Data, body) if !body.is_empty() => (Piece::Data(at, frame.body), number),
            (Kind::End, [WHOLE]) => (Piece::End(at), number + 1),
            (Kind::End, [CHANGED]) => (Piece::Changed(at), number + 1),
            _ => return Err(unexpected(&frame, "in a body")),
        };
        Ok(Some((piece, (At::File(stream, number), pace))))
    })
    .boxed()
}

/// Sends files, and returns how many.
async fn feed(stream: &mut RawStream, mut files: mpsc::Receiver<Put>) -> Result<usize, seawall_wire::Error> {
    let mut sent = 0;
    while let Some(put) = files.recv().await {
        match put {
            Put::Begin(path, node) => {
                sent += 1;
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
    stream.send(&Frame::empty(Kind::Control)).await?;
    Ok(sent)
}
