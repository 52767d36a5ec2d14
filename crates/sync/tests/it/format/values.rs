//! What the fixtures mean.

use seawall_api::files::FileName;
use seawall_sync::{
    state::{CommitRef, StateFile},
    sums::{Md5, Strong, Sums},
    tree::{File, Mtime, Node, Place, Sparse, Tree},
    versions::{Body, Record, VersionRecord, What},
};

/// As the older system wrote it: its four fields and no more, and `<`, `>` and `&` escaped.
pub const OLDER: &[u8] = include_bytes!("../../fixtures/older.sandbox-state");
/// With every field and array of ours.
pub const VERSION_1: &[u8] = include_bytes!("../../fixtures/version-1.sandbox-state");

/// Of a version with bodies that are stored without their zeros.
pub const SPARSE: &[u8] = include_bytes!("../../fixtures/sparse.sandbox-state");

/// Of a workspace whose sync died after its commit.
pub const PARTIAL: &[u8] = include_bytes!("../../fixtures/partial.sandbox-state");

const FIRST: &[u8] = include_bytes!("../../fixtures/first.commit");
const COMMITTED: &[u8] = include_bytes!("../../fixtures/version.commit");
/// The first version after all were deleted.
const ANEW: &[u8] = include_bytes!("../../fixtures/anew.commit");
const CONDEMNED: &[u8] = include_bytes!("../../fixtures/condemned.commit");
const QUARANTINED: &[u8] = include_bytes!("../../fixtures/quarantined.commit");

const SMALL_PACK: &str = ".packs/00000000000000000002-0f1e2d3c4b5a69788796a5b4c3d2e1f0";
const LARGE_PACK: &str = concat!(
    ".packs/00000000000000000001-aabbccddeeff00112233445566778899-",
    "2222222222222222222222222222222222222222222222222222222222222222"
);
const EMPTY_MD5: &str = "d41d8cd98f00b204e9800998ecf8427e";
const EMPTY_BLAKE3: &str = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";

/// A hash of one digit: the format does not ask whether it is right.
fn strong(digit: &str) -> Strong {
    Strong::parse(&digit.repeat(64)).unwrap()
}

fn at(secs: i64, nanos: u32) -> Mtime {
    Mtime { secs, nanos }
}

fn place(object: &str, offset: u64) -> Option<Place> {
    Some(Place::plain(object.into(), offset))
}

/// A file of the older system.
fn plain(md5: &str, size: u64, secs: i64) -> File {
    let sums = Sums { md5: Md5::parse(md5).unwrap(), strong: None };
    File { size, sums, mode: None, mtime: at(secs, 0), place: None }
}

fn bare_dir() -> Node {
    Node::Dir { mode: None, mtime: Mtime::default() }
}

fn link(target: &[u8], mtime: Mtime) -> Node {
    Node::Link { target: FileName::from(target), mtime }
}

fn entry(path: &[u8], node: Node) -> (FileName, Node) {
    (FileName::from(path), node)
}

pub fn older() -> StateFile {
    let entries = [
        entry(b"README.md", Node::File(plain("b1946ac92492d2347c6235b4d2611184", 6, 1_704_067_000))),
        entry(b"notes", bare_dir()),
        entry(b"notes/R&D <draft>.md", Node::File(plain(EMPTY_MD5, 0, 1_704_067_050))),
        entry(b"src", bare_dir()),
        entry(b"src/main.py", Node::File(plain("098f6bcd4621d373cade4e832627b4f6", 4, 1_704_067_100))),
    ];
    StateFile { last_synced_at: 1_704_067_200, tree: Tree::from_iter(entries), ..StateFile::default() }
}

