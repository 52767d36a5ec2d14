//! The walk: directories are a queue that a few threads work off.

use super::{
    Disk,
    hash::{self, Failure},
    holes,
    index::{Index, Seen, Stamp, is_racy},
};
use crate::{
    ignore::{Rules, Stack},
    path,
    tree::{File, Node, Tree},
};
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, Dir, FileType, OFlags, Stat},
    io::Errno,
};
use seawall_api::files::FileName;
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

/// More threads do not make a disk faster.
const MAX_THREADS: usize = 4;
/// What is read of an ignore file.
const MAX_RULES: usize = 1 << 20;
/// How many names of what was left out are told. All are counted.
const MAX_NAMED: usize = 10_000;

/// What a walk found, beside the entries.
#[derive(Debug, Default)]
pub struct Found {
    pub entries: Vec<(FileName, Seen)>,
    /// What could not be looked at, with the reason. What was known of it stays.
    pub problems: Vec<(FileName, String)>,
    pub ignored: Vec<FileName>,
    pub ignored_count: u64,
    /// Pipes, sockets and devices.
    pub special: u64,
    pub hashed: u64,
    pub hashed_bytes: u64,
    /// Bytes in holes of the entries.
    holes: u64,
    /// Files with many holes that were not looked at yet.
    sparse: Vec<FileName>,
}

impl Found {
    fn join(&mut self, mut other: Found) {
        self.entries.append(&mut other.entries);
        self.problems.append(&mut other.problems);
        self.ignored.append(&mut other.ignored);
        self.ignored.truncate(MAX_NAMED);
        self.ignored_count += other.ignored_count;
        self.special += other.special;
        self.hashed += other.hashed;
        self.hashed_bytes += other.hashed_bytes;
        self.holes += other.holes;
        self.sparse.append(&mut other.sparse);
    }
}

/// What the walk needs to know.
pub struct Walk<'a> {
    pub disk: &'a Disk,
    pub known: &'a Index,
    /// Rules leave out nothing that was synced before.
    pub base: Option<&'a Tree>,
    pub also: &'a BTreeSet<FileName>,
    /// How many bytes in holes the entries may have together.
    pub max_holes: u64,
}

struct Todo {
    path: Vec<u8>,
    rules: Stack,
    /// A rule leaves it out; only what was synced before is looked for in it.
    ignored: bool,
}

struct Queue {
    waiting: Vec<Todo>,
    /// Threads that may still add to it.
    busy: usize,
}

