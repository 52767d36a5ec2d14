//! What comes with an order: descriptors, sorted, and made into what a box can use in its own mount namespace.

use crate::{
    kernel::{Attributes, Linux, set_attributes, tree},
    order::{CgroupPlace, Disks, HostFolder, Order},
    own::OWN,
    rootfs::{Failed, step},
    user::{self, Ids},
};
use rustix::{
    fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    fs::{Mode, OFlags},
};
use std::io;

/// As the host sent it.
#[derive(Debug)]
pub struct Given {
    pub reply: OwnedFd,
    pub folder: OwnedFd,
    /// Folders, or the mounts of disks: see [`Disks`].
    own: OwnedFd,
    volume: OwnedFd,
    pub program: OwnedFd,
    pub groups: Vec<OwnedFd>,
    counters: [Option<OwnedFd>; 2],
    mounts: Vec<OwnedFd>,
}

/// As the box needs it.
#[derive(Debug)]
pub struct Things {
    pub reply: OwnedFd,
    pub folder: OwnedFd,
    pub groups: Vec<OwnedFd>,
    pub counters: [Option<OwnedFd>; 2],
    pub files: Vec<OwnedFd>,
    /// Trees of the host's folders, restricted already.
    pub folders: Vec<OwnedFd>,
}

/// How many descriptors bring the box's files: a tree for each of [`OWN`], or the mount of a disk for all of them; and
/// the same for the workspace.
fn files(disks: Disks) -> usize {
    match disks {
        Disks::None | Disks::Work => OWN.len() + 1,
        Disks::One => 1,
        Disks::Own | Disks::Two => 2,
    }
}

fn groups(order: &Order) -> usize {
    match order.cgroup {
        CgroupPlace::None => 0,
        CgroupPlace::V2 => 1,
        CgroupPlace::V1(count) => count,
    }
}

/// Takes descriptors one after the other.
struct Taker(std::vec::IntoIter<OwnedFd>);

impl Taker {
    fn one(&mut self) -> Option<OwnedFd> {
        self.0.next()
    }

    fn some(&mut self, count: usize) -> Option<Vec<OwnedFd>> {
        let taken: Vec<_> = self.0.by_ref().take(count).collect();
        (taken.len() == count).then_some(taken)
    }

    fn counters(&mut self, comes: [bool; 2]) -> [Option<OwnedFd>; 2] {
        comes.map(|comes| if comes { self.0.next() } else { None })
    }
}

impl Given {
    /// None where they are not as many as the order says.
    pub fn sort(order: &Order, fds: Vec<OwnedFd>) -> Option<Given> {
        if fds.len() != order.fds() {
            return None;
        }
        let mut fds = Taker(fds.into_iter());
        Some(Given {
            reply: fds.one()?,
            folder: fds.one()?,
            own: fds.one()?,
            volume: fds.one()?,
            program: fds.one()?,
            groups: fds.some(groups(order))?,
            counters: fds.counters(order.counters),
            mounts: fds.some(order.mounts.len())?,
        })
    }

    /// `root`: the host's mount namespace is also this process's.
    pub fn prepare(&self, order: &Order, root: bool, ids: Ids) -> Result<Things, Failed> {
        let files = step("the box's files", self.files(order.disks, root))?;
        let mut folders = Vec::new();
        for (mount, fd) in order.mounts.iter().zip(&self.mounts) {
            folders.push(step(&mount.target, host_folder(mount, fd, root, ids))?);
        }
        let copy = |fd: &OwnedFd| step("a descriptor", fd.try_clone());
        let [oom, pids] = &self.counters;
        Ok(Things {
            reply: copy(&self.reply)?,
            folder: copy(&self.folder)?,
            groups: self.groups.iter().map(copy).collect::<Result<_, _>>()?,
            counters: [oom.as_ref().map(copy).transpose()?, pids.as_ref().map(copy).transpose()?],
            files,
            folders,
        })
    }