pub fn version_1() -> StateFile {
    let mut entries = files();
    entries.extend(others());
    let commit = CommitRef {
        seq: 7,
        id: "4b1d0c5e8f2a49d3b6a7c8d9e0f10213".to_owned(),
        timestamp: 1_704_067_200_123,
        tree: strong("5"),
        seen: Some(8),
        partial: false,
    };
    StateFile {
        last_synced_at: 1_704_067_200,
        commit: Some(commit),
        packed: true,
        tree: Tree::from_iter(entries),
    }
}

pub fn partial() -> StateFile {
    let commit = CommitRef {
        seq: 8,
        id: "1c8e7f60a1b24c3d8e9f0a1b2c3d4e5f".to_owned(),
        timestamp: 1_704_067_200_124,
        tree: strong("9"),
        seen: None,
        partial: true,
    };
    StateFile { last_synced_at: 1_704_067_200, commit: Some(commit), ..StateFile::default() }
}

pub fn sparse() -> StateFile {
    let part = |object: &str, offset, stored, plain| {
        let sparse = Some(Box::new(Sparse { stored, plain }));
        Some(Place { object: object.into(), offset, sparse })
    };
    let image = plain("2c7ab85a893283e98c931e9511add182", 6 << 30, 1_704_067_100);
    let small = plain("b1946ac92492d2347c6235b4d2611184", 65_536, 1_704_067_101);
    let raw = plain("3e2b31c72181b87149ff995e7202c0e3", 10_240, 1_704_067_102);
    let text = plain("bdd166af3a63f7be696dd17a218a6ffb", 3, 1_704_067_103);
    let entries = [
        entry(b"disk.img", full(image, 0, 0o644, strong("1"), part(LARGE_PACK, 0, 1_048_600, 4096))),
        entry(b"small", full(small, 7, 0o600, strong("2"), part(SMALL_PACK, 3, 1030, 0))),
        entry(b"text", full(text, 0, 0o644, strong("3"), place(SMALL_PACK, 0))),
        entry(b"\xffraw", full(raw, 0, 0o644, strong("4"), part(SMALL_PACK, 1033, 2054, 0))),
    ];
    let (last_synced_at, tree) = (1_704_067_200, Tree::from_iter(entries));
    StateFile { last_synced_at, packed: true, tree, ..StateFile::default() }
}

/// One of ours: an older file with what we add.
fn full(file: File, nanos: u32, mode: u32, blake3: Strong, place: Option<Place>) -> Node {
    let sums = Sums { strong: Some(blake3), ..file.sums };
    let mtime = Mtime { nanos, ..file.mtime };
    Node::File(File { sums, mtime, mode: Some(mode), place, ..file })
}

fn files() -> Vec<(FileName, Node)> {
    let readme = plain("b1946ac92492d2347c6235b4d2611184", 6, 1_704_067_100);
    let tool = plain("3e2b31c72181b87149ff995e7202c0e3", 10, 1_704_067_002);
    let raw = plain("bdd166af3a63f7be696dd17a218a6ffb", 3, 1_704_067_003);
    let note = plain("aad653ca3ee669635f2938b73098b6d7", 4, 1_704_067_007);
    // Still where an older version put it.
    let kept = File {
        place: place("1704060000000/old/plain.txt", 0),
        ..plain("098f6bcd4621d373cade4e832627b4f6", 4, 1_704_067_008)
    };
    let zero = plain(EMPTY_MD5, 0, -1);
    let empty = Strong::parse(EMPTY_BLAKE3).unwrap();
    vec![
        entry(b"README.md", full(readme, 123_456_789, 0o644, strong("1"), place(SMALL_PACK, 0))),
        entry(b"bin/tool", full(tool, 999_999_999, 0o4755, strong("2"), place(LARGE_PACK, 0))),
        entry(b"caf\xe9.txt", full(raw, 0, 0o600, strong("3"), place(SMALL_PACK, 6))),
        entry(b"note \"\xc3\xa4\" \\ 1.txt", full(note, 0, 0o640, strong("4"), place(SMALL_PACK, 9))),
        entry(b"old/plain.txt", Node::File(kept)),
        entry(b"zero", full(zero, 500_000_000, 0o644, empty, None)),
    ]
}

