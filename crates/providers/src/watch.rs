//! Watching boxes: the kernel tells when a folder changes or a guest dies, and each time the truth is
//! read anew and compared.

use crate::boxes::{Boxes, io_error};
use futures::StreamExt;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::{AsFd, OwnedFd},
    fs::inotify::{self, CreateFlags, WatchFlags},
    process::{Pid, PidfdFlags},
};
use seawall_api::{ErrorKind, SandboxId};
use seawall_core::{
    Error, Result,
    ports::{BoxEvent, BoxEvents, BoxInfo, BoxState},
};
use std::{
    collections::{BTreeMap, HashMap},
    io::{self, PipeReader, PipeWriter, Read},
    mem::MaybeUninit,
    sync::Arc,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Events that wait for a slow reader; then the thread waits too.
const BACKLOG: usize = 256;
/// How soon to look again at a box whose guest died and whose commands are still being ended.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// How a provider looks at its boxes.
pub trait Truth: Send + Sync + 'static {
    fn boxes(&self) -> &Boxes;
    /// A box as it is now; `not_found` where there is none.
    fn info(&self, id: SandboxId) -> Result<BoxInfo>;
}

type Present = BTreeMap<SandboxId, BoxInfo>;

/// Every box as it is. One that vanishes meanwhile is left out.
pub fn present(truth: &dyn Truth) -> Result<Present> {
    let mut boxes = Present::new();
    visit(truth, |info| drop(boxes.insert(info.id, info)))?;
    Ok(boxes)
}

/// The ids of [`present`], with one box in memory at a time.
pub fn ids(truth: &dyn Truth) -> Result<Vec<SandboxId>> {
    let mut ids = Vec::new();
    visit(truth, |info| ids.push(info.id))?;
    Ok(ids)
}

fn visit(truth: &dyn Truth, mut take: impl FnMut(BoxInfo)) -> Result<()> {
    for id in truth.boxes().ids()? {
        match truth.info(id) {
            Ok(info) => take(info),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub fn watch(truth: Arc<dyn Truth>) -> Result<BoxEvents> {
    let watcher = Watcher::new(truth)?;
    let (closed, close) = io::pipe().map_err(|e| Error::internal("a pipe").with_source(e))?;
    let (events, stream) = mpsc::channel(BACKLOG);
    std::thread::Builder::new()
        .name("seawall-watch".into())
        .spawn(move || watcher.run(&events, closed))
        .map_err(|e| Error::unavailable("a thread").with_source(e))?;
    // The thread ends when the stream is dropped, and the pipe with it.
    Ok(ReceiverStream::new(stream).map(move |event| keep(&close, event)).boxed())
}

fn keep<T>(_alive: &PipeWriter, value: T) -> T {
    value
}

struct Watcher {
    truth: Arc<dyn Truth>,
    inotify: OwnedFd,
    told: Present,
    guests: HashMap<SandboxId, OwnedFd>,
    /// Some guest is dead and its lock still held.
    unsettled: bool,
}

impl Watcher {
    fn new(truth: Arc<dyn Truth>) -> Result<Watcher> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .map_err(|errno| Error::unavailable("watching boxes").with_source(io::Error::from(errno)))?;
        let flags = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE;
        let boxes = &truth.boxes().path;
        inotify::add_watch(&inotify, boxes, flags).map_err(|errno| io_error(boxes, errno.into()))?;
        Ok(Watcher { truth, inotify, told: Present::new(), guests: HashMap::new(), unsettled: false })
    }

    fn run(mut self, events: &mpsc::Sender<Result<BoxEvent>>, mut closed: PipeReader) {
        let mut first = true;
        loop {
            let step = self.step(events, first);
            match step {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return drop(events.blocking_send(Err(error))),
            }
            first = false;
            if self.wait(&closed) {
                // Reading tells a closed pipe from a spurious wake-up.
                return drop(closed.read(&mut [0]));
            }
        }
    }

    /// Compares and tells. False when nobody listens any more.
    fn step(&mut self, events: &mpsc::Sender<Result<BoxEvent>>, first: bool) -> Result<bool> {
        self.drain();
        // Watches before the look, so that no change falls between them.
        for id in self.truth.boxes().ids()? {
            let flags = WatchFlags::CREATE | WatchFlags::MOVE | WatchFlags::DELETE | WatchFlags::CLOSE_WRITE;
            // A folder that is gone again needs no watch.
            let _ = inotify::add_watch(&self.inotify, self.truth.boxes().of(id), flags);
        }
        let now = present(&*self.truth)?;
        self.watch_guests(&now);
        let changed = now.values().filter(|info| self.told.get(&info.id) != Some(info));
        let mut news: Vec<BoxEvent> = changed.map(|info| BoxEvent::Is(Box::new(info.clone()))).collect();
        news.extend(self.told.keys().filter(|id| !now.contains_key(id)).map(|id| BoxEvent::Gone(*id)));
        news.extend(first.then_some(BoxEvent::Ready));
        self.told = now;
        Ok(news.into_iter().all(|event| events.blocking_send(Ok(event)).is_ok()))
    }

    fn watch_guests(&mut self, now: &Present) {
        self.unsettled = false;
        let running = |info: &&BoxInfo| info.state == BoxState::Running;
        let mut guests = HashMap::new();
        for info in now.values().filter(running) {
            let known = self
                .guests
                .remove(&info.id)
                .filter(|_| self.told.get(&info.id).is_some_and(|told| told.pid == info.pid));
            let pid = info.pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
            let opened = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
            match known.filter(|fd| !is_readable(fd)).or(opened) {
                Some(fd) => drop(guests.insert(info.id, fd)),
                None => self.unsettled = true,
            }
        }
        self.guests = guests;
    }

    /// Until something happens. True when the stream was dropped.
    fn wait(&self, closed: &PipeReader) -> bool {
        let mut fds: Vec<PollFd<'_>> = vec![
            PollFd::from_borrowed_fd(closed.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.inotify.as_fd(), PollFlags::IN),
        ];
        fds.extend(self.guests.values().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)));
        // An interrupted wait is a reason to look, like any other.
        let _ = poll(&mut fds, self.unsettled.then_some(&LOOK_AGAIN));
        !fds[0].revents().is_empty()
    }

    /// What exactly happened does not matter: everything is looked at anew.
    fn drain(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        while reader.next().is_ok() {}
    }
}

fn is_readable(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1))
}
