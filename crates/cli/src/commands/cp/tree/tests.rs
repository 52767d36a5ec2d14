//! A tree is written into, and not out of.

use super::*;
use std::{
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
};

fn names<'a>(parts: &'a [&'a str]) -> Vec<&'a OsStr> {
    parts.iter().map(OsStr::new).collect()
}

fn write(tree: &Tree, parts: &[&str], body: &str, mode: u32) -> Result<()> {
    let (draft, mut file) = tree.draft(&names(parts))?;
    file.write_all(body.as_bytes()).unwrap();
    draft.publish(&file, mode, (1_000_000_000, 5))
}

#[test]
fn files_appear_whole_with_their_mode_and_time() {
    let folder = tempfile::tempdir().unwrap();
    let tree = Tree::open(folder.path()).unwrap();
    tree.make_dir(&names(&["sub"])).unwrap();
    tree.make_dir(&names(&["sub"])).unwrap();
    write(&tree, &["sub", "a"], "one", 0o4751).unwrap();
    write(&tree, &["sub", "a"], "two", 0o640).unwrap();
    let path = folder.path().join("sub/a");
    let meta = std::fs::metadata(&path).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
    assert_eq!(meta.permissions().mode() & 0o7777, 0o640);
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_000_000_000, 5));
}

#[test]
fn set_id_bits_do_not_come_out() {
    let folder = tempfile::tempdir().unwrap();
    let tree = Tree::open(folder.path()).unwrap();
    write(&tree, &["a"], "", 0o6755).unwrap();
    let meta = std::fs::metadata(folder.path().join("a")).unwrap();
    assert_eq!(meta.permissions().mode() & 0o7777, 0o755);
}

#[test]
fn links_are_never_written_through() {
    let folder = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("victim"), "safe").unwrap();
    let tree = Tree::open(folder.path()).unwrap();
    tree.symlink(&names(&["dir"]), outside.path().as_os_str().as_encoded_bytes(), (0, 0)).unwrap();
    assert!(tree.draft(&names(&["dir", "evil"])).is_err());
    assert!(tree.make_dir(&names(&["dir"])).is_err());
    assert!(tree.make_dir(&names(&["dir", "evil"])).is_err());

    symlink(outside.path().join("victim"), folder.path().join("file")).unwrap();
    write(&tree, &["file"], "new", 0o600).unwrap();
    assert_eq!(std::fs::read_to_string(outside.path().join("victim")).unwrap(), "safe");
    assert!(std::fs::symlink_metadata(folder.path().join("file")).unwrap().is_file());
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn half_a_file_goes_away() {
    let folder = tempfile::tempdir().unwrap();
    let tree = Tree::open(folder.path()).unwrap();
    drop(tree.draft(&names(&["a"])).unwrap());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
