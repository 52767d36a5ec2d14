//! The workspace's side of a sync: a stream that holds its lock, and answers calls.
//!
//! What is found and remembered between syncs (checksums of files that did not change) lives in [`Disk`].

pub mod bodies;

use crate::{
    fault::{Outcome, from_io},
    files::off_thread,
    server::{Reader, Writer, answer},
    state::Guest,
};
use rustix::{
    fd::AsFd,
    fs::{Mode, OFlags},
};
use seawall_api::{
    ErrorKind, Fault,
    frame::{Frame, Kind},
    message::SyncOpened,
    sandbox::WORKDIR,
};
use seawall_sync::{
    disk::{Disk, DiskLock, ScanReport},
    protocol::{
        Call, ScanEnd,
        codec::{self, Encoder, Item},
    },
    tree::Delta,
    workspace::Agree,
};
use seawall_wire::{Error, Result};
use std::{
    cell::{Cell, RefCell},
    io,
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// How often a lock is tried that somebody else has.
const TRY_EVERY: Duration = Duration::from_millis(20);

/// What the guest knows of its workspace.
#[derive(Default)]
pub struct Syncs {
    disk: RefCell<Option<Arc<Disk>>>,
    /// The number of the sync that holds the lock; 0 where none does.
    session: Cell<u64>,
    last: Cell<u64>,
}

impl Syncs {
    /// The workspace, for a connection that belongs to a sync which holds its lock.
    pub fn disk_of(&self, session: u64) -> Outcome<Arc<Disk>> {
        match (&*self.disk.borrow(), self.session.get() == session && session != 0) {
            (Some(disk), true) => Ok(disk.clone()),
            _ => Err(Fault::new(ErrorKind::Conflict, "that sync is over; begin another")),
        }
    }
}

/// Ends the session with the stream, however that ends.
struct Session<'a> {
    syncs: &'a Syncs,
    number: u64,
    _lock: DiskLock,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if self.syncs.session.get() == self.number {
            self.syncs.session.set(0);
        }
    }
}

/// S1: a volume has a state file from the beginning.
pub fn ensure_state(guest: &Guest) {
    let made =
        disk(guest).and_then(|disk| disk.ensure_state(0).map_err(|error| from_io("the state file", &error)));
    if let Err(fault) = made {
        crate::say!("{}", fault.message);
    }
}

fn disk(guest: &Guest) -> Outcome<Arc<Disk>> {
    if let Some(disk) = &*guest.sync.disk.borrow() {
        return Ok(disk.clone());
    }
    let work = WORKDIR.trim_start_matches('/');
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(guest.root.as_fd(), work, flags, Mode::empty())
        .map_err(|errno| crate::fault::from_errno(WORKDIR, errno))?;
    // S8: restored files belong to the sandbox's user.
    let user = crate::creds::identity(guest.user(None))?;
    let disk = Arc::new(Disk::new(root, user.map(|user| (user.uid, user.gid))));
    *guest.sync.disk.borrow_mut() = Some(disk.clone());
    Ok(disk)
}

pub async fn serve(guest: &Guest, wait_ms: u64, mut reader: Reader, mut writer: Writer) -> Result<()> {
    let opened = async {
        let disk = disk(guest)?;
        let lock = lock(&disk, Duration::from_millis(wait_ms)).await?;
        Ok::<_, Fault>((disk, lock))
    };
    let (disk, lock) = match opened.await {
        Ok(opened) => opened,
        Err(fault) => return answer(&mut writer, Err::<(), _>(fault)).await,
    };
    let number = guest.sync.last.get() + 1;
    guest.sync.last.set(number);
    guest.sync.session.set(number);
    let _session = Session { syncs: &guest.sync, number, _lock: lock };
    writer.message(Kind::Reply, &SyncOpened { session: number }).await?;
    while let Some(frame) = reader.next().await? {
        match frame.kind {
            Kind::Control => call(&disk, frame.decode()?, &mut reader, &mut writer).await?,
            other => return Err(Error::Protocol(format!("a {other:?} frame instead of a call"))),
        }
    }
    Ok(())
}

/// S9: one after the other.
async fn lock(disk: &Arc<Disk>, wait: Duration) -> Outcome<DiskLock> {
    let give_up = Instant::now() + wait;
    loop {
        match disk.try_lock() {
            Ok(Some(lock)) => return Ok(lock),
            Ok(None) if Instant::now() < give_up => tokio::time::sleep(TRY_EVERY).await,
            Ok(None) => {
                let message = "another sync of this workspace runs; wait for it, or try again";
                return Err(Fault::new(ErrorKind::Conflict, message));
            }
            Err(error) => return Err(from_io("the lock of the workspace", &error)),
        }
    }
}

