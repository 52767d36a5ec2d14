//! V4: the files of a sandbox, with paths as its users mean them.

use super::SandboxService;
use crate::{Error, Result};
use jiff::Timestamp;
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    files::{Entry, EntryKind, FileName, FileRef, ListDir, MAX_PAGE, ReadFile, Root},
    http::{FileInfo, List, Tree, TreeNode},
    sandbox::WORKDIR,
};
use seawall_wire::{FileReader, Guest};
use serde::{Deserialize, Serialize};

/// Nodes of one tree, at the most.
const MAX_NODES: usize = 10_000;
/// Bytes of paths in one list or tree, at the most. Names may be long, and are written in full for each entry.
const MAX_NAMES: usize = 2 << 20;
/// Directories below each other that a tree shows, at the most.
const MAX_DEPTH: u32 = 64;
/// Ours, in a workspace: nobody's files. The state file has others beside it.
const OURS: &str = ".seawall";
const STATE: &str = ".sandbox-state";

/// Where a path begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The workspace, and nothing outside of it.
    WorkingDir,
    /// The home of the sandbox's user, and nothing outside of it.
    HomeDir,
    /// The whole sandbox. Relative paths start in the workspace.
    #[default]
    Box,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListFiles {
    pub path: String,
    /// 1: the directory alone.
    pub depth: u32,
    /// For names, with `*` and `?`.
    pub pattern: Option<String>,
    pub kind: Option<EntryKind>,
    /// Also names that begin with a dot.
    pub hidden: bool,
    pub limit: u32,
    pub after: Option<String>,
}

