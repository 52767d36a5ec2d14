//! Files of a mock box: a map from paths to nodes. Paths are resolved by their text, as there are no
//! links, and `..` stops at the root.

use bytes::Bytes;
use seawall_api::{
    ErrorKind, Fault,
    files::{
        Entry, EntryKind, FileName, FileRef, ListDir, Listing, MAX_PAGE, MakeDir, MoveFile, ReadFile, Root,
        WriteFile, WriteMode,
    },
};
use std::{
    collections::BTreeMap,
    ops::Bound,
    time::{SystemTime, UNIX_EPOCH},
};

/// The names from the root down. Their order is that of a listing: by name, parents first.
type Path = Vec<Vec<u8>>;

#[derive(Debug, Clone)]
struct Node {
    /// None for a directory.
    body: Option<Bytes>,
    mode: u32,
    mtime: (i64, u32),
}

impl Node {
    fn directory(mode: u32) -> Self {
        Node { body: None, mode, mtime: now() }
    }

    fn entry(&self, path: FileName) -> Entry {
        Entry {
            path,
            kind: if self.body.is_some() { EntryKind::File } else { EntryKind::Directory },
            size: self.body.as_ref().map_or(0, |body| body.len() as u64),
            mode: self.mode,
            uid: 0,
            gid: 0,
            user: Some("root".into()),
            group: Some("root".into()),
            mtime: self.mtime.0,
            mtime_nanos: self.mtime.1,
            target: None,
        }
    }
}

#[derive(Debug)]
pub(super) struct FileTree {
    nodes: BTreeMap<Path, Node>,
}

impl Default for FileTree {
    fn default() -> Self {
        let roots = [vec![], vec!["work"], vec!["home"], vec!["tmp"]];
        let path = |names: Vec<&str>| -> Path { names.iter().map(|name| name.as_bytes().to_vec()).collect() };
        let nodes = roots.into_iter().map(|names| (path(names), Node::directory(0o755))).collect();
        FileTree { nodes }
    }
}

impl FileTree {
    pub(super) fn stat(&self, file: &FileRef) -> Result<Entry, Fault> {
        let path = resolve(file)?;
        Ok(self.node(&path, file)?.entry(last_name(&path)))
    }

    pub(super) fn is_directory(&self, file: &FileRef) -> bool {
        resolve(file).is_ok_and(|path| self.nodes.get(&path).is_some_and(|node| node.body.is_none()))
    }

    pub(super) fn list(&self, list: &ListDir) -> Result<Listing, Fault> {
        let dir = resolve(&list.dir)?;
        if self.node(&dir, &list.dir)?.body.is_some() {
            return Err(refuse(ErrorKind::Invalid, &list.dir, "is not a directory"));
        }
        if list.depth == 0 || list.limit == 0 {
            return Err(Fault::new(ErrorKind::Invalid, "a listing needs a depth and a limit of 1 or more"));
        }
        let mut from = dir.clone();
        from.extend(list.after.iter().flat_map(|after| names(after.as_bytes()).map(<[u8]>::to_vec)));
        let deepest = dir.len().saturating_add(list.depth as usize);
        let beneath = self.nodes.range((Bound::Excluded(from), Bound::Unbounded));
        let mut found = beneath
            .take_while(|(path, _)| path.starts_with(&dir))
            .filter(|(path, _)| path.len() <= deepest)
            .map(|(path, node)| node.entry(FileName(path[dir.len()..].join(&b'/'))));
        let page = list.limit.min(MAX_PAGE) as usize;
        let entries: Vec<Entry> = found.by_ref().take(page).collect();
        let more = found.next().is_some();
        let next = entries.last().filter(|_| more).map(|entry| entry.path.clone());
        Ok(Listing { entries, next, unreadable: Vec::new() })
    }