async fn call(disk: &Arc<Disk>, call: Call, reader: &mut Reader, writer: &mut Writer) -> Result<()> {
    let disk = disk.clone();
    match call {
        Call::Scan(ask) => {
            let report = off_thread(None, move || Ok(disk.scan(&ask))).await;
            match report {
                Ok(report) => tell_scan(report, writer).await,
                Err(fault) => writer.message(Kind::Fault, &fault).await,
            }
        }
        Call::Base => match off_thread(None, move || Ok(disk.told_base())).await {
            Ok(report) => tell_scan(report, writer).await,
            Err(fault) => writer.message(Kind::Fault, &fault).await,
        },
        Call::Apply => {
            let steps = gather(reader, |item| match item {
                Item::Step(step) => Some(step),
                _ => None,
            });
            let steps = steps.await?;
            let done = off_thread(None, move || {
                disk.apply(&steps).map_err(|(path, errno)| crate::fault::from_errno(path.lossy(), errno))
            });
            match done.await {
                Ok(refused) => {
                    tell(refused.into_iter().map(Item::Refused), writer).await?;
                    writer.message(Kind::Reply, &()).await
                }
                Err(fault) => writer.message(Kind::Fault, &fault).await,
            }
        }
        Call::Settle { commit, now } => {
            let done = off_thread(None, move || disk.settle(commit, now).map_err(|error| told(&error)));
            done_or_not(writer, done.await).await
        }
        Call::Prepare { commit, now, from_base } => {
            let agree = Agree { commit, now, from_base, delta: delta(reader).await? };
            let done = off_thread(None, move || disk.prepare(agree).map_err(|error| told(&error)));
            done_or_not(writer, done.await).await
        }
        Call::Agree { commit, now, from_base } => {
            let agree = Agree { commit, now, from_base, delta: delta(reader).await? };
            let done = off_thread(None, move || {
                disk.agree(agree).map(|()| disk.state_bytes()).map_err(|error| told(&error))
            });
            done_or_not(writer, done.await).await
        }
    }
}

async fn delta(reader: &mut Reader) -> Result<Delta> {
    let mut delta = Delta::default();
    for item in gather(reader, Some).await? {
        match item {
            Item::Entry(path, node) => delta.changed.push((path, node)),
            Item::Removed(path) => delta.removed.push(path),
            _ => return Err(Error::Protocol("something else in an agreement".into())),
        }
    }
    Ok(delta)
}

async fn done_or_not<T: serde::Serialize>(writer: &mut Writer, done: Outcome<T>) -> Result<()> {
    match done {
        Ok(done) => writer.message(Kind::Reply, &done).await,
        Err(fault) => writer.message(Kind::Fault, &fault).await,
    }
}

fn told(error: &io::Error) -> Fault {
    match error.raw_os_error() {
        Some(_) => from_io("the state file", error),
        None => Fault::new(ErrorKind::Conflict, error.to_string()),
    }
}

/// The items of events up to an end, each as what was expected.
async fn gather<T>(reader: &mut Reader, expect: impl Fn(Item) -> Option<T>) -> Result<Vec<T>> {
    let mut all = Vec::new();
    loop {
        let frame = reader.expect().await?;
        match frame.kind {
            Kind::Event => {
                let items = codec::decode(&frame.body).map_err(|error| Error::Protocol(error.to_string()))?;
                for item in items {
                    all.push(expect(item).ok_or_else(|| Error::Protocol("something else in a list".into()))?);
                }
            }
            Kind::End => return Ok(all),
            other => return Err(Error::Protocol(format!("a {other:?} frame in a list"))),
        }
    }
}

/// Items as events.
async fn tell(items: impl Iterator<Item = Item>, writer: &mut Writer) -> Result<()> {
    let mut encoder = Encoder::default();
    for item in items {
        if let Some(bytes) = encoder.add(&item) {
            writer.send(&Frame::new(Kind::Event, bytes)).await?;
        }
    }
    match encoder.finish() {
        Some(bytes) => writer.send(&Frame::new(Kind::Event, bytes)).await,
        None => Ok(()),
    }
}

async fn tell_scan(report: ScanReport, writer: &mut Writer) -> Result<()> {
    let changed = report.delta.changed.into_iter().map(|(path, node)| Item::Entry(path, node));
    let removed = report.delta.removed.into_iter().map(Item::Removed);
    let problems = report.problems.into_iter().map(|(path, why)| Item::Problem(path, why));
    let ignored = report.ignored.into_iter().map(Item::Ignored);
    tell(changed.chain(removed).chain(problems).chain(ignored), writer).await?;
    let end = ScanEnd {
        base: report.base,
        pending: report.pending,
        last_synced_at: report.last_synced_at,
        state_bytes: report.state_bytes,
        base_problem: report.base_problem,
        ignored_count: report.ignored_count,
        special: report.special,
        scanned: report.scanned,
        hashed: report.hashed,
    };
    writer.send(&Frame::message(Kind::Reply, &end)?).await
}
