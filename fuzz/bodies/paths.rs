//! Whatever path is asked for, in a tree full of links that lead out: what is opened is beneath its root.

use rustix::{
    fd::{AsFd, AsRawFd, OwnedFd},
    fs::{Mode, OFlags},
};
use seawall_api::files::{FileName, Root};
use seawall_guest::path::Clean;
use std::{fs, os::unix::fs::symlink, path::PathBuf, sync::OnceLock};

struct Tree {
    root: PathBuf,
    fd: OwnedFd,
}

/// Made once. Names are short, so that the fuzzer finds them.
fn tree() -> &'static Tree {
    static TREE: OnceLock<Tree> = OnceLock::new();
    TREE.get_or_init(|| {
        let top = std::env::temp_dir().join(format!("seawall-fuzz-{}", std::process::id()));
        let _ = fs::remove_dir_all(&top);
        let root = top.join("r");
        fs::create_dir_all(root.join("work/a/b")).expect("a tree");
        fs::write(top.join("s"), "secret").expect("a secret");
        fs::write(root.join("work/a/f"), "fine").expect("a file");
        for (target, link) in [
            ("/s", "work/l"),
            ("../../s", "work/u"),
            ("../../..", "work/a/t"),
            ("/", "work/o"),
            ("..", "work/p"),
            ("/proc/self/root", "work/m"),
            ("/proc/self/fd", "work/n"),
            ("a", "work/d"),
            ("x/../../../s", "work/q"),
            ("l", "work/k"),
        ] {
            symlink(target, root.join(link)).expect("a link");
        }
        let fd = rustix::fs::open(&root, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).expect("the root");
        Tree { root, fd }
    })
}

fn real(fd: &OwnedFd) -> PathBuf {
    fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("a descriptor's path")
}

pub fn paths(data: &[u8]) {
    let tree = tree();
    let path = FileName(data.to_vec());
    for root in [Root::Box, Root::Work, Root::Home] {
        let Ok(clean) = Clean::new(root, &path) else { continue };
        if let Ok(fd) = clean.try_open(tree.fd.as_fd(), OFlags::PATH, Mode::empty()) {
            assert!(real(&fd).starts_with(&tree.root), "{path:?} leads to {:?}", real(&fd));
        }
        if let Ok((dir, name)) = clean.parent(tree.fd.as_fd()) {
            assert!(real(&dir).starts_with(&tree.root), "{path:?} is in {:?}", real(&dir));
            assert!(!name.is_empty() && !name.contains(&b'/') && name != b"." && name != b"..");
        }
        // Making directories must not leave either; few levels, so that the tree stays small.
        if data.len() < 6
            && let Ok(dir) = clean.make_all(tree.fd.as_fd(), Mode::RWXU)
        {
            assert!(real(&dir).starts_with(&tree.root), "{path:?} made {:?}", real(&dir));
        }
    }
}
