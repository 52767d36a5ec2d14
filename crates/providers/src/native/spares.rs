//! Folders made in advance, and folders removed afterwards: both are slow on most file systems, and neither has
//! to be waited for.
//!
//! One thread of low priority keeps up to 16 pairs of a box's directories and a volume in `native/spare`, from the
//! second box on; a create moves them into place. A removed box is renamed to `native/boxes/.gone-…` in one step, and
//! the same thread deletes it. The process waits for that when it ends, and the next one that opens the data folder
//! deletes the rest. When a box ends, the thread also closes the host's descriptors of its file systems, because
//! unmounting writes pending data.

use super::{disks::SpareDisks, folder::make_tree};
use crate::boxes::make_private;
use rustix::fd::OwnedFd;
use seawall_api::SandboxId;
use seawall_jail::{cgroup, tree::remove as remove_tree};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
    time::{Duration, SystemTime},
};

/// How many wait at the least, and at the most where many were wanted at once.
const FEW: usize = 16;
const MANY: usize = 64;
/// How long the thread rests before it makes one in advance.
const REST: Duration = Duration::from_millis(4);
/// How those are called that are whole.
const WHOLE: &str = "ready-";

/// Makes groups under a name of their own, and removes those that nobody took.
pub trait MakeGroup: Send + Sync {
    fn make(&self) -> Option<(String, cgroup::Limits)>;
    fn remove(&self, name: &str);
}

/// What the thread is asked to do.
enum Job {
    Remove(PathBuf),
    /// Descriptors that keep file systems mounted. What is left to write is written when they are closed.
    Release(Vec<OwnedFd>),
    Refill,
}

/// A thread that makes and removes folders behind everybody's back. It ends when it has done all it was asked.
pub struct Spares {
    folder: PathBuf,
    ready: Mutex<Vec<PathBuf>>,
    pub disks: SpareDisks,
    /// Names of groups that wait, and their limits.
    groups: Mutex<Vec<(String, cgroup::Limits)>>,
    /// None where they cannot be made in advance.
    make_group: Option<Box<dyn MakeGroup>>,
    jobs: Mutex<Option<(Sender<Job>, JoinHandle<()>)>>,
    /// Whoever makes one box and goes shall not pay for more.
    asked: AtomicUsize,
    /// How many shall wait.
    wanted: AtomicUsize,
}

impl std::fmt::Debug for Spares {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spares").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Drop for Spares {
    fn drop(&mut self) {
        if let Some((jobs, thread)) = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take() {
            drop(jobs);
            // What was removed is gone when the process is. The thread itself may be the last to let go.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
        // Now that nobody makes more.
        if let Some(maker) = &self.make_group {
            lock(&self.groups).drain(..).for_each(|(name, _)| maker.remove(&name));
        }
    }
}

impl Spares {
    pub fn open(folder: PathBuf, make_group: Option<Box<dyn MakeGroup>>) -> io::Result<Spares> {
        make_private(&folder)?;
        let mut ready = Vec::new();
        for entry in fs::read_dir(&folder)?.flatten() {
            let path = entry.path();
            let whole = entry.file_name().to_string_lossy().starts_with(WHOLE)
                && path.join("own").exists()
                && path.join("volume").exists();
            if !path.is_dir() {
                // A disk's.
            } else if whole {
                ready.push(path);
            } else if entry.metadata().and_then(|found| found.modified()).is_ok_and(is_old) {
                // Left by a crash: whoever makes one takes no minute.
                let _ = remove_tree(&path);
            }
        }
        Ok(Spares {
            disks: SpareDisks::open(folder.clone())?,
            folder,
            ready: Mutex::new(ready),
            groups: Mutex::default(),
            make_group,
            jobs: Mutex::new(None),
            asked: AtomicUsize::new(0),
            wanted: AtomicUsize::new(FEW),
        })
    }

    /// Moves a ready pair of a box's own folder and its volume into their places. False where there is none.
    pub fn place(&self, own: &Path, volume: &Path) -> bool {
        let spare = lock(&self.ready).pop();
        let Some(spare) = spare else {
            self.want_more();
            return false;
        };
        // Another process may have been faster. The box's own folder last: it says that all is there.
        let placed =
            fs::rename(spare.join("volume"), volume).and_then(|()| fs::rename(spare.join("own"), own));
        let _ = fs::remove_dir(&spare);
        placed.is_ok()
    }

