//! A local directory that files of a sandbox are written into, and never out of.
//!
//! Every step down is an `openat` that follows no link, and every file is made under a name of its
//! own, exclusively, and moved into place when it is whole. So a link that a sandbox sent, or that
//! stood there before, is replaced and never written through.

use anyhow::{Context, Result};
use rustix::{
    fd::OwnedFd,
    fs::{
        AtFlags, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, fchmod, futimens, mkdirat, open, openat,
        renameat, symlinkat, unlinkat, utimensat,
    },
    io::Errno,
};
use seawall_api::ProcessId;
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    path::{Path, PathBuf},
};

/// A sandbox does not get to place set-id files on the host.
const KEPT_BITS: u32 = 0o777;

#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
    /// For messages only.
    shown: PathBuf,
}

/// Modification time: seconds and nanoseconds.
pub type Mtime = (i64, u32);

fn directory() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC
}

fn times((seconds, nanos): Mtime) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanos.min(999_999_999).into() },
    }
}

impl Tree {
    /// A directory that the user named: links in that name are the user's own.
    pub fn open(path: &Path) -> Result<Tree> {
        let root = open(path, directory(), Mode::empty());
        let root = root.with_context(|| format!("cannot open the directory {}", path.display()))?;
        Ok(Tree { root, shown: path.to_owned() })
    }

    /// The directory at `names`, made where it is missing.
    pub fn make_dir(&self, names: &[&OsStr]) -> Result<()> {
        let (parent, name) = self.parent(names)?;
        match mkdirat(&parent, name, Mode::RWXU) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => self.step(&parent, name, names).map(drop),
            Err(error) => Err(error).with_context(|| format!("cannot make {}", self.show(names))),
        }
    }

    /// The directory at `names` as a tree of its own.
    pub fn enter(&self, names: &[&OsStr]) -> Result<Tree> {
        let (parent, name) = self.parent(names)?;
        Ok(Tree {
            root: self.step(&parent, name, names)?,
            shown: self.shown.join(names.iter().collect::<PathBuf>()),
        })
    }

    /// When all is in it, since a directory that may not be written cannot be filled.
    pub fn finish_dir(&self, names: &[&OsStr], mode: u32, mtime: Mtime) -> Result<()> {
        let directory = if names.is_empty() { self.root.try_clone()? } else { self.enter(names)?.root };
        fchmod(&directory, Mode::from_raw_mode(mode & KEPT_BITS))
            .and_then(|()| futimens(&directory, &times(mtime)))
            .with_context(|| format!("cannot set permissions and time of {}", self.show(names)))
    }

    /// A file that is not there yet: it appears with [`Draft::publish`], and goes if that never comes.
    pub fn draft(&self, names: &[&OsStr]) -> Result<(Draft, File)> {
        let (parent, name) = self.parent(names)?;
        let draft = Draft::new(parent, name, self.show(names));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&draft.parent, &draft.beside, flags, Mode::RUSR | Mode::WUSR);
        let file = file.with_context(|| format!("cannot make {}", draft.shown))?;
        Ok((draft, File::from(file)))
    }

    /// The target is written as it is; nothing here ever follows it.
    pub fn symlink(&self, names: &[&OsStr], target: &[u8], mtime: Mtime) -> Result<()> {
        let (parent, name) = self.parent(names)?;
        let mut draft = Draft::new(parent, name, self.show(names));
        symlinkat(target, &draft.parent, &draft.beside)
            .and_then(|()| utimensat(&draft.parent, &draft.beside, &times(mtime), AtFlags::SYMLINK_NOFOLLOW))
            .with_context(|| format!("cannot make the link {}", draft.shown))?;
        draft.rename()
    }

    fn parent<'a>(&self, names: &[&'a OsStr]) -> Result<(OwnedFd, &'a OsStr)> {
        let (name, above) = names.split_last().context("a name is needed")?;
        let mut directory = self.root.try_clone()?;
        for (depth, part) in above.iter().enumerate() {
            directory = self.step(&directory, part, &names[..=depth])?;
        }
        Ok((directory, *name))
    }

    fn step(&self, from: &OwnedFd, name: &OsStr, names: &[&OsStr]) -> Result<OwnedFd> {
        let opened = openat(from, name, directory() | OFlags::NOFOLLOW, Mode::empty());
        opened.map_err(|error| match error {
            Errno::LOOP | Errno::NOTDIR => {
                anyhow::anyhow!(
                    "{} is in the way: it is no directory, and links are not followed",
                    self.show(names)
                )
            }
            error => anyhow::Error::from(error).context(format!("cannot open {}", self.show(names))),
        })
    }

    fn show(&self, names: &[&OsStr]) -> String {
        self.shown.join(names.iter().collect::<PathBuf>()).display().to_string()
    }
}

/// A file on its way, under a name that nobody else has.
#[derive(Debug)]
pub struct Draft {
    parent: OwnedFd,
    name: OsString,
    beside: OsString,
    shown: String,
    published: bool,
}

impl Draft {
    fn new(parent: OwnedFd, name: &OsStr, shown: String) -> Self {
        let beside = OsString::from(format!(".seawall-{}", ProcessId::generate()));
        Draft { parent, name: name.to_owned(), beside, shown, published: false }
    }

    /// Puts the whole file in its place, and replaces what was there.
    pub fn publish(mut self, file: &File, mode: u32, mtime: Mtime) -> Result<()> {
        fchmod(file, Mode::from_raw_mode(mode & KEPT_BITS))
            .and_then(|()| futimens(file, &times(mtime)))
            .with_context(|| format!("cannot set permissions and time of {}", self.shown))?;
        self.rename()
    }

    fn rename(&mut self) -> Result<()> {
        renameat(&self.parent, &self.beside, &self.parent, &self.name)
            .with_context(|| format!("cannot replace {}", self.shown))?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.published {
            let _ = unlinkat(&self.parent, &self.beside, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests;
