//! A tree of files as it was at one moment: the workspace, what was agreed on, or a version.
//!
//! Invariant: every path passes [`path::check`], and what is above a path is a directory of the tree.

use crate::{
    path,
    sums::{Strong, Sums},
};
use seawall_api::files::FileName;
use std::{collections::BTreeMap, sync::Arc};

/// When a file was modified: seconds since 1970, and the nanoseconds in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Mtime {
    pub secs: i64,
    pub nanos: u32,
}

/// Where a body is in the bucket: an object, and an offset in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub object: Arc<str>,
    pub offset: u64,
    /// How it is stored without its zeros; see [`crate::sparse`]. None where it is stored as it is.
    pub sparse: Option<Box<Sparse>>,
}

/// How a body is stored that has many zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sparse {
    /// The bytes that it takes in its object.
    pub stored: u64,
    /// How many of its first bytes are stored as they are.
    pub plain: u64,
}

impl Place {
    /// Of a body that is stored as it is.
    pub fn plain(object: Arc<str>, offset: u64) -> Place {
        Place { object, offset, sparse: None }
    }

    /// The bytes that a body of this size takes in the object.
    pub fn stored(&self, size: u64) -> u64 {
        self.sparse.as_ref().map_or(size, |sparse| sparse.stored)
    }

    /// The offset behind the last byte of a body of this size.
    pub fn end(&self, size: u64) -> u64 {
        self.offset.saturating_add(self.stored(size))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    pub size: u64,
    pub sums: Sums,
    /// Permission bits. None: an older writer did not say.
    pub mode: Option<u32>,
    pub mtime: Mtime,
    /// Where its body is. None: only in a workspace so far.
    pub place: Option<Place>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    File(File),
    Link {
        target: FileName,
        mtime: Mtime,
    },
    /// Its time is kept for the user's eyes, and is no change by itself: it moves with every file in it.
    Dir {
        mode: Option<u32>,
        mtime: Mtime,
    },
}

impl Node {
    pub fn is_dir(&self) -> bool {
        matches!(self, Node::Dir { .. })
    }

    pub fn file(&self) -> Option<&File> {
        match self {
            Node::File(file) => Some(file),
            _ => None,
        }
    }

    pub fn size(&self) -> u64 {
        self.file().map_or(0, |file| file.size)
    }

    pub fn mode(&self) -> Option<u32> {
        match self {
            Node::File(File { mode, .. }) | Node::Dir { mode, .. } => *mode,
            Node::Link { .. } => None,
        }
    }

    pub fn mtime(&self) -> Mtime {
        match self {
            Node::File(File { mtime, .. }) | Node::Link { mtime, .. } | Node::Dir { mtime, .. } => *mtime,
        }
    }

    /// The same kind with the same bytes: body, target, or nothing.
    pub fn same_content(&self, other: &Node) -> bool {
        match (self, other) {
            (Node::File(own), Node::File(others)) => own.size == others.size && own.sums.agree(&others.sums),
            (Node::Link { target: own, .. }, Node::Link { target: others, .. }) => own == others,
            (Node::Dir { .. }, Node::Dir { .. }) => true,
            _ => false,
        }
    }

    /// A mode that nobody noted is like any other.
    pub fn same_mode(&self, other: &Node) -> bool {
        match (self.mode(), other.mode()) {
            (Some(own), Some(others)) => own == others,
            _ => true,
        }
    }

    pub fn same_time(&self, other: &Node) -> bool {
        self.is_dir() || self.mtime() == other.mtime()
    }

    /// The same in everything that a state file says of it.
    pub fn is(&self, other: &Node) -> bool {
        let sums = |node: &Node| node.file().map(|file| file.sums);
        self.same_content(other)
            && sums(self) == sums(other)
            && self.mode() == other.mode()
            && self.mtime() == other.mtime()
    }