fn others() -> Vec<(FileName, Node)> {
    vec![
        entry(b"bin", Node::Dir { mode: Some(0o755), mtime: at(1_704_067_000, 1) }),
        entry(b"bin/python", link(b"/usr/bin/python3", at(1_704_067_001, 0))),
        entry(b"d\xff", Node::Dir { mode: Some(0o700), mtime: at(1_704_067_004, 4) }),
        entry(b"d\xff/back\\slash", link(b"plain", at(1_704_067_005, 0))),
        entry(b"link", link(b"t\xfe", at(1_704_067_005, 50))),
        entry(b"logs", Node::Dir { mode: Some(0o1777), mtime: at(1_704_067_006, 0) }),
        entry(b"old", bare_dir()),
    ]
}

/// The records: a name, the frozen bytes, what they mean.
pub fn records() -> Vec<(&'static str, &'static [u8], Record)> {
    vec![
        ("first", FIRST, first()),
        ("version", COMMITTED, committed()),
        ("anew", ANEW, anew()),
        ("condemned", CONDEMNED, condemned()),
        ("quarantined", QUARANTINED, quarantined()),
    ]
}

const FIRST_ID: &str = "1c8e7f60a1b24c3d8e9f0a1b2c3d4e5f";
const COMMITTED_ID: &str = "4b1d0c5e8f2a49d3b6a7c8d9e0f10213";
const CONDEMNED_ID: &str = "9d2f3a4b5c6d7e8f90a1b2c3d4e5f607";
const QUARANTINED_ID: &str = "e1d2c3b4a5968778695a4b3c2d1e0f00";

fn first() -> Record {
    let version = VersionRecord {
        seq: 1,
        id: FIRST_ID.to_owned(),
        timestamp: 1_704_067_100_001,
        manifest: "1704067100001/.sandbox-state".to_owned(),
        manifest_hash: strong("7"),
        manifest_size: 512,
        tree: strong("8"),
        files: 0,
        bytes: 0,
        began: 0,
        legacy: false,
    };
    Record::new(1, FIRST_ID.to_owned(), "", What::Version(version))
}

fn committed() -> Record {
    let version = VersionRecord {
        seq: 7,
        id: COMMITTED_ID.to_owned(),
        timestamp: 1_704_067_200_123,
        manifest: "1704067200123/.sandbox-state".to_owned(),
        manifest_hash: strong("6"),
        manifest_size: 2048,
        tree: strong("5"),
        files: 6,
        bytes: 27,
        began: 0,
        legacy: false,
    };
    Record::new(7, COMMITTED_ID.to_owned(), FIRST_ID, What::Version(version))
}

fn anew() -> Record {
    let What::Version(version) = committed().what else { panic!("it is a version") };
    let (seq, id) = (12, "77aa66bb55cc44dd33ee22ff11009988".to_owned());
    let version = VersionRecord { seq, id: id.clone(), began: 10, ..version };
    Record::new(seq, id, CONDEMNED_ID, What::Version(version))
}

fn condemned() -> Record {
    let what = What::Condemned {
        newest: Some(7),
        versions: vec![5, 6],
        objects: vec![SMALL_PACK.into(), "1704000000000/.sandbox-state".into()],
        timestamp: 1_704_067_300_000,
    };
    Record::new(8, CONDEMNED_ID.to_owned(), COMMITTED_ID, what)
}

fn quarantined() -> Record {
    let bodies = vec![
        Body { object: LARGE_PACK.into(), offset: 0, size: 10 },
        Body { object: SMALL_PACK.into(), offset: 6, size: 3 },
    ];
    let what = What::Quarantined { newest: None, bodies, timestamp: 1_704_067_400_000 };
    Record::new(9, QUARANTINED_ID.to_owned(), CONDEMNED_ID, what)
}
