//! Trees of every kind: names that are not text, links to anywhere, empty directories, files of older writers.

use proptest::{collection::vec, option, prelude::*};
use seawall_api::files::FileName;
use seawall_sync::{
    path,
    state::{CommitRef, StateFile},
    sums::{Md5, Strong, Sums},
    tree::{File, Mtime, Node, Place, Sparse, Tree},
};

/// What a name may have: no zero, and no slash.
fn byte() -> impl Strategy<Value = u8> {
    (1..=255u8).prop_map(|byte| if byte == b'/' { b'x' } else { byte })
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let text = vec(any::<char>(), 1..6).prop_map(|chars| chars.into_iter().collect::<String>().into_bytes());
    prop_oneof![
        // Few letters, so that paths meet.
        6 => vec(prop_oneof![Just(b'a'), Just(b'b'), Just(b'.')], 1..3),
        2 => text,
        2 => vec(prop_oneof![Just(b'\\'), Just(b'x'), Just(b'"'), Just(0xffu8)], 1..6),
        2 => vec(byte(), 1..12),
        1 => vec(byte(), 255usize),
    ]
}

fn mtime() -> impl Strategy<Value = Mtime> {
    let nanos = prop_oneof![Just(0u32), 0..1_000_000_000u32];
    (any::<i64>(), nanos).prop_map(|(secs, nanos)| Mtime { secs, nanos })
}

fn mode() -> impl Strategy<Value = Option<u32>> {
    option::of(0..=0o7777u32)
}

fn place() -> impl Strategy<Value = Option<Place>> {
    let offset = prop_oneof![Just(0u64), 0..1u64 << 62];
    let place =
        (0..4u8, offset).prop_map(|(pack, offset)| Place::plain(format!(".packs/{pack}").into(), offset));
    option::of(place)
}

fn sums() -> impl Strategy<Value = Sums> {
    let strong = option::of(any::<[u8; 32]>());
    (any::<[u8; 16]>(), strong).prop_map(|(md5, strong)| Sums { md5: Md5(md5), strong: strong.map(Strong) })
}

fn file() -> impl Strategy<Value = Node> {
    let size = prop_oneof![Just(0u64), 0..=1u64 << 40];
    let sparse = option::of((1..=100u64, 0..=100u64));
    (size, sums(), mode(), mtime(), place(), sparse).prop_map(|(size, sums, mode, mtime, place, sparse)| {
        let place = place.map(|place| Place { sparse: sparse.map(|parts| stored(size, parts)), ..place });
        Node::File(File { size, sums, mode, mtime, place })
    })
}

/// So many hundredths of a body, of which so many are its beginning.
fn stored(size: u64, (part, beginning): (u64, u64)) -> Box<Sparse> {
    let stored = size / 100 * part;
    Box::new(Sparse { stored, plain: stored / 100 * beginning })
}

fn link() -> impl Strategy<Value = Node> {
    (vec(1..=255u8, 1..20), mtime())
        .prop_map(|(target, mtime)| Node::Link { target: FileName(target), mtime })
}

fn dir() -> impl Strategy<Value = Node> {
    (mode(), mtime()).prop_map(|(mode, mtime)| Node::Dir { mode, mtime })
}

fn node() -> impl Strategy<Value = Node> {
    prop_oneof![3 => file(), 1 => link(), 1 => dir()]
}

pub fn tree() -> impl Strategy<Value = Tree> {
    vec((vec(name(), 1..4), node()), 0..20).prop_map(build)
}

/// What fits into one tree of it.
fn build(entries: Vec<(Vec<Vec<u8>>, Node)>) -> Tree {
    let mut tree = Tree::default();
    for (names, node) in entries {
        let path = FileName(names.join(&b'/'));
        if fits(&tree, &path, &node) {
            tree.0.insert(path, node);
        }
    }
    tree.add_parents();
    tree
}

fn fits(tree: &Tree, path: &FileName, node: &Node) -> bool {
    let is_open = |above: &[u8]| tree.get(&FileName(above.to_vec())).is_none_or(Node::is_dir);
    path::check(path.as_bytes()).is_ok()
        && tree.get(path).is_none()
        && path::ancestors(path.as_bytes()).all(is_open)
        && (node.is_dir() || tree.beneath(path).next().is_none())
}

fn commit() -> impl Strategy<Value = CommitRef> {
    let seen = option::of(any::<u64>());
    (any::<u64>(), seen, any::<u128>(), any::<i64>(), any::<[u8; 32]>(), any::<bool>()).prop_map(
        |(seq, seen, id, timestamp, tree, partial)| CommitRef {
            seq,
            id: format!("{id:x}"),
            timestamp,
            tree: Strong(tree),
            seen,
            partial,
        },
    )
}

pub fn state() -> impl Strategy<Value = StateFile> {
    (any::<i64>(), option::of(commit()), tree(), any::<bool>())
        .prop_map(|(last_synced_at, commit, tree, packed)| StateFile { packed, last_synced_at, commit, tree })
}
