//! Folders of the host by descriptor: opened once, without links that a box could have made, and compared by what they
//! are and not by what they are called.

use rustix::{
    fd::{AsFd, AsRawFd, OwnedFd},
    fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Component, Path, PathBuf},
};

/// As many links as the kernel follows.
const MAX_LINKS: usize = 40;
/// Parents of a folder that are looked at. More than any path has.
const MAX_DEPTH: usize = 8192;
/// How often a walk is tried again that somebody's renames disturbed.
const TRIES: usize = 16;

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a folder that the operator named. A link on the way is followed only where the operator made it: it belongs
/// to root or to this process's user, and lies in none of the folders that boxes may write. Else `ELOOP`.
pub fn open_named(path: &Path, written_by_boxes: &[Identity]) -> io::Result<OwnedFd> {
    let mut dir = open_top()?;
    let mut rest = parts(path);
    let (mut links, mut is_written) = (0, false);
    while let Some(part) = rest.pop() {
        is_written |= written_by_boxes.contains(&identity(&dir)?);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = rustix::fs::openat(&dir, &part, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&found)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            dir = found;
            continue;
        }
        links += 1;
        let owner = rustix::process::Uid::from_raw(stat.st_uid);
        let is_operators = owner.is_root() || owner == rustix::process::geteuid();
        if links > MAX_LINKS || is_written || !is_operators {
            return Err(Errno::LOOP.into());
        }
        let target = rustix::fs::readlinkat(&found, "", Vec::new())?.into_bytes();
        let target = PathBuf::from(OsString::from_vec(target));
        if target.is_absolute() {
            dir = open_top()?;
        }
        rest.extend(parts(&target));
    }
    // Fails where it is no folder.
    Ok(rustix::fs::openat(&dir, ".", FOLDER, Mode::empty())?)
}

fn open_top() -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(CWD, "/", FOLDER, Mode::empty())?)
}

/// The names of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let named = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        _ => None,
    };
    path.components().rev().filter_map(named).collect()
}