    /// The file, and the part of its body that was asked for.
    pub(super) fn read(&self, read: &ReadFile) -> Result<(Entry, Bytes), Fault> {
        let path = resolve(&read.file)?;
        let node = self.node(&path, &read.file)?;
        let Some(body) = &node.body else {
            return Err(refuse(ErrorKind::Invalid, &read.file, "is a directory"));
        };
        let size = body.len() as u64;
        let start = read.offset.min(size);
        let end = read.length.map_or(size, |length| start.saturating_add(length).min(size));
        Ok((node.entry(last_name(&path)), body.slice(start as usize..end as usize)))
    }

    /// Puts a whole body in its place.
    pub(super) fn write(&mut self, write: &WriteFile, body: Bytes) -> Result<Entry, Fault> {
        let file = &write.file;
        let path = resolve(file)?;
        let old = match self.nodes.get(&path) {
            Some(Node { body: None, .. }) => {
                return Err(refuse(ErrorKind::Invalid, file, "is a directory"));
            }
            Some(_) if write.mode == WriteMode::CreateNew => {
                return Err(refuse(ErrorKind::AlreadyExists, file, "exists already"));
            }
            Some(node) => Some(node.clone()),
            None => None,
        };
        self.parents(&path, file, write.parents)?;
        let before = old.as_ref().and_then(|node| node.body.clone()).unwrap_or_default();
        let node = Node {
            body: Some(merge(before, body, write)?),
            mode: write.permissions.or(old.map(|node| node.mode)).unwrap_or(0o644),
            mtime: write.mtime.unwrap_or_else(now),
        };
        let entry = node.entry(last_name(&path));
        self.nodes.insert(path, node);
        Ok(entry)
    }

    pub(super) fn make_dir(&mut self, make: &MakeDir) -> Result<Entry, Fault> {
        let path = resolve(&make.dir)?;
        match self.nodes.get(&path) {
            Some(node) if make.parents && node.body.is_none() => {
                return Ok(node.entry(last_name(&path)));
            }
            Some(_) => return Err(refuse(ErrorKind::AlreadyExists, &make.dir, "exists already")),
            None => self.parents(&path, &make.dir, make.parents)?,
        }
        let node = Node::directory(make.permissions.unwrap_or(0o755));
        let entry = node.entry(last_name(&path));
        self.nodes.insert(path, node);
        Ok(entry)
    }