impl Walk<'_> {
    pub fn run(&self) -> Found {
        let root = Todo { path: Vec::new(), rules: Stack::default(), ignored: false };
        let queue = Mutex::new(Queue { waiting: vec![root], busy: 0 });
        let changed = Condvar::new();
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(MAX_THREADS);
        let found = std::thread::scope(|scope| {
            let spawn = || {
                let work = || self.work(&queue, &changed);
                std::thread::Builder::new().stack_size(512 << 10).spawn_scoped(scope, work)
            };
            // Where no thread can be had, this one does it alone.
            let others: Vec<_> = (1..threads).filter_map(|_| spawn().ok()).collect();
            let mut found = self.work(&queue, &changed);
            for other in others {
                match other.join() {
                    Ok(part) => found.join(part),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            found
        });
        let mut found = self.with_sparse(found);
        found.entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        found.problems.sort();
        found.ignored.sort();
        found
    }

    /// Files with many holes come last and in their order, so that those which are left out are always the same.
    fn with_sparse(&self, mut found: Found) -> Found {
        let mut sparse = std::mem::take(&mut found.sparse);
        sparse.sort();
        let mut worker = Worker { walk: self, found, buffer: Vec::new() };
        for path in sparse {
            worker.sparse_file(path);
        }
        worker.found
    }

    fn work(&self, queue: &Mutex<Queue>, changed: &Condvar) -> Found {
        let mut worker = Worker { walk: self, found: Found::default(), buffer: Vec::new() };
        let lock = || queue.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held: MutexGuard<'_, Queue> = lock();
        loop {
            if let Some(todo) = held.waiting.pop() {
                held.busy += 1;
                drop(held);
                let mut deeper = worker.dir(todo);
                held = lock();
                held.busy -= 1;
                held.waiting.append(&mut deeper);
                changed.notify_all();
            } else if held.busy == 0 {
                return worker.found;
            } else {
                held = changed.wait(held).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn was_synced(&self, path: &FileName, is_dir: bool) -> bool {
        let in_base = self
            .base
            .is_some_and(|base| base.get(path).is_some() || (is_dir && base.beneath(path).next().is_some()));
        let (from, to) = path::beneath(path);
        in_base || self.also.contains(path) || (is_dir && self.also.range(from..to).next().is_some())
    }
}

struct Worker<'a> {
    walk: &'a Walk<'a>,
    found: Found,
    buffer: Vec<u8>,
}

impl Worker<'_> {
    fn problem(&mut self, path: &[u8], why: impl Into<String>) {
        self.found.problems.push((FileName(path.to_vec()), why.into()));
    }

    fn dir(&mut self, todo: Todo) -> Vec<Todo> {
        let shown: &[u8] = if todo.path.is_empty() { b"." } else { &todo.path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let listed = self.walk.disk.open_at(shown, flags).and_then(|dir| Ok((names(&dir)?, dir)));
        let (names, dir) = match listed {
            Ok(listed) => listed,
            // It vanished, or became something else: then it is not a directory of ours any more.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Vec::new(),
            Err(errno) => {
                self.problem(&todo.path, reason(errno));
                return Vec::new();
            }
        };
        let rules = self.rules(&todo, &dir, &names);
        let mut deeper = Vec::new();
        for name in names {
            let path = path::join(&todo.path, &name);
            if todo.path.is_empty() && path::is_own(&path) {
                continue;
            }
            if let Err(why) = path::check(&path) {
                self.problem(&path, format!("it cannot be synced: {why}"));
                continue;
            }
            if let Some(ignored) = self.entry(&dir, &name, path.clone(), &rules, todo.ignored) {
                deeper.push(Todo { path, rules: rules.clone(), ignored });
            }
        }
        deeper
    }

    fn rules(&mut self, todo: &Todo, dir: &OwnedFd, names: &[Vec<u8>]) -> Stack {
        if !names.iter().any(|name| name == path::IGNORE_FILE.as_bytes()) {
            return todo.rules.clone();
        }
        match read_small(dir, OsStr::new(path::IGNORE_FILE)) {
            Ok(text) => todo.rules.with(&todo.path, Rules::parse(&text)),
            // Nothing is left out by rules that cannot be read, and that is told.
            Err(errno) => {
                let path = path::join(&todo.path, path::IGNORE_FILE.as_bytes());
                self.problem(&path, format!("its rules are not applied: {}", rules_reason(errno)));
                todo.rules.clone()
            }
        }
    }

    /// For a directory that is to be walked: whether a rule leaves it out.
    fn entry(
        &mut self,
        dir: &OwnedFd,
        name: &[u8],
        path: Vec<u8>,
        rules: &Stack,
        inside_ignored: bool,
    ) -> Option<bool> {
        let name = OsStr::from_bytes(name);
        let stat = match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return None,
            Err(errno) => {
                self.problem(&path, reason(errno));
                return None;
            }
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_dir = kind == FileType::Directory;
        let path = FileName(path);
        let ignored = inside_ignored || rules.is_ignored(path.as_bytes(), is_dir);
        if ignored && !self.walk.was_synced(&path, is_dir) {
            self.found.ignored_count += 1;
            if self.found.ignored.len() < MAX_NAMED {
                self.found.ignored.push(path);
            }
            return None;
        }
        match kind {
            FileType::Directory => {
                let stamp = Stamp::of(&stat);
                let node = Node::Dir { mode: Some(stat.st_mode & 0o7777), mtime: stamp.mtime };
                self.found.entries.push((path, Seen { stamp, node, racy: false }));
            }
            FileType::RegularFile => self.file(dir, name, path, &stat),
            FileType::Symlink => self.link(dir, name, path, &stat),
            _ => self.found.special += 1,
        }
        is_dir.then_some(ignored)
    }

    fn link(&mut self, dir: &OwnedFd, name: &OsStr, path: FileName, stat: &Stat) {
        match rustix::fs::readlinkat(dir, name, Vec::new()) {
            Ok(target) => {
                let stamp = Stamp::of(stat);
                let node = Node::Link { target: FileName(target.into_bytes()), mtime: stamp.mtime };
                self.found.entries.push((path, Seen { stamp, node, racy: false }));
            }
            Err(Errno::NOENT | Errno::INVAL) => {}
            Err(errno) => self.problem(path.as_bytes(), reason(errno)),
        }
    }

    fn file(&mut self, dir: &OwnedFd, name: &OsStr, path: FileName, stat: &Stat) {
        let (stamp, holes) = (Stamp::of(stat), holes::estimated(stat));
        if let Some(known) = self.walk.known.get(path.as_bytes())
            && known.stamp == stamp
            && !known.racy
        {
            self.found.holes += holes;
            self.found.entries.push((path, known.clone()));
            return;
        }
        if holes > holes::MANY {
            self.found.sparse.push(path);
            return;
        }
        self.found.holes += holes;
        self.hash(dir, name, path);
    }

    /// One with many holes, which may be more than is taken.
    fn sparse_file(&mut self, path: FileName) {
        let (dir, name) = match self.walk.disk.parent(path.as_bytes()) {
            Ok((dir, name)) => (dir, name.to_owned()),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return,
            Err(errno) => return self.problem(path.as_bytes(), reason(errno)),
        };
        match self.holes_of(&dir, &name) {
            Ok(holes) if self.found.holes.saturating_add(holes) <= self.walk.max_holes => {
                self.found.holes += holes;
                self.hash(&dir, &name, path);
            }
            Ok(holes) => {
                let most = self.walk.max_holes;
                let why = format!(
                    "it has {holes} bytes in holes; with those of other files they are more than {most}, the limit for \
                     a workspace. Make it smaller, or leave it out by .sandboxignore"
                );
                self.problem(path.as_bytes(), why);
            }
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => {}
            Err(errno) => self.problem(path.as_bytes(), reason(errno)),
        }
    }

    /// By its blocks; only where they say too much every piece of it is looked for.
    fn holes_of(&self, dir: &OwnedFd, name: &OsStr) -> Result<u64, Errno> {
        let file = rustix::fs::openat(dir, name, hash::READ, rustix::fs::Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        let estimated = holes::estimated(&stat);
        if self.found.holes.saturating_add(estimated) <= self.walk.max_holes {
            return Ok(estimated);
        }
        Ok(holes::counted(&file, u64::try_from(stat.st_size).unwrap_or(0))?.unwrap_or(estimated))
    }

    fn hash(&mut self, dir: &OwnedFd, name: &OsStr, path: FileName) {
        let looked_at = SystemTime::now();
        match hash::hash_at(dir, name, self.walk.max_holes, &mut self.buffer) {
            Ok((stamp, sums)) => {
                self.found.hashed += 1;
                self.found.hashed_bytes += stamp.size;
                let (mode, mtime) = (Some(stamp.mode & 0o7777), stamp.mtime);
                let node = Node::File(File { size: stamp.size, sums, mode, mtime, place: None });
                let racy = is_racy(stamp.mtime, looked_at) || is_racy(stamp.ctime, looked_at);
                self.found.entries.push((path, Seen { stamp, node, racy }));
            }
            Err(Failure::Vanished) => {}
            Err(Failure::Busy) => {
                self.problem(
                    path.as_bytes(),
                    "it changes while it is read; stop what writes it, or sync again",
                );
            }
            Err(Failure::Sparse(holes)) => {
                self.problem(path.as_bytes(), format!("it grew to {holes} bytes in holes while it was read"));
            }
            Err(Failure::Denied(errno)) => self.problem(path.as_bytes(), reason(errno)),
        }
    }
}

/// What the kernel said, and what helps.
pub fn reason(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    match errno {
        Errno::ACCESS | Errno::PERM => format!("{text}; make it readable, e.g. chmod u+r"),
        _ => text,
    }
}

fn rules_reason(errno: Errno) -> String {
    match errno {
        Errno::LOOP => "it is a link; copy the rules into a file of their own".to_owned(),
        Errno::FBIG => "it has more than 1 MiB".to_owned(),
        Errno::ISDIR | Errno::NXIO => "it is no plain file".to_owned(),
        errno => reason(errno),
    }
}

fn names(dir: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut entries = Dir::read_from(dir)?;
    let mut names = Vec::new();
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

fn read_small(dir: &OwnedFd, name: &OsStr) -> Result<Vec<u8>, Errno> {
    let file = rustix::fs::openat(dir, name, hash::READ, rustix::fs::Mode::empty())?;
    super::state::read_up_to(&file, MAX_RULES)
}
