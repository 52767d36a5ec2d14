//! Writing a file's body. A file that is replaced has its old body or its new one, never a part.
//!
//! The body goes into a temporary file beside its place, which then takes the place by a rename. Where a
//! rename would change what the file is (a link, a second name, a directory that only the file's owner
//! may not write), it is written in place.

use super::{Place, meta, off_thread};
use crate::{
    fault::{Outcome, from_errno, invalid},
    server::{Reader, Writer, answer},
    state::Guest,
};
use bytes::Bytes;
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat},
    io::Errno,
};
use seawall_api::{
    ErrorKind, Fault,
    files::{Entry, WriteFile, WriteMode},
    frame::Kind,
};
use seawall_wire::{Error, Result};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

/// How temporary names begin. Watchers do not hear of them.
pub const TEMPORARY: &[u8] = b".seawall-tmp-";

/// A body on its way to its file.
#[derive(Debug)]
pub struct Target {
    place: Place,
    write: WriteFile,
    pub fd: OwnedFd,
    /// Where the next bytes go; none behind the last byte, wherever that is.
    position: Option<u64>,
    written: u64,
    temporary: Option<Temporary>,
    created: bool,
}

#[derive(Debug)]
struct Temporary {
    dir: OwnedFd,
    name: Vec<u8>,
    taken: bool,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.taken {
            // Best effort: a body that did not come must not lie around.
            let _ = rustix::fs::unlinkat(&self.dir, OsStr::from_bytes(&self.name), AtFlags::empty());
        }
    }
}

impl Target {
    pub fn open(place: Place, write: WriteFile) -> Outcome<Target> {
        let (above, name) = place.path.split()?;
        let dir = match write.parents {
            true => above.make_all(place.root(), Mode::from_raw_mode(0o755))?,
            false => above.open_dir(place.root())?,
        };
        let present = rustix::fs::statat(&dir, OsStr::from_bytes(&name), AtFlags::SYMLINK_NOFOLLOW).ok();
        match write.mode {
            WriteMode::Append => Target::in_place(place, write, OFlags::APPEND, None),
            WriteMode::At(offset) => Target::in_place(place, write, OFlags::empty(), Some(offset)),
            WriteMode::CreateNew if present.is_some() => Err(from_errno(place.path.shown(), Errno::EXIST)),
            WriteMode::Replace | WriteMode::CreateNew => {
                if present.as_ref().is_none_or(can_be_replaced) {
                    match Target::beside(place.clone(), write.clone(), dir, present) {
                        Err(fault) if fault.kind == ErrorKind::Denied && write.mode == WriteMode::Replace => {
                        }
                        other => return other,
                    }
                }
                Target::in_place(place, write, OFlags::TRUNC, Some(0))
            }
        }
    }

