//! The state file in the workspace: read when it changed, written beside and renamed.

use super::{Disk, hash::READ, index::Stamp};
use crate::{
    path::{STATE, STATE_TEMPORARY},
    state::StateFile,
    tree::Tree,
    workspace::Agree,
};
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};
use std::{
    io,
    sync::{Arc, atomic::Ordering},
};

/// A state file larger than this is none.
pub(super) const MAX_STATE: usize = 2 << 30;

/// The state file as it was read.
#[derive(Debug, Default)]
pub struct Base {
    stamp: Option<Stamp>,
    /// None: missing, or not to be used.
    pub state: Option<StateFile>,
    pub problem: Option<String>,
}

impl Base {
    /// S3.
    pub fn is_missing(&self) -> bool {
        self.stamp.is_none() && self.problem.is_none()
    }

    pub(super) fn without_file(state: StateFile) -> Base {
        Base { stamp: None, state: Some(state), problem: None }
    }
}

impl Disk {
    /// The state file, read anew only where it changed. S3: missing means empty; broken is told.
    pub fn base(&self) -> Arc<Base> {
        let stamp = match rustix::fs::statat(self.root(), STATE, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(Stamp::of(&stat)),
            Err(Errno::NOENT) => None,
            Err(errno) => {
                let problem = Some(io::Error::from(errno).to_string());
                return Arc::new(Base { problem, ..Base::default() });
            }
        };
        if let Some(base) = &self.memory().base
            && base.stamp == stamp
        {
            return base.clone();
        }
        let base = Arc::new(self.read_base(stamp));
        self.memory().base = Some(base.clone());
        base
    }

    /// How large the state file is.
    pub fn state_bytes(&self) -> Option<u64> {
        self.memory().base.as_ref()?.stamp.as_ref().map(|stamp| stamp.size)
    }

    fn read_base(&self, stamp: Option<Stamp>) -> Base {
        if stamp.is_none() {
            return Base::default();
        }
        if self.went_down() {
            let problem = "the machine went down before the files that it tells of were on its disk";
            self.hold(None);
            return Base { stamp, state: None, problem: Some(problem.to_owned()) };
        }
        let read = rustix::fs::openat(self.root(), STATE, READ, Mode::empty())
            .and_then(|file| Ok((read_up_to(&file, MAX_STATE)?, file)));
        let parsed = match read {
            Ok((json, file)) => StateFile::parse_local(&json, &self.limits)
                .map(|state| (state, file))
                .map_err(|error| error.to_string()),
            Err(errno) => Err(io::Error::from(errno).to_string()),
        };
        match parsed {
            Ok((state, file)) => {
                self.hold(Some(file).filter(|_| !self.is_under_way()));
                Base { stamp, state: Some(state), problem: None }
            }
            Err(problem) => {
                self.hold(None);
                Base { stamp, state: None, problem: Some(problem) }
            }
        }
    }

    /// S2: never half-written. The old one or the new one is there, whatever dies.
    pub fn write_state(&self, state: StateFile) -> io::Result<()> {
        let placed = self.placed.load(Ordering::Relaxed);
        let mark = if placed { self.mark_fresh()? } else { None };
        // It must not be on the disk before the files that it tells of, unless a mark says so.
        let file = self.replace(&state, placed && mark.is_none())?;
        // Before anything can fail: what is held must be the last one.
        self.wrote(file, state)?;
        match mark {
            Some(mark) => self.settle_down(mark)?,
            None => self.forget_mark()?,
        }
        self.placed.store(false, Ordering::Relaxed);
        // What was under way is over.
        self.forget_pending()
    }

    /// What was just written.
    fn wrote(&self, file: OwnedFd, state: StateFile) -> io::Result<()> {
        let stamp = Some(Stamp::of(&rustix::fs::fstat(&file)?));
        self.hold(Some(file));
        self.disturbed.store(false, Ordering::Relaxed);
        self.memory().base = Some(Arc::new(Base { stamp, state: Some(state), problem: None }));
        Ok(())
    }

    fn replace(&self, state: &StateFile, durable: bool) -> io::Result<OwnedFd> {
        let file = self.write_beside(&state.to_json())?;
        if durable {
            rustix::fs::syncfs(&file)?;
        }
        rustix::fs::renameat(self.root(), STATE_TEMPORARY, self.root(), STATE)?;
        Ok(file)
    }

    /// The temporary file, with this in it.
    pub(super) fn write_beside(&self, json: &[u8]) -> io::Result<OwnedFd> {
        match rustix::fs::unlinkat(self.root(), STATE_TEMPORARY, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(self.root(), STATE_TEMPORARY, flags, Mode::from_raw_mode(0o644))?;
        write_all(&file, json)?;
        self.give(&file)?;
        Ok(file)
    }

    /// The state file from now on.
    pub fn agree(&self, agree: Agree) -> io::Result<()> {
        let before = self.base();
        let mut tree = match (&before.state, agree.from_base) {
            (Some(state), true) => state.tree.clone(),
            (None, true) => return Err(io::Error::other("the state file changed meanwhile; sync again")),
            (_, false) => Tree::default(),
        };
        drop(before);
        agree.delta.apply(&mut tree);
        let tree = tree.without_places();
        if tree.digest() != agree.commit.tree {
            return Err(io::Error::other(
                "the state file is not what it was when this sync began; sync again",
            ));
        }
        self.write_state(StateFile {
            last_synced_at: agree.now,
            commit: Some(agree.commit),
            packed: false,
            tree,
        })
    }

    /// S1: there from the beginning, bucket or not.
    pub fn ensure_state(self: &Arc<Self>, now: i64) -> io::Result<()> {
        if self.has_recorded_modes() {
            // Taking the lock restores them. Where another guest holds it, that one does.
            drop(self.try_lock()?);
        }
        match rustix::fs::statat(self.root(), STATE, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => {
                self.hold_what_is_there();
                Ok(())
            }
            // Nothing is told of yet, so nothing needs to be on the disk before.
            Err(Errno::NOENT) => {
                self.replace(&StateFile { last_synced_at: now, ..StateFile::default() }, false).map(drop)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// To the sandbox's user.
    pub(super) fn give(&self, file: &OwnedFd) -> Result<(), Errno> {
        let Some((uid, gid)) = self.owner else { return Ok(()) };
        let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
        rustix::fs::fchown(file, Some(uid), Some(gid))
    }
}

pub fn read_up_to(file: &OwnedFd, most: usize) -> Result<Vec<u8>, Errno> {
    let size = usize::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(usize::MAX);
    if size > most {
        return Err(Errno::FBIG);
    }
    let mut bytes = vec![0; size];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::read(file, &mut bytes[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

pub fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(file, bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
