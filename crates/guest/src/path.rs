//! Paths that never lead out of their root.
//!
//! [`Clean`] is what a request's text becomes: relative to the root's descriptor, without tricks that
//! the kernel would not see through. Following it is the kernel's work (`openat2`), which decides for
//! every step, links and races included: beneath the root, or not at all.

use crate::fault::{Outcome, from_errno, invalid};
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{Mode, OFlags, ResolveFlags},
    io::Errno,
};
use seawall_api::files::{FileName, Root};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

/// The longest path and the longest name that Linux takes.
const MAX_PATH: usize = 4095;
const MAX_NAME: usize = 255;
/// `openat2` asks to try again when something moved while it looked at `..`.
const RACES: usize = 64;

/// A path relative to its root, checked. `.` is the root itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clean {
    parts: Vec<Vec<u8>>,
    confined: bool,
}

impl Clean {
    pub fn new(root: Root, path: &FileName) -> Outcome<Clean> {
        let bytes = path.as_bytes();
        if bytes.contains(&0) {
            return Err(invalid("a path cannot contain a zero byte"));
        }
        if bytes.len() > MAX_PATH {
            return Err(invalid(format!("a path of {} bytes; the limit is {MAX_PATH}", bytes.len())));
        }
        let absolute = bytes.first() == Some(&b'/');
        let confined = root != Root::Box;
        if confined && absolute {
            return Err(invalid(format!("{path:?} is absolute; give it relative to its root")));
        }
        let mut parts: Vec<Vec<u8>> = Vec::new();
        if !confined && !absolute {
            parts.push(b"work".to_vec());
        }
        for part in bytes.split(|b| *b == b'/').filter(|part| !matches!(*part, b"" | b".")) {
            if part.len() > MAX_NAME {
                return Err(invalid(format!("a name of {} bytes; the limit is {MAX_NAME}", part.len())));
            }
            parts.push(part.to_vec());
        }
        Ok(Clean { parts, confined })
    }

    /// As text for messages: what the user would recognise.
    pub fn shown(&self) -> String {
        let slash = if self.confined { "" } else { "/" };
        format!("{slash}{}", String::from_utf8_lossy(&self.parts.join(&b'/')))
    }

    pub fn as_bytes(&self) -> Vec<u8> {
        match self.parts.is_empty() {
            true => b".".to_vec(),
            false => self.parts.join(&b'/'),
        }
    }

    /// The path above and the last name. The name is one that can be made, moved or removed.
    pub fn split(&self) -> Outcome<(Clean, Vec<u8>)> {
        match self.parts.split_last() {
            Some((name, above)) if name != b".." => {
                let above = Clean { parts: above.to_vec(), confined: self.confined };
                Ok((above, name.clone()))
            }
            _ => Err(invalid(format!("{} does not name something in a directory", self.shown()))),
        }
    }