    /// Puts a disk of this size at a place where there is none.
    pub fn place_disk(&self, mb: u64, place: &Path) -> io::Result<()> {
        let waited = self.disks.place(mb, place)?;
        if !waited {
            self.want_more();
        }
        Ok(())
    }

    /// Those that waited were not enough.
    fn want_more(&self) {
        if self.asked.load(Ordering::Relaxed) > FEW {
            let more = |wanted: usize| Some((wanted * 2).min(MANY));
            let _ = self.wanted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        }
    }

    /// The name of a group that waits, and its limits.
    pub fn group(&self) -> Option<(String, cgroup::Limits)> {
        lock(&self.groups).pop()
    }

    /// After a box: the next shall find one ready.
    pub fn refill(self: &std::sync::Arc<Self>) {
        if self.asked.fetch_add(1, Ordering::Relaxed) > 0 && self.is_missing_some() {
            self.ask(Job::Refill);
        }
    }

    fn is_missing_some(&self) -> bool {
        let wanted = self.wanted.load(Ordering::Relaxed);
        lock(&self.ready).len() < wanted
            || (self.make_group.is_some() && lock(&self.groups).len() < wanted)
            || self.disks.is_missing_some(wanted)
    }

    pub fn remove(self: &std::sync::Arc<Self>, path: PathBuf) {
        self.ask(Job::Remove(path));
    }

    /// Closes descriptors that keep file systems mounted.
    pub fn release(self: &std::sync::Arc<Self>, pinned: Vec<OwnedFd>) {
        if !pinned.is_empty() {
            self.ask(Job::Release(pinned));
        }
    }

    fn ask(self: &std::sync::Arc<Self>, job: Job) {
        let mut jobs = lock(&self.jobs);
        if jobs.is_none() {
            let (sender, receiver) = channel();
            // Weak: the thread must not keep alive what waits for it.
            let spares = std::sync::Arc::downgrade(self);
            let thread = std::thread::Builder::new().name("seawall-folders".into());
            match thread.spawn(move || work(&receiver, &spares)) {
                Ok(thread) => *jobs = Some((sender, thread)),
                // Then whoever opens the folder next clears it away.
                Err(error) => return tracing::warn!("no thread for folders: {error}"),
            }
        }
        if let Some((sender, _)) = &*jobs {
            let _ = sender.send(job);
        }
    }

    fn make_one(&self, users: bool) -> io::Result<()> {
        let wanted = self.wanted.load(Ordering::Relaxed);
        if let Some(make) = self.make_group.as_ref().filter(|_| lock(&self.groups).len() < wanted)
            && let Some(group) = make.make()
        {
            lock(&self.groups).push(group);
        }
        self.disks.refill(wanted)?;
        if lock(&self.ready).len() >= wanted {
            return Ok(());
        }
        let name = SandboxId::generate();
        let (draft, whole) =
            (self.folder.join(format!("new-{name}")), self.folder.join(format!("{WHOLE}{name}")));
        make_private(&draft)?;
        make_tree(&draft.join("own"), &draft.join("volume"), users)?;
        fs::rename(&draft, &whole)?;
        lock(&self.ready).push(whole);
        Ok(())
    }
}

pub fn is_old(time: SystemTime) -> bool {
    time.elapsed().is_ok_and(|age| age > Duration::from_secs(60))
}

pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work(jobs: &Receiver<Job>, spares: &std::sync::Weak<Spares>) {
    let users = rustix::process::geteuid().is_root();
    // Of this thread alone: others have the processors first. Where it is refused it is merely in the way.
    let _ = rustix::process::setpriority_process(None, 15);
    while let Ok(job) = jobs.recv() {
        if matches!(job, Job::Refill) {
            // The box that was just made has its first command now.
            std::thread::sleep(REST);
        }
        let done = match job {
            Job::Remove(path) => remove_tree(&path),
            Job::Release(pinned) => {
                drop(pinned);
                Ok(())
            }
            Job::Refill => match spares.upgrade() {
                // Two for one, so that there are more some day.
                Some(spares) => spares.make_one(users).and_then(|()| spares.make_one(users)),
                None => Ok(()),
            },
        };
        // Another process may have been faster.
        if let Err(error) = done.or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        }) {
            tracing::warn!("a folder that nobody waits for: {error}");
        }
    }
}