    /// Nothing to do between the two.
    pub fn same(&self, other: &Node) -> bool {
        self.same_content(other) && self.same_mode(other) && self.same_time(other)
    }
}

/// Paths and what is there, in the order of their bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree(pub BTreeMap<FileName, Node>);

impl Tree {
    pub fn get(&self, path: &FileName) -> Option<&Node> {
        self.0.get(path)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&FileName, &Node)> {
        self.0.iter()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn files(&self) -> impl Iterator<Item = (&FileName, &File)> {
        self.0.iter().filter_map(|(path, node)| node.file().map(|file| (path, file)))
    }

    /// What is beneath a directory, itself not included.
    pub fn beneath(&self, dir: &FileName) -> impl Iterator<Item = (&FileName, &Node)> {
        let (from, to) = path::beneath(dir);
        self.0.range(from..to)
    }

    /// Whether both are the same to a user.
    pub fn same(&self, other: &Tree) -> bool {
        self.len() == other.len()
            && self.iter().zip(other.iter()).all(|(own, others)| own.0 == others.0 && own.1.same(others.1))
    }

    /// Adds directories that only the paths beneath them tell of. Older writers list none.
    pub fn add_parents(&mut self) {
        let mut missing = Vec::new();
        // Neighbours mostly share what is above them.
        let mut last: Option<&[u8]> = None;
        for path in self.0.keys() {
            let above = path::parent(path.as_bytes());
            if above.is_none() || above == last {
                continue;
            }
            last = above;
            for above in path::ancestors(path.as_bytes()) {
                let above = FileName(above.to_vec());
                if self.0.contains_key(&above) {
                    break;
                }
                missing.push(above);
            }
        }
        for path in missing {
            self.0.entry(path).or_insert(Node::Dir { mode: None, mtime: Mtime::default() });
        }
    }

    /// Without a word on where bodies are: a workspace does not know.
    pub fn without_places(mut self) -> Tree {
        for node in self.0.values_mut() {
            if let Node::File(file) = node {
                file.place = None;
            }
        }
        self
    }

    /// The first path that lies beneath something that is no directory.
    pub fn misplaced(&self) -> Option<&FileName> {
        let is_dir = |above: &[u8]| self.0.get(&FileName(above.to_vec())).is_some_and(Node::is_dir);
        let mut last: Option<&[u8]> = None;
        self.0.keys().find(|path| match path::parent(path.as_bytes()) {
            above if above.is_none() || above == last => false,
            above => {
                last = above;
                above.is_some_and(|above| !is_dir(above))
            }
        })
    }

    /// A hash of all that a user would see, so that a damaged or edited copy is known.
    pub fn digest(&self) -> Strong {
        let mut hasher = blake3::Hasher::new();
        let mut buffer = Vec::with_capacity(256);
        for (path, node) in self.iter() {
            buffer.clear();
            put_bytes(&mut buffer, path.as_bytes());
            put_node(&mut buffer, node);
            hasher.update(&buffer);
        }
        Strong(*hasher.finalize().as_bytes())
    }
}

fn put_bytes(buffer: &mut Vec<u8>, bytes: &[u8]) {
    buffer.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    buffer.extend_from_slice(bytes);
}

fn put_node(buffer: &mut Vec<u8>, node: &Node) {
    match node {
        Node::File(file) => {
            buffer.push(1);
            buffer.extend_from_slice(&file.size.to_le_bytes());
            buffer.extend_from_slice(&file.sums.md5.0);
            buffer.extend_from_slice(&file.sums.strong.map_or([0; 32], |strong| strong.0));
        }
        Node::Link { target, .. } => {
            buffer.push(2);
            put_bytes(buffer, target.as_bytes());
        }
        Node::Dir { .. } => buffer.push(3),
    }
    buffer.extend_from_slice(&node.mode().map_or(u32::MAX, |mode| mode).to_le_bytes());
    buffer.extend_from_slice(&node.mtime().secs.to_le_bytes());
    buffer.extend_from_slice(&node.mtime().nanos.to_le_bytes());
}

impl FromIterator<(FileName, Node)> for Tree {
    fn from_iter<I: IntoIterator<Item = (FileName, Node)>>(entries: I) -> Self {
        Tree(entries.into_iter().collect())
    }
}

/// From one tree to another: what is there or different, and what is gone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Delta {
    pub changed: Vec<(FileName, Node)>,
    pub removed: Vec<FileName>,
}

impl Delta {
    pub fn between(from: &Tree, to: &Tree) -> Delta {
        let differs = |path: &FileName, node: &Node| from.get(path).is_none_or(|was| !was.is(node));
        Delta {
            changed: to
                .iter()
                .filter(|(path, node)| differs(path, node))
                .map(|(path, node)| (path.clone(), node.clone()))
                .collect(),
            removed: from.0.keys().filter(|path| to.get(path).is_none()).cloned().collect(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.removed.is_empty()
    }

    pub fn apply(self, tree: &mut Tree) {
        for path in &self.removed {
            tree.0.remove(path);
        }
        tree.0.extend(self.changed);
    }
}
