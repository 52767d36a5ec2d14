//! Removing and measuring a tree that somebody hostile may have built: however deep it is, neither the stack nor the
//! descriptors run out, and no link is followed.

use rustix::{
    fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    fs::{AtFlags, Dir, FileType, Mode, OFlags},
    io::Errno,
};
use std::{
    ffi::{CStr, CString},
    fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
};

/// Directories below this depth are moved to the top first.
const DEPTH: usize = 24;

/// What is missing is removed.
pub fn remove(path: &Path) -> io::Result<()> {
    let top = match open(rustix::fs::CWD, &c_string(path)?) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => return fs::remove_file(path),
        Err(errno) => return Err(errno.into()),
    };
    let mut removal = Removal { top, moved: 0 };
    let top = removal.top.try_clone()?;
    // What is moved to the top has its turn there.
    removal.empty(top.as_fd(), 0)?;
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

struct Removal {
    top: OwnedFd,
    /// How many were moved to the top: their names.
    moved: usize,
}

impl Removal {
    fn empty(&mut self, dir: BorrowedFd<'_>, depth: usize) -> io::Result<()> {
        // Each round removes what it saw; one that saw nothing is the last.
        loop {
            let seen = names(dir)?;
            if seen.is_empty() {
                return Ok(());
            }
            for name in &seen {
                self.remove_entry(dir, name, depth)?;
            }
        }
    }

    fn remove_entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, depth: usize) -> io::Result<()> {
        match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // A directory, or one that takes no changes.
            Err(Errno::ISDIR | Errno::PERM | Errno::ACCESS) => {}
            Err(errno) => return Err(errno.into()),
        }
        if depth >= DEPTH && self.move_up(dir, name)? {
            return Ok(());
        }
        let inner = match open(dir, name) {
            Err(Errno::ACCESS) => {
                unlock(dir, name)?;
                open(dir, name)?
            }
            other => other?,
        };
        // A user who took away his own rights gets them back.
        let _ = rustix::fs::fchmod(&inner, Mode::RWXU);
        self.empty(inner.as_fd(), depth + 1)?;
        match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// False where its name at the top is taken.
    fn move_up(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
        self.moved += 1;
        let up = format!(".deep-{}-{}", std::process::id(), self.moved);
        match rustix::fs::renameat(dir, name, &self.top, up) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::ACCESS) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn open(dir: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// Gives the owner of a directory its rights back. By descriptor: the name may be a link by now.
fn unlock(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    Ok(rustix::fs::chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), Mode::RWXU)?)
}

/// What a tree takes on disk, in bytes. Somebody hostile may change it meanwhile: no link is followed, and what lies deeper
/// than [`COUNTED`] directories is not counted, and nor is what cannot be looked at.
pub fn taken(path: &Path) -> u64 {
    let own = fs::symlink_metadata(path).map_or(0, |found| found.blocks() * BLOCK);
    let top = c_string(path).ok().and_then(|path| open(rustix::fs::CWD, &path).ok());
    own + top.map_or(0, |top| taken_in(top.as_fd(), COUNTED))
}

const COUNTED: usize = 64;
/// The kernel's unit of `st_blocks`.
const BLOCK: u64 = 512;

fn taken_in(dir: BorrowedFd<'_>, depth: usize) -> u64 {
    let Ok(entries) = Dir::read_from(dir) else { return 0 };
    let mut sum = 0;
    for entry in entries.flatten().filter(|entry| ![c".", c".."].contains(&entry.file_name())) {
        let name = entry.file_name();
        let Ok(found) = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        sum += found.st_blocks.cast_unsigned() * BLOCK;
        if depth > 0
            && FileType::from_raw_mode(found.st_mode) == FileType::Directory
            && let Ok(inner) = open(dir, name)
        {
            sum += taken_in(inner.as_fd(), depth - 1);
        }
    }
    sum
}

/// A part of them: the rest is looked at again.
fn names(dir: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    const AT_ONCE: usize = 4096;
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_owned());
        }
        if names.len() == AT_ONCE {
            break;
        }
    }
    Ok(names)
}

fn c_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn deep_trees_go_and_links_stay_links() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, outside) = (dir.path().join("tree"), dir.path().join("outside"));
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "x").unwrap();
        fs::create_dir(&tree).unwrap();
        std::os::unix::fs::symlink(&outside, tree.join("link")).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = rustix::fs::open(&tree, flags, Mode::empty()).unwrap();
        for _ in 0..5000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = rustix::fs::openat(&at, "d", flags, Mode::empty()).unwrap();
        }
        for n in 0..5000 {
            fs::write(tree.join(format!("f{n}")), "").unwrap();
        }
        remove(&tree).unwrap();
        assert!(!tree.exists() && outside.join("kept").exists());
        remove(&tree).unwrap();
    }

    #[test]
    fn a_tree_is_measured_without_its_links_and_its_depths() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, outside) = (dir.path().join("tree"), dir.path().join("outside"));
        fs::create_dir_all(tree.join("a")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("large"), vec![1; 1 << 20]).unwrap();
        fs::write(tree.join("a/file"), vec![1; 64 << 10]).unwrap();
        std::os::unix::fs::symlink(&outside, tree.join("link")).unwrap();
        assert!((64 << 10..256 << 10).contains(&taken(&tree)), "{}", taken(&tree));
        assert_eq!(taken(&dir.path().join("missing")), 0);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = rustix::fs::open(&tree, flags, Mode::empty()).unwrap();
        for _ in 0..200 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = rustix::fs::openat(&at, "d", flags, Mode::empty()).unwrap();
        }
        assert!(taken(&tree) < 2 << 20);
        remove(&tree).unwrap();
    }

    #[test]
    fn what_was_locked_is_unlocked() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::set_permissions(tree.join("a/b"), fs::Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(tree.join("a"), fs::Permissions::from_mode(0o000)).unwrap();
        remove(&tree).unwrap();
        assert!(!tree.exists());
    }
}
