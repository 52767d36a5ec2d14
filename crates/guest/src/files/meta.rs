//! Single files: look at, make, move, remove, mark.

use super::{Place, off_thread, unknown};
use crate::{
    fault::{Outcome, from_errno, invalid},
    server::{Writer, answer},
    state::Guest,
    users,
};
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps, XattrFlags},
    io::Errno,
};
use seawall_api::{
    ErrorKind, Fault,
    files::{Entry, EntryKind, FileName, MakeDir, MoveFile, SetMeta, XattrCall, XattrReply},
    message::Request,
};
use seawall_wire::Result as Wire;
use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

pub async fn serve(guest: &Guest, request: Request, mut writer: Writer) -> Wire<()> {
    let file = match &request {
        Request::Stat { file, .. } | Request::Remove { file, .. } | Request::Xattr { file, .. } => file,
        Request::MakeDir(make) => &make.dir,
        Request::Move(moved) => &moved.from,
        Request::Symlink { link, .. } => link,
        Request::SetMeta(set) => &set.file,
        _ => return answer(&mut writer, Err::<(), _>(unknown())).await,
    };
    let place = match Place::new(guest, file) {
        Ok(place) => place,
        Err(fault) => return answer(&mut writer, Err::<(), _>(fault)).await,
    };
    let identity = place.identity.clone();
    match request {
        Request::Stat { follow, .. } => {
            answer(&mut writer, off_thread(identity, move || stat(&place, follow)).await).await
        }
        Request::Remove { recursive, .. } => {
            answer(&mut writer, off_thread(identity, move || remove(&place, recursive)).await).await
        }
        Request::Xattr { call, .. } => {
            answer(&mut writer, off_thread(identity, move || xattr(&place, call)).await).await
        }
        Request::MakeDir(make) => {
            answer(&mut writer, off_thread(identity, move || make_dir(&place, &make)).await).await
        }
        Request::Move(moved) => {
            answer(&mut writer, off_thread(identity, move || move_file(&place, &moved)).await).await
        }
        Request::Symlink { target, .. } => {
            answer(&mut writer, off_thread(identity, move || symlink(&place, &target)).await).await
        }
        Request::SetMeta(set) => {
            answer(&mut writer, off_thread(identity, move || set_meta(&place, &set)).await).await
        }
        _ => answer(&mut writer, Err::<(), _>(unknown())).await,
    }
}

/// What `stat` says, under a name. Links are read from `at`.
pub fn entry(name: &[u8], stat: &Stat, target: Option<Vec<u8>>) -> Entry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        FileType::Fifo => EntryKind::Fifo,
        FileType::Socket => EntryKind::Socket,
        FileType::CharacterDevice | FileType::BlockDevice => EntryKind::Device,
        _ => EntryKind::File,
    };
    Entry {
        path: FileName(name.to_vec()),
        kind,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        user: None,
        group: None,
        mtime: stat.st_mtime,
        mtime_nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
        target: target.map(FileName),
    }
}

/// An entry of a single file, with its owners' names.
pub fn named(name: &[u8], stat: &Stat, target: Option<Vec<u8>>) -> Entry {
    let entry = entry(name, stat, target);
    Entry { user: users::name_of_user(entry.uid), group: users::name_of_group(entry.gid), ..entry }
}

pub fn read_link(dir: BorrowedFd<'_>, name: &[u8]) -> Option<Vec<u8>> {
    rustix::fs::readlinkat(dir, OsStr::from_bytes(name), Vec::new()).ok().map(|target| target.into_bytes())
}

fn stat(place: &Place, follow: bool) -> Outcome<Entry> {
    let flags = OFlags::PATH | if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
    let fd = place.path.open(place.root(), flags, Mode::empty())?;
    let name = place.path.split().map(|(_, name)| name).unwrap_or_else(|_| b".".to_vec());
    stat_fd(&name, &fd)
}

pub fn stat_fd(name: &[u8], fd: &OwnedFd) -> Outcome<Entry> {
    let stat = rustix::fs::fstat(fd).map_err(|e| from_errno("stat", e))?;
    let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
    let target = if is_link { read_link(fd.as_fd(), b"") } else { None };
    Ok(named(name, &stat, target))
}