    /// The path of each directory from the top down to this one.
    pub fn ancestors(&self) -> impl Iterator<Item = Clean> + '_ {
        (1..=self.parts.len()).map(|n| Clean { parts: self.parts[..n].to_vec(), confined: self.confined })
    }

    /// Opens what the path leads to.
    pub fn open(&self, root: BorrowedFd<'_>, flags: OFlags, mode: Mode) -> Outcome<OwnedFd> {
        self.try_open(root, flags, mode).map_err(|errno| from_errno(self.shown(), errno))
    }

    pub fn try_open(&self, root: BorrowedFd<'_>, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let bytes = self.as_bytes();
        let path = OsStr::from_bytes(&bytes);
        // In the box's own root `..` and absolute links stay inside, as in a chroot. Where the root is
        // a part of the box, leading out of it is an error.
        let inside = if self.confined { ResolveFlags::BENEATH } else { ResolveFlags::IN_ROOT };
        let resolve = inside | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..RACES {
            match rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, mode, resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other,
            }
        }
        Err(Errno::AGAIN)
    }

    /// Opens the directory that the path leads to, only to reach what is in it.
    pub fn open_dir(&self, root: BorrowedFd<'_>) -> Outcome<OwnedFd> {
        self.open(root, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
    }

    /// The directory above, opened, and the last name.
    pub fn parent(&self, root: BorrowedFd<'_>) -> Outcome<(OwnedFd, Vec<u8>)> {
        let (above, name) = self.split()?;
        Ok((above.open_dir(root)?, name))
    }

    /// Makes the directories that are missing on the way to this one.
    pub fn make_all(&self, root: BorrowedFd<'_>, mode: Mode) -> Outcome<OwnedFd> {
        for dir in self.ancestors() {
            match dir.try_open(root, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
                Ok(_) => continue,
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(from_errno(dir.shown(), errno)),
            }
            let (parent, name) = dir.parent(root)?;
            match rustix::fs::mkdirat(parent.as_fd(), OsStr::from_bytes(&name), mode) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(from_errno(dir.shown(), errno)),
            }
        }
        self.open_dir(root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::{fs, os::unix::fs::symlink, path::PathBuf};

    fn clean(root: Root, path: &str) -> Outcome<Clean> {
        Clean::new(root, &FileName::from(path))
    }

    #[test]
    fn relative_paths_start_in_work() {
        assert_eq!(clean(Root::Box, "a/b").unwrap().shown(), "/work/a/b");
        assert_eq!(clean(Root::Box, "/a//./b/").unwrap().shown(), "/a/b");
        assert_eq!(clean(Root::Box, "/").unwrap().as_bytes(), b".");
        assert_eq!(clean(Root::Work, "").unwrap().as_bytes(), b".");
    }

    #[test]
    fn what_cannot_be_a_path_is_refused() {
        assert!(clean(Root::Work, "/etc/passwd").is_err());
        assert!(clean(Root::Box, "a\0b").is_err());
        assert!(clean(Root::Box, &"x".repeat(256)).is_err());
        assert!(clean(Root::Box, &"x/".repeat(2100)).is_err());
        assert!(clean(Root::Box, "/").unwrap().split().is_err());
        assert!(clean(Root::Box, "/a/..").unwrap().split().is_err());
    }

    struct Tree {
        _dir: tempfile::TempDir,
        root: PathBuf,
        fd: OwnedFd,
    }

    fn tree() -> Tree {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("work/sub")).unwrap();
        fs::write(dir.path().join("secret"), "no").unwrap();
        fs::write(root.join("work/sub/file"), "yes").unwrap();
        symlink("/secret", root.join("work/absolute")).unwrap();
        symlink("../../secret", root.join("work/up")).unwrap();
        symlink("../../..", root.join("work/sub/top")).unwrap();
        symlink("/proc/self/root", root.join("work/magic")).unwrap();
        symlink("sub", root.join("work/fine")).unwrap();
        let fd = rustix::fs::open(&root, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        Tree { _dir: dir, root, fd }
    }

    fn real(fd: &OwnedFd) -> PathBuf {
        use std::os::fd::AsRawFd;
        fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap()
    }

    #[test]
    fn links_do_not_lead_out() {
        let tree = tree();
        for path in ["absolute", "up", "sub/top/secret", "magic/etc/passwd", "../../secret"] {
            let opened =
                clean(Root::Box, path).unwrap().try_open(tree.fd.as_fd(), OFlags::RDONLY, Mode::empty());
            assert!(opened.is_err(), "{path}");
        }
        let fine = clean(Root::Box, "fine/file").unwrap();
        let fd = fine.open(tree.fd.as_fd(), OFlags::RDONLY, Mode::empty()).unwrap();
        assert_eq!(real(&fd), tree.root.join("work/sub/file"));
    }

    #[test]
    fn make_all_makes_only_beneath() {
        let tree = tree();
        clean(Root::Box, "/a/b/c").unwrap().make_all(tree.fd.as_fd(), Mode::RWXU).unwrap();
        assert!(tree.root.join("a/b/c").is_dir());
        clean(Root::Box, "/../../x").unwrap().make_all(tree.fd.as_fd(), Mode::RWXU).unwrap();
        assert!(tree.root.join("x").is_dir());
    }

    proptest! {
        #[test]
        fn whatever_is_asked_for_is_beneath(parts in proptest::collection::vec(
            prop_oneof![
                Just("..".to_owned()), Just("sub".to_owned()), Just("top".to_owned()),
                Just("fine".to_owned()), Just("up".to_owned()), Just("magic".to_owned()),
                Just("absolute".to_owned()), Just("work".to_owned()), Just("secret".to_owned()),
                "[a-z.]{0,3}",
            ], 0..8), absolute: bool)
        {
            let tree = tree();
            let path = format!("{}{}", if absolute { "/" } else { "" }, parts.join("/"));
            for root in [Root::Box, Root::Work] {
                let Ok(clean) = clean(root, &path) else { continue };
                if let Ok(fd) = clean.try_open(tree.fd.as_fd(), OFlags::PATH, Mode::empty()) {
                    prop_assert!(real(&fd).starts_with(&tree.root), "{path} -> {:?}", real(&fd));
                }
            }
        }
    }
}
