//! The kernel calls that build a box's file tree, behind a trait: the order of mounts is tested without root.
//!
//! Targets are paths of the new root, without a leading slash.

use crate::user::Ids;
use rustix::{
    fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    fs::{AtFlags, CWD, Mode, OFlags},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
        UnmountFlags,
    },
};
use std::{cell::Cell, ffi::CString, io};

/// Where a bound tree comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source<'a> {
    /// A path of the host.
    Host(&'a str),
    /// A tree that is not attached anywhere yet, see [`tree`]. It can be used once.
    Tree(RawFd),
    /// A path of the new root, made before.
    Inside(&'a str),
}

/// How a mounted tree may be used. `nosuid` always holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes {
    pub read_only: bool,
    pub no_exec: bool,
    /// Device nodes in it work. Only for those that are meant to.
    pub devices: bool,
    /// Ids on disk are those of the box. Else the files are nobody's there: ids of the host mean nothing in a box.
    pub mapped: bool,
}

pub trait Kernel {
    fn mkdir(&mut self, path: &str, mode: u32) -> io::Result<()>;
    fn symlink(&mut self, target: &str, path: &str) -> io::Result<()>;
    fn write(&mut self, path: &str, content: &str) -> io::Result<()>;
    /// Mounts what is at `source` over `target`.
    fn bind(&mut self, source: Source<'_>, target: &str, attributes: Attributes) -> io::Result<()>;
    /// Mounts a tree that is as it shall be, at a place that is made where it is missing. The box may have written
    /// what is on the way, so no link is followed.
    fn bind_within(&mut self, tree: RawFd, target: &str) -> io::Result<()>;
    /// Mounts a new file system.
    fn mount(
        &mut self,
        kind: &str,
        options: &[(&str, &str)],
        target: &str,
        attributes: Attributes,
    ) -> io::Result<()>;
    /// The new root becomes the root, and nothing of the old one is left.
    fn pivot(&mut self) -> io::Result<()>;
    /// Whether the host has this.
    fn exists(&self, path: &str) -> bool;
    /// Where a link of the host points to; none where it is none.
    fn link_of(&self, path: &str) -> Option<String>;
    /// The names in a directory.
    fn names(&self, directory: RawFd) -> io::Result<Vec<String>>;
}

/// The real one. It acts in the mount namespace of this process.
#[derive(Debug)]
pub struct Linux {
    root: OwnedFd,
    ids: Ids,
    /// To map the ids of files; none where they stay as they are.
    mapping: Option<OwnedFd>,
    /// Whether files that this process makes now belong to root of the box.
    as_owner: Cell<bool>,
}

const CLONE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);

impl Linux {
    /// Makes a new root: a small file system in memory, not attached anywhere yet.
    pub fn new(ids: Ids) -> io::Result<Linux> {
        let first = ids.first.to_string();
        let options =
            [("mode", "755"), ("uid", &first), ("gid", &first), ("size", "32m"), ("nr_inodes", "16k")];
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        Ok(Linux::of(new_mount("tmpfs", &options, flags)?, ids))
    }

    /// One that was made before.
    pub fn of(root: OwnedFd, ids: Ids) -> Linux {
        Linux { root, ids, mapping: None, as_owner: Cell::new(false) }
    }

    /// Attaches the root over the present one, which stays in use until [`Kernel::pivot`]. Nothing outside this
    /// mount namespace sees it, and what happens outside is no longer seen here.
    pub fn attach_root(&mut self, mapping: Option<OwnedFd>) -> io::Result<()> {
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        rustix::mount::mount_change(c"/", private)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(self.root.as_fd(), c"", CWD, c"/", flags)?;
        self.mapping = mapping;
        Ok(())
    }

    /// Puts a file system at `place` of the new root, calls `look` with its top, and takes it away again.
    pub fn visit<T>(
        &self,
        mounted: &OwnedFd,
        place: &str,
        look: impl FnOnce(&OwnedFd) -> io::Result<T>,
    ) -> io::Result<T> {
        self.attach(mounted.as_fd(), place)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let seen = rustix::fs::openat(&self.root, place, flags, Mode::empty())
            .map_err(Into::into)
            .and_then(|top| look(&top));
        let path = format!("/proc/self/fd/{}/{place}", self.root.as_raw_fd());
        rustix::mount::unmount(path, UnmountFlags::DETACH)?;
        seen
    }