    pub(super) fn move_file(&mut self, moved: &MoveFile) -> Result<(), Fault> {
        let target = FileRef { path: moved.to.clone(), ..moved.from.clone() };
        let (from, to) = (resolve(&moved.from)?, resolve(&target)?);
        self.node(&from, &moved.from)?;
        self.movable(&from, &moved.from)?;
        if from == to {
            return Ok(());
        }
        if to.starts_with(&from) {
            return Err(refuse(ErrorKind::Invalid, &target, "is beneath what is moved"));
        }
        self.parents(&to, &target, false)?;
        if self.nodes.contains_key(&to) {
            if !moved.overwrite {
                return Err(refuse(ErrorKind::AlreadyExists, &target, "exists already"));
            }
            self.remove(&target, false)?;
        }
        for path in self.subtree(&from) {
            if let Some(node) = self.nodes.remove(&path) {
                self.nodes.insert([&to[..], &path[from.len()..]].concat(), node);
            }
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, file: &FileRef, recursive: bool) -> Result<(), Fault> {
        let path = resolve(file)?;
        self.node(&path, file)?;
        self.movable(&path, file)?;
        let all = self.subtree(&path);
        if all.len() > 1 && !recursive {
            return Err(refuse(ErrorKind::Conflict, file, "is not empty; remove it recursively"));
        }
        for path in all {
            self.nodes.remove(&path);
        }
        Ok(())
    }

    /// The root and the directories in it are the box's own.
    fn movable(&self, path: &Path, file: &FileRef) -> Result<(), Fault> {
        match path.len() {
            0 | 1 => Err(refuse(ErrorKind::Denied, file, "belongs to the sandbox itself")),
            _ => Ok(()),
        }
    }

    fn node(&self, path: &Path, file: &FileRef) -> Result<&Node, Fault> {
        self.nodes.get(path).ok_or_else(|| refuse(ErrorKind::NotFound, file, "does not exist"))
    }

    /// Sees to it that everything above `path` is a directory.
    fn parents(&mut self, path: &Path, file: &FileRef, make: bool) -> Result<(), Fault> {
        for depth in 1..path.len() {
            let above = &path[..depth];
            match self.nodes.get(above) {
                Some(Node { body: None, .. }) => {}
                Some(_) => return Err(refuse(ErrorKind::Invalid, file, "lies beneath a file")),
                None if make => {
                    self.nodes.insert(above.to_vec(), Node::directory(0o755));
                }
                None => return Err(refuse(ErrorKind::NotFound, file, "has no directory above it")),
            }
        }
        Ok(())
    }

    fn subtree(&self, path: &Path) -> Vec<Path> {
        let from = self.nodes.range(path.clone()..);
        from.map(|(found, _)| found).take_while(|found| found.starts_with(path)).cloned().collect()
    }
}

fn merge(before: Bytes, body: Bytes, write: &WriteFile) -> Result<Bytes, Fault> {
    let at = match write.mode {
        WriteMode::Replace | WriteMode::CreateNew => return Ok(body),
        WriteMode::Append => before.len(),
        WriteMode::At(offset) => {
            usize::try_from(offset).ok().filter(|at| *at <= 1 << 30).ok_or_else(|| {
                refuse(ErrorKind::TooLarge, &write.file, "would be larger than the mock allows")
            })?
        }
    };
    let mut bytes = before.to_vec();
    bytes.resize(bytes.len().max(at + body.len()), 0);
    bytes[at..at + body.len()].copy_from_slice(&body);
    Ok(bytes.into())
}

/// The path from the box's root. `..` never leads above what it is resolved beneath.
fn resolve(file: &FileRef) -> Result<Path, Fault> {
    let bytes = file.path.as_bytes();
    if bytes.contains(&0) {
        return Err(refuse(ErrorKind::Invalid, file, "has a zero byte in its name"));
    }
    let base: &[&[u8]] = match file.root {
        Root::Box => &[],
        Root::Work => &[b"work"],
        Root::Home => &[b"home"],
    };
    let mut path: Path = base.iter().map(|name| name.to_vec()).collect();
    let floor = path.len();
    if file.root == Root::Box && !bytes.starts_with(b"/") {
        path.push(b"work".to_vec());
    }
    for name in names(bytes) {
        match name {
            b".." if path.len() > floor => drop(path.pop()),
            b".." => {}
            name => path.push(name.to_vec()),
        }
    }
    Ok(path)
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."))
}

fn last_name(path: &Path) -> FileName {
    path.last().map_or_else(|| FileName::from("/"), |name| FileName(name.clone()))
}

fn refuse(kind: ErrorKind, file: &FileRef, why: &str) -> Fault {
    Fault::new(kind, format!("`{}` {why}", file.path))
}

fn now() -> (i64, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_stop_at_the_root() {
        let up = FileRef::new("../../../../etc/./passwd");
        assert_eq!(resolve(&up).unwrap(), [b"etc".to_vec(), b"passwd".to_vec()]);
        let work = up.beneath(Root::Work);
        assert_eq!(resolve(&work).unwrap()[0], b"work");
        assert!(resolve(&FileRef::new("a\0b")).is_err());
    }

    #[test]
    fn at_leaves_the_rest() {
        let write = WriteFile {
            file: FileRef::new("x"),
            mode: WriteMode::At(2),
            permissions: None,
            mtime: None,
            parents: false,
            max_size: None,
        };
        let merged = |before: &'static str| merge(Bytes::from(before), Bytes::from("XY"), &write).unwrap();
        assert_eq!(&merged("abcdef")[..], b"abXYef");
        assert_eq!(&merged("")[..], b"\0\0XY");
    }
}