    fn files(&self, disks: Disks, root: bool) -> io::Result<Vec<OwnedFd>> {
        let mut files = match disks {
            Disks::None | Disks::Work => {
                let own = here(&self.own, root)?;
                OWN.iter().map(|(name, _)| tree(own.as_fd(), name)).collect::<io::Result<_>>()?
            }
            Disks::One => Vec::new(),
            Disks::Own | Disks::Two => vec![self.own.try_clone()?],
        };
        files.push(match disks {
            Disks::None | Disks::Own => tree(here(&self.volume, root)?.as_fd(), "")?,
            Disks::One | Disks::Work | Disks::Two => self.volume.try_clone()?,
        });
        Ok(files)
    }
}

impl Things {
    /// All descriptors, for a box that waits.
    pub fn list(&self) -> Vec<BorrowedFd<'_>> {
        let first = [&self.reply, &self.folder].into_iter().chain(&self.groups);
        let all = first.chain(self.counters.iter().flatten()).chain(&self.files).chain(&self.folders);
        all.map(AsFd::as_fd).collect()
    }

    /// What [`Things::list`] listed, at the other end.
    pub fn sort(order: &Order, fds: Vec<OwnedFd>) -> Option<Things> {
        let mut fds = Taker(fds.into_iter());
        Some(Things {
            reply: fds.one()?,
            folder: fds.one()?,
            groups: fds.some(groups(order))?,
            counters: fds.counters(order.counters),
            files: fds.some(files(order.disks))?,
            folders: fds.some(order.mounts.len())?,
        })
    }
}

/// The trees of the box's files, for each of [`OWN`] and the workspace, out of what [`Things::files`] has. This process
/// is in the box's mount namespace.
pub fn trees(root: &Linux, disks: Disks, mut files: Vec<OwnedFd>) -> io::Result<Vec<OwnedFd>> {
    let on = |disk: &OwnedFd, places: &[String]| {
        root.visit(disk, "mnt", |top| {
            places.iter().map(|place| tree(top, place)).collect::<io::Result<Vec<_>>>()
        })
    };
    let (own, work) = (OWN.map(|(name, _)| format!("own/{name}")), ["work".to_owned()]);
    if matches!(disks, Disks::Work | Disks::Two)
        && let Some(disk) = files.pop()
    {
        files.extend(on(&disk, &work)?);
    }
    let first = match (disks, files.first()) {
        (Disks::One, Some(disk)) => on(disk, &[own.as_slice(), &work].concat())?,
        (Disks::Own | Disks::Two, Some(disk)) => on(disk, &own)?,
        _ => return Ok(files),
    };
    files.splice(..1, first);
    Ok(files)
}

/// A tree of a folder of the host. Its owner is the box's user.
fn host_folder(mount: &HostFolder, fd: &OwnedFd, root: bool, ids: Ids) -> io::Result<OwnedFd> {
    let owner = if root { user::owner_map(ids, fd)? } else { None };
    let folder = tree(here(fd, root)?.as_fd(), "")?;
    let attributes = Attributes { read_only: !mount.writable, ..Attributes::default() };
    match set_attributes(folder.as_fd(), attributes, owner.as_ref().map(AsFd::as_fd)) {
        // Not every file system can map ids; then the files keep theirs.
        Err(error) if owner.is_some() && error.raw_os_error() == Some(libc::EINVAL) => {
            set_attributes(folder.as_fd(), attributes, None)?;
        }
        other => other?,
    }
    Ok(folder)
}

/// The same in the mount namespace of this process, which an ordinary user's launcher has of its own.
pub fn here(fd: &OwnedFd, root: bool) -> io::Result<OwnedFd> {
    if root {
        return fd.try_clone();
    }
    let path = rustix::fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new())?;
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let found = rustix::fs::open(path.as_c_str(), flags, Mode::empty())?;
    let (there, here) = (rustix::fs::fstat(fd)?, rustix::fs::fstat(&found)?);
    match (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino) {
        true => Ok(found),
        false => Err(io::Error::new(io::ErrorKind::NotFound, "it was moved away meanwhile")),
    }
}