    fn beside(place: Place, write: WriteFile, dir: OwnedFd, present: Option<Stat>) -> Outcome<Target> {
        let id = seawall_api::ProcessId::generate().to_string();
        let name = [TEMPORARY, id.as_bytes()].concat();
        let kept = present.as_ref().map(|stat| stat.st_mode & 0o7777);
        let mode = Mode::from_raw_mode(write.permissions.or(kept).unwrap_or(0o644) & 0o7777);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&dir, OsStr::from_bytes(&name), flags, mode)
            .map_err(|errno| from_errno(place.path.shown(), errno))?;
        let temporary = Some(Temporary { dir, name, taken: false });
        let target = Target { place, write, fd, position: Some(0), written: 0, temporary, created: false };
        if let Some(stat) = present {
            let (uid, gid) = (rustix::fs::Uid::from_raw(stat.st_uid), rustix::fs::Gid::from_raw(stat.st_gid));
            // The owner stays, where that is ours to give; else the file is the writer's from now on.
            let _ = rustix::fs::fchown(&target.fd, Some(uid), Some(gid));
        }
        if target.write.permissions.is_some() || kept.is_some() {
            rustix::fs::fchmod(&target.fd, mode).map_err(|errno| target.fault(errno))?;
        }
        Ok(target)
    }

    fn in_place(place: Place, write: WriteFile, flags: OFlags, position: Option<u64>) -> Outcome<Target> {
        let mode = Mode::from_raw_mode(write.permissions.unwrap_or(0o644) & 0o7777);
        // Non-blocking, so that a pipe without a reader does not hold us up.
        let flags = flags | OFlags::WRONLY | OFlags::NONBLOCK;
        let opened = place.path.try_open(place.root(), flags, Mode::empty());
        let (fd, created) = match opened {
            Ok(fd) => (fd, false),
            Err(Errno::NOENT) => (place.path.open(place.root(), flags | OFlags::CREATE, mode)?, true),
            Err(errno) => return Err(from_errno(place.path.shown(), errno)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|errno| from_errno(place.path.shown(), errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(invalid(format!("{} is not a regular file", place.path.shown())));
        }
        Ok(Target { place, write, fd, position, written: 0, temporary: None, created })
    }

    fn fault(&self, errno: Errno) -> Fault {
        from_errno(self.place.path.shown(), errno)
    }

    /// Whether `more` bytes fit under the limit that was asked for.
    pub fn check_size(&mut self, more: u64) -> Outcome<()> {
        self.written += more;
        match self.write.max_size {
            Some(max) if self.written > max => Err(Fault::new(
                ErrorKind::TooLarge,
                format!("{}: more than {max} bytes", self.place.path.shown()),
            )),
            _ => Ok(()),
        }
    }

    pub fn append(&mut self, mut bytes: &[u8]) -> Outcome<()> {
        self.check_size(bytes.len() as u64)?;
        while !bytes.is_empty() {
            let result = match self.position {
                Some(position) => rustix::io::pwrite(&self.fd, bytes, position),
                None => rustix::io::write(&self.fd, bytes),
            };
            let n = match result {
                Ok(n) => n,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(self.fault(errno)),
            };
            self.position = self.position.map(|position| position + n as u64);
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// The body is whole: the file takes its place.
    pub fn finish(mut self) -> Outcome<Entry> {
        let (_, name) = self.place.path.split()?;
        if self.temporary.is_none()
            && let (false, Some(mode)) = (self.created, self.write.permissions)
        {
            rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(mode & 0o7777)).map_err(|e| self.fault(e))?;
        }
        if let Some(mtime) = self.write.mtime {
            meta::set_mtime(&self.fd, mtime).map_err(|errno| self.fault(errno))?;
        }
        if let Some(temporary) = &mut self.temporary {
            let flags = match self.write.mode {
                WriteMode::CreateNew => RenameFlags::NOREPLACE,
                _ => RenameFlags::empty(),
            };
            let (from, to) = (OsStr::from_bytes(&temporary.name), OsStr::from_bytes(&name));
            rustix::fs::renameat_with(&temporary.dir, from, &temporary.dir, to, flags)
                .map_err(|errno| from_errno(self.place.path.shown(), errno))?;
            temporary.taken = true;
        }
        meta::stat_fd(&name, &self.fd)
    }
}

/// A plain file with one name, or nothing yet.
fn can_be_replaced(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink == 1
}

pub async fn serve(guest: &Guest, write: WriteFile, mut reader: Reader, mut writer: Writer) -> Result<()> {
    let written = match Place::new(guest, &write.file) {
        Ok(place) => {
            let identity = place.identity.clone();
            match off_thread(identity.clone(), move || Target::open(place, write)).await {
                Ok(target) => {
                    writer.message(Kind::Reply, &()).await?;
                    receive(target, identity, &mut reader).await?
                }
                Err(fault) => Err(fault),
            }
        }
        Err(fault) => Err(fault),
    };
    answer(&mut writer, written).await
}

/// Takes the body. The outer error is the wire's, the inner one the file's.
async fn receive(
    mut target: Target,
    identity: crate::creds::Identity,
    reader: &mut Reader,
) -> Result<Outcome<Entry>> {
    loop {
        let frame = reader.expect().await?;
        match frame.kind {
            Kind::Data => {
                let body: Bytes = frame.body;
                // Writing needs no rights any more: the file is open.
                let step = off_thread(None, move || target.append(&body).map(|()| target)).await;
                target = match step {
                    Ok(target) => target,
                    Err(fault) => return Ok(Err(fault)),
                };
            }
            Kind::End => return Ok(off_thread(identity, move || target.finish()).await),
            other => return Err(Error::Protocol(format!("a {other:?} frame in a file's body"))),
        }
    }
}
