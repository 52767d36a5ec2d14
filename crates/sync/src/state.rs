//! The state file, `.sandbox-state`: JSON, version "1.0". The manifest of a workspace and of each version.
//!
//! `files` is what older readers know: path, MD5, size, seconds. What we add stands in optional fields and in
//! arrays beside it, so that both can read both. A name or target that is not UTF-8 is in `raw`, with the bytes
//! written as `\xNN`. Nothing that was parsed is believed before it passed the checks here.
//!
//! A body that is stored without its zeros names its object by a number behind those of `packs`. A reader that does not know
//! `sparse` refuses such a manifest as a whole, since that object is not listed for it: it neither restores the stored
//! bytes, nor prunes the object, nor carries the entry into a version of its own.

use crate::{
    path, sparse,
    sums::{Md5, Strong, Sums},
    tree::{File, Mtime, Node, Place, Sparse, Tree},
};
use seawall_api::files::FileName;
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, sync::Arc};

pub const VERSION: &str = "1.0";

/// The version that a workspace last agreed on with its bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitRef {
    pub seq: u64,
    pub id: String,
    /// Unix milliseconds; the name of the version's folder.
    pub timestamp: i64,
    /// [`Tree::digest`] of what was agreed on.
    pub tree: Strong,
    /// The last record that was seen behind it, which is no version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<u64>,
    /// The workspace had all that it pushed, and perhaps not yet all that the version has.
    #[serde(default, skip_serializing_if = "is_false")]
    pub partial: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StateFile {
    /// Unix seconds.
    pub last_synced_at: i64,
    /// None: never synced, or written by somebody else.
    pub commit: Option<CommitRef>,
    /// A version's manifest whose bodies are in packs; without it they lie beside it (S14).
    pub packed: bool,
    pub tree: Tree,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    #[error("it is not a state file: {0}")]
    Corrupt(String),
    #[error("its version is {0:?}, and only \"1.0\" is known here")]
    UnknownVersion(String),
    #[error("it was changed by somebody else: its entries are not those that were agreed on")]
    Altered,
    #[error("{path:?}: {why}")]
    Invalid { path: FileName, why: String },
    #[error("it lists {found} entries, the limit is {limit}")]
    TooMany { found: usize, limit: usize },
}

/// What is taken from a state file, whoever wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub max_entries: usize,
    pub max_file_size: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { max_entries: 4_000_000, max_file_size: 1 << 40 }
    }
}

/// `P` is how paths are written: text, or for [`Document::raw`] text with the bytes escaped.
#[derive(Serialize, Deserialize)]
struct Document<P> {
    version: String,
    last_synced_at: i64,
    files: Vec<FileEntry<P>>,
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    links: Vec<LinkEntry<P>>,
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    directories: Vec<DirEntry<P>>,
    /// Names and targets that are not UTF-8.
    #[serde(default, skip_serializing_if = "Raw::is_empty")]
    raw: Raw,
    /// Objects, relative to the prefix, that entries name by their number here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    packs: Vec<Arc<str>>,
    /// As `packs`, with bodies that are stored without their zeros. Their numbers follow those of `packs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    sparse: Vec<Arc<str>>,
    #[serde(default, skip_serializing_if = "is_false")]
    packed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    commit: Option<CommitRef>,
}

#[derive(Serialize, Deserialize)]
struct FileEntry<P> {
    path: P,
    checksum: Md5,
    size: u64,
    modified_at: i64,
    #[serde(default, skip_serializing_if = "is_zero")]
    nanos: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    blake3: Option<Strong>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pack: Option<usize>,
    #[serde(default, skip_serializing_if = "is_zero_offset")]
    offset: u64,
    /// The bytes in the object, of a body without its zeros.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stored: Option<u64>,
    /// Of which so many are its beginning.
    #[serde(default, skip_serializing_if = "is_zero_offset")]
    plain: u64,
}