fn make_dir(place: &Place, make: &MakeDir) -> Outcome<Entry> {
    let mode = Mode::from_raw_mode(make.permissions.unwrap_or(0o755) & 0o7777);
    let (above, name) = place.path.split()?;
    let parent = match make.parents {
        true => above.make_all(place.root(), Mode::from_raw_mode(0o755))?,
        false => above.open_dir(place.root())?,
    };
    let made = match rustix::fs::mkdirat(&parent, OsStr::from_bytes(&name), mode) {
        Ok(()) => true,
        // One that was there stays as it is.
        Err(Errno::EXIST) if make.parents && is_dir(&parent, &name) => false,
        Err(errno) => return Err(from_errno(place.path.shown(), errno)),
    };
    let dir = match made {
        true => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(&parent, OsStr::from_bytes(&name), flags, Mode::empty())
                .map_err(|errno| from_errno(place.path.shown(), errno))?
        }
        // It may be a link, and only the kernel can follow one safely.
        false => place.path.open_dir(place.root())?,
    };
    if made && make.permissions.is_some() {
        // The process's mask took bits away that were asked for.
        rustix::fs::fchmod(&dir, mode).map_err(|errno| from_errno(place.path.shown(), errno))?;
    }
    stat_fd(&name, &dir)
}

fn is_dir(parent: &OwnedFd, name: &[u8]) -> bool {
    rustix::fs::statat(parent, OsStr::from_bytes(name), AtFlags::empty())
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

fn move_file(place: &Place, moved: &MoveFile) -> Outcome<()> {
    if place.path.shown() == "/work" {
        return Err(Fault::new(ErrorKind::Denied, "the workspace itself stays; move what is in it"));
    }
    let to = place.at(moved.from.root, &moved.to)?;
    let (from_dir, from_name) = place.path.parent(place.root())?;
    let (to_dir, to_name) = to.path.parent(to.root())?;
    let flags = if moved.overwrite { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    let (from_name, to_name) = (OsStr::from_bytes(&from_name), OsStr::from_bytes(&to_name));
    rustix::fs::renameat_with(&from_dir, from_name, &to_dir, to_name, flags).map_err(|errno| match errno {
        Errno::EXIST | Errno::NOTEMPTY => from_errno(to.path.shown(), errno),
        // Here it means another file system, not a way out.
        Errno::XDEV => Fault::new(
            ErrorKind::Unsupported,
            format!("{} and {} are on different file systems; copy it", place.path.shown(), to.path.shown()),
        )
        .with_errno(errno.raw_os_error()),
        _ => from_errno(place.path.shown(), errno),
    })
}

fn remove(place: &Place, recursive: bool) -> Outcome<()> {
    let (parent, name) = place.path.parent(place.root())?;
    let shown = place.path.shown();
    if shown == "/work" {
        return Err(Fault::new(ErrorKind::Denied, "the workspace itself stays; remove what is in it"));
    }
    let stat = rustix::fs::statat(&parent, OsStr::from_bytes(&name), AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|errno| from_errno(&shown, errno))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory if recursive => remove_tree(&parent, &name, &shown),
        FileType::Directory => unlink(&parent, &name, AtFlags::REMOVEDIR, &shown),
        _ => unlink(&parent, &name, AtFlags::empty(), &shown),
    }
}

fn unlink(parent: &OwnedFd, name: &[u8], flags: AtFlags, shown: &str) -> Outcome<()> {
    match rustix::fs::unlinkat(parent, OsStr::from_bytes(name), flags) {
        // Somebody else was faster.
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(from_errno(shown, errno)),
    }
}

/// Step by step through descriptors, so that no link that appears meanwhile is followed. Without
/// recursion, so that no depth is too deep.
fn remove_tree(parent: &OwnedFd, name: &[u8], shown: &str) -> Outcome<()> {
    let fault = |errno| from_errno(shown, errno);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open =
        |dir: &OwnedFd, name: &[u8]| rustix::fs::openat(dir, OsStr::from_bytes(name), flags, Mode::empty());
    let top = match open(parent, name) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(fault(errno)),
    };
    let mut path: Vec<(OwnedFd, Vec<u8>)> = vec![(top, name.to_vec())];
    while let Some((dir, _)) = path.last() {
        match empty_files(dir, shown)? {
            // Descriptors are few: a deeper tree is taken apart from the bottom of what fits.
            Some(child) if path.len() < 200 => match open(dir, &child) {
                Ok(fd) => path.push((fd, child)),
                Err(Errno::NOENT) => {}
                Err(Errno::NOTDIR | Errno::LOOP) => unlink(dir, &child, AtFlags::empty(), shown)?,
                Err(errno) => return Err(fault(errno)),
            },
            Some(child) => remove_deep(dir, &child, shown)?,
            None => {
                let Some((_, name)) = path.pop() else { break };
                let above = path.last().map_or(parent, |(above, _)| above);
                unlink(above, &name, AtFlags::REMOVEDIR, shown)?;
            }
        }
    }
    Ok(())
}