    /// Files that this process makes are its own again.
    pub fn done(&self) {
        self.set_owner(false);
    }

    /// Opens or makes a directory of the new root, one part after the other, and follows no link.
    fn directory(&self, path: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut dir = self.root.try_clone()?;
        for part in path.split('/') {
            match self.make_in(&dir, part) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            dir = rustix::fs::openat(&dir, part, flags, Mode::empty())?;
        }
        Ok(dir)
    }

    /// Made by the box's root, so that it is no stranger's there; where that may not write, by the directory's owner.
    fn make_in(&self, dir: &OwnedFd, name: &str) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(0o755);
        self.set_owner(true);
        let made = rustix::fs::mkdirat(dir, name, mode);
        self.set_owner(false);
        let Err(Errno::ACCESS) = made else { return made };
        let found = rustix::fs::fstat(dir)?;
        let of_box = |id: u32| (self.ids.first..self.ids.first + self.ids.count).contains(&id);
        if !of_box(found.st_uid) || !of_box(found.st_gid) {
            return made;
        }
        set_file_ids(found.st_uid, found.st_gid);
        let made = rustix::fs::mkdirat(dir, name, mode);
        set_file_ids(0, 0);
        made
    }

    /// Whether files that are made belong to root of the box. Without, this process may read what it needs.
    fn set_owner(&self, owner: bool) {
        if self.as_owner.replace(owner) != owner {
            let id = if owner { self.ids.first } else { 0 };
            set_file_ids(id, id);
        }
    }

    fn attach(&self, tree: BorrowedFd<'_>, target: &str) -> io::Result<()> {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        Ok(rustix::mount::move_mount(tree, c"", self.root.as_fd(), target, flags)?)
    }

    fn open(&self, path: &str) -> io::Result<OwnedFd> {
        self.set_owner(false);
        Ok(rustix::mount::open_tree(self.root.as_fd(), path, CLONE)?)
    }

    /// Restricts a tree as asked, and puts it into its place.
    fn place(&self, tree: BorrowedFd<'_>, target: &str, attributes: Attributes) -> io::Result<()> {
        let mapping = self.mapping.as_ref().filter(|_| attributes.mapped);
        set_attributes(tree, attributes, mapping.map(AsFd::as_fd))?;
        self.attach(tree, target)
    }
}

/// Whose files are that this thread makes, and whose it may touch.
fn set_file_ids(user: u32, group: u32) {
    // SAFETY: plain numbers; both calls always succeed and concern this thread alone.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, group);
        libc::syscall(libc::SYS_setfsuid, user);
    }
}

/// A copy of what is at `path` beneath a directory, or of the directory itself: not attached anywhere yet. The
/// directory has to be one of this process's mount namespace; the copy can be attached in any other.
pub fn tree(dir: impl AsFd, path: &str) -> io::Result<OwnedFd> {
    let empty = if path.is_empty() { OpenTreeFlags::AT_EMPTY_PATH } else { OpenTreeFlags::empty() };
    Ok(rustix::mount::open_tree(dir, path, CLONE | empty)?)
}

impl Kernel for Linux {
    fn mkdir(&mut self, path: &str, mode: u32) -> io::Result<()> {
        self.set_owner(true);
        match rustix::fs::mkdirat(&self.root, path, Mode::from_raw_mode(mode)) {
            Err(Errno::EXIST) => Ok(()),
            other => Ok(other?),
        }
    }

    fn symlink(&mut self, target: &str, path: &str) -> io::Result<()> {
        self.set_owner(true);
        Ok(rustix::fs::symlinkat(target, &self.root, path)?)
    }