#[derive(Serialize, Deserialize)]
struct LinkEntry<P> {
    path: P,
    target: P,
    modified_at: i64,
    #[serde(default, skip_serializing_if = "is_zero")]
    nanos: u32,
}

#[derive(Serialize, Deserialize)]
struct DirEntry<P> {
    path: P,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<u32>,
    #[serde(default)]
    modified_at: i64,
    #[serde(default, skip_serializing_if = "is_zero")]
    nanos: u32,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Raw {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    files: Vec<FileEntry<FileName>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    links: Vec<LinkEntry<FileName>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    directories: Vec<DirEntry<FileName>>,
}

impl Raw {
    fn is_empty(&self) -> bool {
        self.files.is_empty() && self.links.is_empty() && self.directories.is_empty()
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_zero_offset(number: &u64) -> bool {
    *number == 0
}

/// Only the version, so that a later format is told from a broken file.
#[derive(Deserialize)]
struct Versioned {
    version: String,
}

impl StateFile {
    pub fn to_json(&self) -> Vec<u8> {
        write(self.last_synced_at, self.commit.clone(), self.packed, &self.tree)
    }

    /// The manifest of a version.
    pub fn manifest(last_synced_at: i64, tree: &Tree) -> Vec<u8> {
        write(last_synced_at, None, true, tree)
    }

    /// Reads and checks one.
    pub fn parse(json: &[u8], limits: &Limits) -> Result<StateFile, StateError> {
        let unknown = |version: &str| StateError::UnknownVersion(version.chars().take(40).collect());
        match serde_json::from_slice::<Document<String>>(json) {
            Ok(document) if document.version == VERSION => document.into_state(limits),
            Ok(document) => Err(unknown(&document.version)),
            // A later format may look quite different.
            Err(error) => match serde_json::from_slice::<Versioned>(json) {
                Ok(versioned) if versioned.version != VERSION => Err(unknown(&versioned.version)),
                _ => Err(StateError::Corrupt(error.to_string())),
            },
        }
    }

    /// As [`StateFile::parse`], and its entries must be those that were agreed on.
    pub fn parse_local(json: &[u8], limits: &Limits) -> Result<StateFile, StateError> {
        let state = StateFile::parse(json, limits)?;
        match &state.commit {
            Some(commit) if commit.tree != state.tree.digest() => Err(StateError::Altered),
            _ => Ok(state),
        }
    }
}

fn write(last_synced_at: i64, commit: Option<CommitRef>, packed: bool, tree: &Tree) -> Vec<u8> {
    let mut packs = Packs::default();
    let mut document = Document {
        version: VERSION.to_owned(),
        last_synced_at,
        files: Vec::with_capacity(tree.len()),
        links: Vec::new(),
        directories: Vec::new(),
        raw: Raw::default(),
        packs: Vec::new(),
        sparse: Vec::new(),
        packed,
        commit,
    };
    for (path, node) in tree.iter() {
        document.add(path, node, &mut packs);
    }
    document.number_sparse(packs.plain.names.len());
    (document.packs, document.sparse) = (packs.plain.names, packs.sparse.names);
    let mut json = Vec::with_capacity(tree.len() * 240 + 256);
    // A document of plain fields: writing it to memory cannot fail.
    let _ = serde_json::to_writer(&mut json, &document);
    json
}

/// The objects that a manifest names.
#[derive(Default)]
struct Packs {
    plain: Listed,
    sparse: Listed,
}

/// Objects, each once.
#[derive(Default)]
struct Listed {
    names: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, usize>,
}

impl Packs {
    fn number(&mut self, place: &Place) -> usize {
        match place.sparse {
            None => self.plain.number(&place.object),
            Some(_) => self.sparse.number(&place.object),
        }
    }
}

impl Listed {
    fn number(&mut self, name: &Arc<str>) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        self.names.push(name.clone());
        self.numbers.insert(name.clone(), self.names.len() - 1);
        self.names.len() - 1
    }
}

impl<'a> Document<&'a str> {
    /// Only when all are known it is known where the numbers of `sparse` begin.
    fn number_sparse(&mut self, first: usize) {
        let text = self.files.iter_mut().map(|file| (&mut file.pack, file.stored));
        let raw = self.raw.files.iter_mut().map(|file| (&mut file.pack, file.stored));
        for (pack, stored) in text.chain(raw) {
            if let (Some(pack), Some(_)) = (pack, stored) {
                *pack += first;
            }
        }
    }