/// A directory too deep to hold all descriptors: move its children up, next to it, and come again.
fn remove_deep(dir: &OwnedFd, child: &[u8], shown: &str) -> Outcome<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let deep = match rustix::fs::openat(dir, OsStr::from_bytes(child), flags, Mode::empty()) {
        Ok(deep) => deep,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(from_errno(shown, errno)),
    };
    while let Some(grandchild) = empty_files(&deep, shown)? {
        let aside = format!(".seawall-tmp-{}", seawall_api::ProcessId::generate());
        rustix::fs::renameat(&deep, OsStr::from_bytes(&grandchild), dir, aside.as_str())
            .map_err(|errno| from_errno(shown, errno))?;
    }
    unlink(dir, child, AtFlags::REMOVEDIR, shown)
}

/// Removes what is no directory; returns the first directory left.
fn empty_files(dir: &OwnedFd, shown: &str) -> Outcome<Option<Vec<u8>>> {
    let mut entries = Dir::read_from(dir).map_err(|errno| from_errno(shown, errno))?;
    while let Some(entry) = entries.read() {
        let entry = entry.map_err(|errno| from_errno(shown, errno))?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        match rustix::fs::unlinkat(dir, OsStr::from_bytes(name), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR | Errno::PERM) if is_real_dir(dir, name) => return Ok(Some(name.to_vec())),
            Err(errno) => return Err(from_errno(shown, errno)),
        }
    }
    Ok(None)
}

fn is_real_dir(dir: &OwnedFd, name: &[u8]) -> bool {
    rustix::fs::statat(dir, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

fn symlink(place: &Place, target: &FileName) -> Outcome<()> {
    if target.as_bytes().is_empty() || target.as_bytes().contains(&0) {
        return Err(invalid("a link needs a target without zero bytes"));
    }
    let (parent, name) = place.path.parent(place.root())?;
    rustix::fs::symlinkat(OsStr::from_bytes(target.as_bytes()), &parent, OsStr::from_bytes(&name))
        .map_err(|errno| from_errno(place.path.shown(), errno))
}

fn set_meta(place: &Place, set: &SetMeta) -> Outcome<Entry> {
    let fault = |errno| from_errno(place.path.shown(), errno);
    // Non-blocking, so that a pipe without a writer does not hold us up.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let fd = place.path.open(place.root(), flags, Mode::empty())?;
    if let Some(owner) = &set.owner {
        let user = users::find(owner)?;
        let (uid, gid) = (rustix::fs::Uid::from_raw(user.uid), rustix::fs::Gid::from_raw(user.gid));
        rustix::fs::fchown(&fd, Some(uid), Some(gid)).map_err(fault)?;
    }
    if let Some(permissions) = set.permissions {
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(permissions & 0o7777)).map_err(fault)?;
    }
    if let Some(mtime) = set.mtime {
        set_mtime(&fd, mtime).map_err(fault)?;
    }
    let name = place.path.split().map(|(_, name)| name).unwrap_or_else(|_| b".".to_vec());
    stat_fd(&name, &fd)
}

pub fn set_mtime(fd: &OwnedFd, (seconds, nanos): (i64, u32)) -> Result<(), Errno> {
    let keep = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT as _ };
    let modified = Timespec { tv_sec: seconds, tv_nsec: nanos.min(999_999_999).into() };
    rustix::fs::futimens(fd, &Timestamps { last_access: keep, last_modification: modified })
}

/// The most bytes of an attribute or of the list of names.
const MAX_XATTR: usize = 64 << 10;

fn xattr(place: &Place, call: XattrCall) -> Outcome<XattrReply> {
    let fd = place.path.open(place.root(), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
    let fault = |errno| from_errno(place.path.shown(), errno);
    let mut buffer = vec![0u8; MAX_XATTR];
    match call {
        XattrCall::Get(name) => {
            let n = rustix::fs::fgetxattr(&fd, allowed(&name)?, &mut buffer[..]).map_err(fault)?;
            buffer.truncate(n);
            Ok(XattrReply::Value(buffer))
        }
        XattrCall::List => {
            let n = rustix::fs::flistxattr(&fd, &mut buffer[..]).map_err(fault)?;
            let names = buffer[..n].split(|b| *b == 0).filter(|name| name.starts_with(b"user."));
            Ok(XattrReply::Names(names.map(|n| String::from_utf8_lossy(n).into_owned()).collect()))
        }
        XattrCall::Set { name, value } => {
            rustix::fs::fsetxattr(&fd, allowed(&name)?, &value, XattrFlags::empty()).map_err(fault)?;
            Ok(XattrReply::Done)
        }
        XattrCall::Remove(name) => {
            rustix::fs::fremovexattr(&fd, allowed(&name)?).map_err(fault)?;
            Ok(XattrReply::Done)
        }
    }
}

/// Only users' attributes: the others give powers.
fn allowed(name: &str) -> Outcome<&str> {
    match name.starts_with("user.") && name.len() > 5 && !name.contains('\0') {
        true => Ok(name),
        false => Err(invalid(format!("`{name}` must start with `user.`"))),
    }
}