/// Opens a folder beneath another in one call of the kernel, through no link of any kind. `ELOOP`: there is one.
pub fn open_beneath(root: &OwnedFd, relative: &Path) -> io::Result<OwnedFd> {
    let name = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    for _ in 1..TRIES {
        match rustix::fs::openat2(root, name, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
    Ok(rustix::fs::openat2(root, name, flags, Mode::empty(), resolve)?)
}

/// What a folder is, whatever it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

/// Where a folder is: itself and all folders above it, and its place in its file system, which is the same through every
/// mount of that file system.
#[derive(Debug)]
pub struct Place {
    /// The folder itself is the first.
    lineage: Vec<Identity>,
    view: View,
}

/// A folder by the device of its file system and the path from that file system's top.
#[derive(Debug, Clone, PartialEq, Eq)]
struct View {
    device: String,
    path: PathBuf,
}

impl View {
    fn is_within(&self, other: &View) -> bool {
        self.device == other.device && self.path.starts_with(&other.path)
    }
}

impl Place {
    pub fn of(folder: &OwnedFd, mounts: &MountTable) -> io::Result<Place> {
        Ok(Place { lineage: lineage(folder)?, view: mounts.view(folder)? })
    }

    /// Whether one of them is, contains or lies in the other.
    pub fn overlaps(&self, other: &Place) -> bool {
        let (Some(own), Some(others)) = (self.lineage.first(), other.lineage.first()) else { return true };
        self.lineage.contains(others)
            || other.lineage.contains(own)
            || self.view.is_within(&other.view)
            || other.view.is_within(&self.view)
    }

    /// Whether it shows a part of what is mounted beneath a folder of the host, by whatever mount.
    pub fn shows_mounts_of(&self, folder: &OwnedFd, mounts: &MountTable) -> io::Result<bool> {
        let top = path_of(folder)?;
        let beneath = mounts.0.iter().filter(|mount| mount.place.starts_with(&top) && mount.place != top);
        let shown = |mount: &Mount| self.view.is_within(&mount.view) || mount.view.is_within(&self.view);
        Ok(beneath.into_iter().any(shown))
    }
}

pub fn identity(folder: &OwnedFd) -> io::Result<Identity> {
    let stat = rustix::fs::fstat(folder)?;
    Ok(Identity { device: stat.st_dev, inode: stat.st_ino })
}

/// From the folder up to the root of this process.
fn lineage(folder: &OwnedFd) -> io::Result<Vec<Identity>> {
    let mut all = vec![identity(folder)?];
    let mut at = folder.try_clone()?;
    while all.len() < MAX_DEPTH {
        at = rustix::fs::openat(&at, "..", FOLDER, Mode::empty())?;
        let above = identity(&at)?;
        if all.last() == Some(&above) {
            return Ok(all);
        }
        all.push(above);
    }
    Err(Errno::NAMETOOLONG.into())
}

/// The mounts that this process sees.
#[derive(Debug)]
pub struct MountTable(Vec<Mount>);

#[derive(Debug)]
struct Mount {
    id: u64,
    /// Where it is mounted.
    place: PathBuf,
    /// What of its file system is mounted there.
    view: View,
}

impl MountTable {
    pub fn read() -> io::Result<MountTable> {
        let text = fs::read("/proc/self/mountinfo")?;
        Ok(MountTable(text.split(|byte| *byte == b'\n').filter_map(parse).collect()))
    }

    fn view(&self, folder: &OwnedFd) -> io::Result<View> {
        let stat = rustix::fs::statx(folder, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
        let unknown = || io::Error::new(io::ErrorKind::NotFound, "its mount is not in /proc/self/mountinfo");
        let mount = self.0.iter().find(|mount| mount.id == stat.stx_mnt_id).ok_or_else(unknown)?;
        let path = path_of(folder)?;
        let within = path.strip_prefix(&mount.place).map_err(|_| unknown())?;
        Ok(View { device: mount.view.device.clone(), path: mount.view.path.join(within) })
    }
}

/// A line of mountinfo: `36 35 98:0 /root /place options …`.
fn parse(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
    let device = String::from_utf8(words.nth(1)?.to_vec()).ok()?;
    let (path, place) = (unescaped(words.next()?), unescaped(words.next()?));
    Some(Mount { id, place, view: View { device, path } })
}

/// The kernel writes blanks, line ends and backslashes as three octal digits.
fn unescaped(word: &[u8]) -> PathBuf {
    let (mut out, mut at) = (Vec::with_capacity(word.len()), 0);
    while let Some(byte) = word.get(at) {
        let digits = word.get(at + 1..at + 4).filter(|_| *byte == b'\\');
        let octal = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        out.push(octal.unwrap_or(*byte));
        at += if octal.is_some() { 4 } else { 1 };
    }
    PathBuf::from(OsString::from_vec(out))
}

/// What the kernel calls it now.
fn path_of(folder: &OwnedFd) -> io::Result<PathBuf> {
    let link = rustix::fs::readlink(format!("/proc/self/fd/{}", folder.as_fd().as_raw_fd()), Vec::new())?;
    Ok(PathBuf::from(OsStr::from_bytes(link.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn opened(path: &Path) -> OwnedFd {
        open_named(path, &[]).unwrap()
    }

    fn refused(opened: io::Result<OwnedFd>) -> i32 {
        opened.unwrap_err().raw_os_error().unwrap()
    }

    #[test]
    fn links_are_followed_where_only_the_operator_can_have_made_them() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        fs::create_dir_all(base.join("real/inner")).unwrap();
        symlink("real", base.join("link")).unwrap();
        symlink(base.join("link/../real"), base.join("far")).unwrap();
        symlink("round", base.join("round")).unwrap();
        for name in ["real", "link", "far"] {
            let found = open_named(&base.join(name), &[]).unwrap();
            assert_eq!(path_of(&found).unwrap(), base.join("real"), "{name}");
        }
        let written = [identity(&opened(&base)).unwrap()];
        assert_eq!(refused(open_named(&base.join("link"), &written)), Errno::LOOP.raw_os_error());
        assert_eq!(refused(open_named(&base.join("round"), &[])), Errno::LOOP.raw_os_error());
        assert!(open_named(&base.join("real"), &written).is_ok());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::lchown(base.join("link"), Some(4321), None).unwrap();
            assert_eq!(refused(open_named(&base.join("link"), &[])), Errno::LOOP.raw_os_error());
        }
    }

    #[test]
    fn beneath_a_folder_no_link_is_followed_wherever_it_leads() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("real/inner")).unwrap();
        symlink("real", dir.path().join("link")).unwrap();
        let root = opened(dir.path());
        assert!(open_beneath(&root, Path::new("")).is_ok());
        assert!(open_beneath(&root, Path::new("real/inner")).is_ok());
        for (name, errno) in [
            ("link", Errno::LOOP),
            ("link/inner", Errno::LOOP),
            ("../x", Errno::XDEV),
            ("none", Errno::NOENT),
        ] {
            assert_eq!(refused(open_beneath(&root, Path::new(name))), errno.raw_os_error(), "{name}");
        }
    }

    #[test]
    fn places_overlap_by_what_they_are() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["data/inner", "beside"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let mounts = MountTable::read().unwrap();
        let place = |name: &str| Place::of(&opened(&dir.path().join(name)), &mounts).unwrap();
        let data = place("data");
        for (name, overlaps) in [("data", true), ("data/inner", true), ("", true), ("beside", false)] {
            assert_eq!(place(name).overlaps(&data), overlaps, "{name}");
            assert_eq!(data.overlaps(&place(name)), overlaps, "{name}");
        }
    }

    #[test]
    fn lines_of_the_mount_table_are_read() {
        let line = br"36 35 98:0 /mnt1/a\040b /mnt2\134x rw,noatime master:1 - ext3 /dev/root rw";
        let mount = parse(line).unwrap();
        assert_eq!((mount.id, mount.place.as_path()), (36, Path::new(r"/mnt2\x")));
        assert_eq!(mount.view, View { device: "98:0".into(), path: "/mnt1/a b".into() });
        assert!(parse(b"").is_none() && parse(b"36 35").is_none());
    }
}