    fn add(&mut self, path: &'a FileName, node: &'a Node, packs: &mut Packs) {
        let Mtime { secs: modified_at, nanos } = node.mtime();
        let text = std::str::from_utf8(path.as_bytes()).ok();
        match (node, text) {
            (Node::File(file), Some(path)) => self.files.push(FileEntry::of(path, file, packs)),
            (Node::File(file), None) => self.raw.files.push(FileEntry::of(path.clone(), file, packs)),
            (Node::Link { target, .. }, text) => match (text, std::str::from_utf8(target.as_bytes())) {
                (Some(path), Ok(target)) => {
                    self.links.push(LinkEntry { path, target, modified_at, nanos });
                }
                _ => {
                    let (path, target) = (path.clone(), target.clone());
                    self.raw.links.push(LinkEntry { path, target, modified_at, nanos });
                }
            },
            (Node::Dir { mode, .. }, Some(path)) => {
                self.directories.push(DirEntry { path, mode: *mode, modified_at, nanos });
            }
            (Node::Dir { mode, .. }, None) => {
                let path = path.clone();
                self.raw.directories.push(DirEntry { path, mode: *mode, modified_at, nanos });
            }
        }
    }
}

impl Document<String> {
    fn into_state(self, limits: &Limits) -> Result<StateFile, StateError> {
        let raw = self.raw.files.len() + self.raw.links.len() + self.raw.directories.len();
        let found = self.files.len() + self.links.len() + self.directories.len() + raw;
        if found > limits.max_entries {
            return Err(StateError::TooMany { found, limit: limits.max_entries });
        }
        for pack in self.packs.iter().chain(&self.sparse) {
            path::check(pack.as_bytes()).map_err(|why| invalid(FileName::from(&**pack), why))?;
        }
        let mut reader = Reader { tree: Tree::default(), limits, packs: self.packs, sparse: self.sparse };
        reader.take(self.files, self.links, self.directories)?;
        reader.take(self.raw.files, self.raw.links, self.raw.directories)?;
        let tree = reader.finish()?;
        let (last_synced_at, commit, packed) = (self.last_synced_at, self.commit, self.packed);
        Ok(StateFile { last_synced_at, commit, packed, tree })
    }
}

impl<P> FileEntry<P> {
    fn of(path: P, file: &File, packs: &mut Packs) -> Self {
        let sparse = file.place.as_ref().and_then(|place| place.sparse.as_deref());
        FileEntry {
            path,
            checksum: file.sums.md5,
            size: file.size,
            modified_at: file.mtime.secs,
            nanos: file.mtime.nanos,
            mode: file.mode,
            blake3: file.sums.strong,
            pack: file.place.as_ref().map(|place| packs.number(place)),
            offset: file.place.as_ref().map_or(0, |place| place.offset),
            stored: sparse.map(|sparse| sparse.stored),
            plain: sparse.map_or(0, |sparse| sparse.plain),
        }
    }
}

fn invalid(path: FileName, why: impl Into<String>) -> StateError {
    StateError::Invalid { path, why: why.into() }
}

/// Checks entries one by one.
struct Reader<'a> {
    tree: Tree,
    limits: &'a Limits,
    packs: Vec<Arc<str>>,
    sparse: Vec<Arc<str>>,
}

impl Reader<'_> {
    fn take<P: Into<FileName>>(
        &mut self,
        files: Vec<FileEntry<P>>,
        links: Vec<LinkEntry<P>>,
        directories: Vec<DirEntry<P>>,
    ) -> Result<(), StateError> {
        for file in files {
            self.file(file)?;
        }
        for LinkEntry { path, target, modified_at: secs, nanos } in links {
            self.insert(path.into(), Node::Link { target: target.into(), mtime: Mtime { secs, nanos } })?;
        }
        for DirEntry { path, mode, modified_at: secs, nanos } in directories {
            self.insert(path.into(), Node::Dir { mode, mtime: Mtime { secs, nanos } })?;
        }
        Ok(())
    }