    fn write(&mut self, path: &str, content: &str) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(0o644);
        self.set_owner(true);
        let file = rustix::fs::openat(&self.root, path, flags, mode)?;
        if content.is_empty() {
            return Ok(());
        }
        io::Write::write_all(&mut std::fs::File::from(file), content.as_bytes())
    }

    fn bind(&mut self, source: Source<'_>, target: &str, attributes: Attributes) -> io::Result<()> {
        self.set_owner(false);
        match source {
            Source::Host(path) => self.place(tree(CWD, path)?.as_fd(), target, attributes),
            Source::Inside(path) => self.place(self.open(path)?.as_fd(), target, attributes),
            // SAFETY: the caller keeps the descriptor open.
            Source::Tree(fd) => self.place(unsafe { BorrowedFd::borrow_raw(fd) }, target, attributes),
        }
    }

    fn bind_within(&mut self, tree: RawFd, target: &str) -> io::Result<()> {
        // SAFETY: the caller keeps the descriptor open.
        let tree = unsafe { BorrowedFd::borrow_raw(tree) };
        let place = self.directory(target)?;
        let over = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        Ok(rustix::mount::move_mount(tree, c"", place.as_fd(), c"", over)?)
    }

    fn mount(
        &mut self,
        kind: &str,
        options: &[(&str, &str)],
        target: &str,
        attributes: Attributes,
    ) -> io::Result<()> {
        let mut flags = MountAttrFlags::MOUNT_ATTR_NOSUID;
        flags.set(MountAttrFlags::MOUNT_ATTR_RDONLY, attributes.read_only);
        flags.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, attributes.no_exec);
        flags.set(MountAttrFlags::MOUNT_ATTR_NODEV, !attributes.devices);
        self.attach(new_mount(kind, options, flags)?.as_fd(), target)
    }

    fn pivot(&mut self) -> io::Result<()> {
        self.set_owner(false);
        rustix::process::fchdir(&self.root)?;
        // The old root lands over the new one, and goes.
        rustix::process::pivot_root(c".", c".")?;
        rustix::mount::unmount(c".", UnmountFlags::DETACH)?;
        Ok(rustix::process::chdir(c"/")?)
    }

    fn exists(&self, path: &str) -> bool {
        rustix::fs::accessat(CWD, path, rustix::fs::Access::EXISTS, AtFlags::empty()).is_ok()
    }

    fn link_of(&self, path: &str) -> Option<String> {
        std::fs::read_link(path).ok()?.into_os_string().into_string().ok()
    }

    fn names(&self, directory: RawFd) -> io::Result<Vec<String>> {
        self.set_owner(false);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // SAFETY: the caller keeps the descriptor open.
        let dir =
            rustix::fs::openat(unsafe { BorrowedFd::borrow_raw(directory) }, ".", flags, Mode::empty())?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(dir)? {
            match entry?.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => names.push(name.to_owned()),
            }
        }
        Ok(names)
    }
}

impl AsRawFd for Linux {
    /// Of the root.
    fn as_raw_fd(&self) -> RawFd {
        self.root.as_raw_fd()
    }
}

/// A file system that is not attached anywhere yet.
pub fn new_mount(kind: &str, options: &[(&str, &str)], flags: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        match value.is_empty() {
            true => rustix::mount::fsconfig_set_flag(context.as_fd(), *key)?,
            false => rustix::mount::fsconfig_set_string(context.as_fd(), *key, *value)?,
        }
    }
    rustix::mount::fsconfig_create(context.as_fd())?;
    Ok(rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?)
}

/// Restricts a tree that is not attached yet, and maps its ids where `mapping` is given.
pub fn set_attributes(
    tree: BorrowedFd<'_>,
    attributes: Attributes,
    mapping: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut set = libc::MOUNT_ATTR_NOSUID;
    for (flag, on) in [
        (libc::MOUNT_ATTR_RDONLY, attributes.read_only),
        (libc::MOUNT_ATTR_NOEXEC, attributes.no_exec),
        (libc::MOUNT_ATTR_NODEV, !attributes.devices),
    ] {
        set |= if on { flag } else { 0 };
    }
    let mut wanted = libc::mount_attr { attr_set: set, attr_clr: 0, propagation: 0, userns_fd: 0 };
    if let Some(mapping) = mapping {
        wanted.attr_set |= libc::MOUNT_ATTR_IDMAP;
        wanted.userns_fd = mapping.as_raw_fd() as u64;
    }
    let path = CString::default();
    // SAFETY: the structure has the kernel's layout and the size that is told; the path is empty, so the
    // descriptor itself is meant.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            path.as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const wanted,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