impl Default for ListFiles {
    fn default() -> Self {
        ListFiles {
            path: ".".to_owned(),
            depth: 1,
            pattern: None,
            kind: None,
            hidden: true,
            limit: 100,
            after: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReadAsk {
    pub source: Source,
    pub path: String,
    pub offset: u64,
    pub length: Option<u64>,
    /// A file that is larger is refused.
    pub max_size: Option<u64>,
}

impl SandboxService {
    /// A page of up to 1000, in the order of names.
    pub async fn list_files(
        &self,
        account: AccountId,
        id: SandboxId,
        ask: &ListFiles,
    ) -> Result<List<FileInfo>> {
        if !(1..=MAX_PAGE).contains(&ask.limit) || !(1..=MAX_DEPTH).contains(&ask.depth) {
            let message = format!("`limit` is 1 to {MAX_PAGE}, `depth` 1 to {MAX_DEPTH}");
            return Err(Error::invalid(message));
        }
        let guest = self.guest(account, id).await?;
        let base = shown_dir(&ask.path);
        let mut after = ask.after.as_deref().map(name_of).transpose()?;
        let (mut items, mut bytes) = (Vec::new(), 0);
        // Filters leave gaps: pages of the guest are taken until one of ours is full.
        loop {
            let limit = ask.limit - items.len() as u32;
            let dir = FileRef::new(ask.path.as_str());
            let listing = guest.list(ListDir { dir, depth: ask.depth, after, limit }).await?;
            after = listing.next;
            for entry in listing.entries.iter().filter(|entry| ask.wants(entry)) {
                let file = shown(&base, entry);
                bytes += weight(&file);
                items.push(file);
                if bytes > MAX_NAMES {
                    return Ok(List { items, next: Some(escaped(&entry.path)) });
                }
            }
            if after.is_none() || items.len() >= ask.limit as usize {
                return Ok(List { items, next: after.map(|name| escaped(&name)) });
            }
        }
    }

    pub async fn tree(&self, account: AccountId, id: SandboxId, path: &str, depth: u32) -> Result<Tree> {
        if !(1..=MAX_DEPTH).contains(&depth) {
            return Err(Error::invalid(format!("`depth` is 1 to {MAX_DEPTH}")));
        }
        let guest = self.guest(account, id).await?;
        let top = guest.stat(FileRef::new(path), true).await?;
        let base = shown_dir(path);
        let mut file = shown("", &top);
        file.path = base.clone();
        file.name = last_name(&base).to_owned();
        let mut root = TreeNode { file, children: None };
        if top.kind != EntryKind::Directory {
            return Ok(Tree { root, truncated: false });
        }
        root.children = Some(Vec::new());
        let (mut after, mut count, mut bytes) = (None, 0, 0);
        loop {
            let ask = ListDir { dir: FileRef::new(path), depth, after, limit: MAX_PAGE };
            let listing = guest.list(ask).await?;
            for entry in listing.entries.iter().filter(|entry| !is_ours(&base, entry)) {
                if count == MAX_NODES || bytes > MAX_NAMES {
                    return Ok(Tree { root, truncated: true });
                }
                count += 1;
                let file = shown(&base, entry);
                bytes += weight(&file);
                hang(&mut root, file, entry, depth);
            }
            after = listing.next;
            if after.is_none() {
                return Ok(Tree { root, truncated: false });
            }
        }
    }

    pub async fn stat_file(
        &self,
        account: AccountId,
        id: SandboxId,
        source: Source,
        path: &str,
    ) -> Result<FileInfo> {
        let guest = self.guest(account, id).await?;
        stat(&guest, source, path).await
    }

    /// What it is, and its bytes.
    pub async fn read_file(
        &self,
        account: AccountId,
        id: SandboxId,
        ask: &ReadAsk,
    ) -> Result<(FileInfo, FileReader)> {
        let guest = self.guest(account, id).await?;
        let info = stat(&guest, ask.source, &ask.path).await?;
        if info.kind == EntryKind::Directory {
            return Err(Error::invalid(format!("{} is a directory; list it instead", info.path)));
        }
        let rest = info.size.saturating_sub(ask.offset);
        let wanted = ask.length.map_or(rest, |length| length.min(rest));
        if let Some(most) = ask.max_size.filter(|most| wanted > *most) {
            let message = format!("{wanted} bytes of {} are more than {most}; read a part of it", info.path);
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        let file = file_ref(ask.source, &ask.path);
        let reader = guest.read(ReadFile { file, offset: ask.offset, length: ask.length }).await?;
        Ok((info, reader))
    }
}

impl ListFiles {
    fn wants(&self, entry: &Entry) -> bool {
        let path = entry.path.lossy();
        let name = last_name(&path);
        !is_ours(&shown_dir(&self.path), entry)
            && (self.hidden || !path.split('/').any(|part| part.starts_with('.')))
            && self.kind.is_none_or(|kind| kind == entry.kind)
            && self.pattern.as_deref().is_none_or(|pattern| matches(pattern.as_bytes(), name.as_bytes()))
    }
}

async fn stat(guest: &Guest, source: Source, path: &str) -> Result<FileInfo> {
    let entry = guest.stat(file_ref(source, path), true).await?;
    let shown_path = match source {
        Source::Box => shown_dir(path),
        Source::WorkingDir => format!("{WORKDIR}/{}", path.trim_matches('/')),
        Source::HomeDir => format!("~/{}", path.trim_matches('/')),
    };
    let name = last_name(&shown_path).to_owned();
    Ok(FileInfo { path: shown_path, name, ..shown("", &entry) })
}

fn file_ref(source: Source, path: &str) -> FileRef {
    let root = match source {
        Source::WorkingDir => Root::Work,
        Source::HomeDir => Root::Home,
        Source::Box => Root::Box,
    };
    FileRef::new(path).beneath(root)
}

/// Absolute, as its user sees it.
fn shown_dir(path: &str) -> String {
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{WORKDIR}/{path}") };
    let mut parts: Vec<&str> = Vec::new();
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

fn shown(base: &str, entry: &Entry) -> FileInfo {
    let relative = escaped(&entry.path);
    let path = if base == "/" { format!("/{relative}") } else { format!("{base}/{relative}") };
    FileInfo {
        name: last_name(&relative).to_owned(),
        path,
        kind: entry.kind,
        size: entry.size,
        mode: entry.mode,
        user: entry.user.clone(),
        modified_at: Timestamp::new(entry.mtime, entry.mtime_nanos.min(999_999_999).cast_signed())
            .unwrap_or_default(),
        target: entry.target.as_ref().map(escaped),
    }
}

/// Bytes of the texts of an entry.
fn weight(file: &FileInfo) -> usize {
    file.path.len() + file.name.len() + file.target.as_ref().map_or(0, String::len)
}

fn last_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// As JSON has it, without the quotes: a backslash doubled, a byte that is no text as `\\xNN`.
fn escaped(name: &FileName) -> String {
    match serde_json::to_value(name) {
        Ok(serde_json::Value::String(text)) => text,
        _ => name.lossy().into_owned(),
    }
}

fn name_of(text: &str) -> Result<FileName> {
    let parsed = serde_json::from_value(serde_json::Value::String(text.to_owned()));
    parsed.map_err(|error| Error::invalid("`after` is not from a page before").with_source(error))
}

/// The state of the sync and the agents' own sessions are not the user's files.
fn is_ours(base: &str, entry: &Entry) -> bool {
    let path = entry.path.lossy();
    let whole = if base == "/" { format!("/{path}") } else { format!("{base}/{path}") };
    let Some(rest) = whole.strip_prefix(WORKDIR).and_then(|rest| rest.strip_prefix('/')) else {
        return false;
    };
    let first = rest.split('/').next().unwrap_or_default();
    first == OURS || first.starts_with(STATE)
}

/// Puts an entry where it belongs: parents come first, so its directory is there.
fn hang(root: &mut TreeNode, file: FileInfo, entry: &Entry, depth: u32) {
    let path = escaped(&entry.path);
    let mut at = root;
    let mut parts = path.split('/').peekable();
    let mut level = 0;
    while let Some(part) = parts.next() {
        level += 1;
        if parts.peek().is_none() {
            break;
        }
        let children = at.children.get_or_insert_default();
        let Some(next) = children.iter().position(|child| child.file.name == part) else { return };
        at = &mut children[next];
    }
    let looked_into = entry.kind == EntryKind::Directory && level < depth;
    let node = TreeNode { file, children: looked_into.then(Vec::new) };
    at.children.get_or_insert_default().push(node);
}

/// `*` is any run of characters, `?` any one.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(b'?') => (p, n) = (p + 1, n + 1),
            Some(byte) if *byte == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    (p, n) = (at + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v4_patterns_match_names() {
        for (pattern, name, is) in [
            ("*.rs", "main.rs", true),
            ("*.rs", "main.rs.bak", false),
            ("?ain*", "main.rs", true),
            ("*a*b*", "xxaxxbxx", true),
            ("", "", true),
            ("*", "", true),
            ("a", "", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), is, "{pattern} {name}");
        }
    }

    #[test]
    fn v4_paths_are_the_users() {
        for (path, shown) in
            [(".", "/work"), ("src", "/work/src"), ("/etc/../work/a/", "/work/a"), ("..", "/"), ("/", "/")]
        {
            assert_eq!(shown_dir(path), shown, "{path}");
        }
    }
}