    fn file<P: Into<FileName>>(&mut self, entry: FileEntry<P>) -> Result<(), StateError> {
        let place = self.place(&entry);
        let path = entry.path.into();
        if entry.size > self.limits.max_file_size {
            let limit = self.limits.max_file_size;
            return Err(invalid(path, format!("a file of {} bytes; the limit is {limit}", entry.size)));
        }
        let place = match place {
            Ok(place) => place,
            Err(why) => return Err(invalid(path, why)),
        };
        let sums = Sums { md5: entry.checksum, strong: entry.blake3 };
        let mtime = Mtime { secs: entry.modified_at, nanos: entry.nanos };
        self.insert(path, Node::File(File { size: entry.size, sums, mode: entry.mode, mtime, place }))
    }

    /// Where the body of an entry is; the error says why it cannot be there.
    fn place<P>(&self, entry: &FileEntry<P>) -> Result<Option<Place>, String> {
        let Some(number) = entry.pack else { return Ok(None) };
        let sparse = entry.stored.map(|stored| Sparse { stored, plain: entry.plain });
        let object = match sparse {
            None => self.packs.get(number),
            Some(_) => number.checked_sub(self.packs.len()).and_then(|number| self.sparse.get(number)),
        };
        let Some(object) = object.cloned() else {
            return Err(format!("its body is in pack {number}, which is not listed"));
        };
        let fits = |sparse: &Sparse| {
            sparse.stored <= sparse::most_stored(entry.size) && sparse.plain <= sparse.stored.min(entry.size)
        };
        if !sparse.as_ref().is_none_or(fits) {
            return Err("its body is stored in more bytes than it has".to_owned());
        }
        let place = Place { object, offset: entry.offset, sparse: sparse.map(Box::new) };
        match entry.offset.checked_add(place.stored(entry.size)) {
            Some(_) => Ok(Some(place)),
            None => Err("its body ends beyond every object".to_owned()),
        }
    }

    fn insert(&mut self, path: FileName, node: Node) -> Result<(), StateError> {
        check_entry(&path, &node).map_err(|why| invalid(path.clone(), why))?;
        match self.tree.0.insert(path.clone(), node) {
            None => Ok(()),
            Some(_) => Err(invalid(path, "it is listed twice")),
        }
    }

    fn finish(mut self) -> Result<Tree, StateError> {
        self.tree.add_parents();
        match self.tree.misplaced() {
            Some(path) => Err(invalid(path.clone(), "it lies beneath something that is no directory")),
            None => Ok(self.tree),
        }
    }
}

/// What holds for every entry, wherever it came from.
pub fn check_entry(path: &FileName, node: &Node) -> Result<(), String> {
    path::check(path.as_bytes())?;
    if node.mode().is_some_and(|mode| mode > 0o7777) {
        return Err("its mode has more than permission bits".to_owned());
    }
    if let Node::Link { target, .. } = node {
        let bytes = target.as_bytes();
        if bytes.is_empty() || bytes.len() > path::MAX_PATH || bytes.contains(&0) {
            return Err("the target of a link has 1 to 4095 bytes, none of them zero".to_owned());
        }
    }
    if node.mtime().nanos > 999_999_999 {
        return Err("its time has more nanoseconds than a second".to_owned());
    }
    Ok(())
}
