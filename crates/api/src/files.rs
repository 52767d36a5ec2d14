//! Files of a sandbox. Names are bytes: Linux does not promise that they are text.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{borrow::Cow, fmt};

/// A path or a file name, as the kernel has it: bytes without a zero.
///
/// In JSON it is text; bytes that are not UTF-8 stand there as `\xNN`, and a backslash as `\\`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FileName(pub Vec<u8>);

impl FileName {
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The name as text, with what is not UTF-8 replaced: for people, never for looking it up.
    pub fn lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    fn escape(&self) -> String {
        let mut text = String::new();
        for chunk in self.0.utf8_chunks() {
            text.push_str(&chunk.valid().replace('\\', "\\\\"));
            for byte in chunk.invalid() {
                text.push_str(&format!("\\x{byte:02x}"));
            }
        }
        text
    }

    fn unescape(text: &str) -> Option<Self> {
        let mut out = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let [first, tail @ ..] = rest {
            rest = tail;
            if *first != b'\\' {
                out.push(*first);
                continue;
            }
            match tail {
                [b'\\', tail @ ..] => {
                    out.push(b'\\');
                    rest = tail;
                }
                [b'x', a, b, tail @ ..] => {
                    let hex = [*a, *b];
                    let digits = std::str::from_utf8(&hex).ok()?;
                    out.push(u8::from_str_radix(digits, 16).ok()?);
                    rest = tail;
                }
                _ => return None,
            }
        }
        Some(FileName(out))
    }
}

impl From<&str> for FileName {
    fn from(text: &str) -> Self {
        FileName(text.as_bytes().to_vec())
    }
}

impl From<String> for FileName {
    fn from(text: String) -> Self {
        FileName(text.into_bytes())
    }
}

impl From<Vec<u8>> for FileName {
    fn from(bytes: Vec<u8>) -> Self {
        FileName(bytes)
    }
}

impl From<&[u8]> for FileName {
    fn from(bytes: &[u8]) -> Self {
        FileName(bytes.to_vec())
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lossy())
    }
}

impl fmt::Debug for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.escape())
    }
}

impl Serialize for FileName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_str(&self.escape())
        } else {
            serializer.serialize_bytes(&self.0)
        }
    }
}

impl<'de> Deserialize<'de> for FileName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            let text = String::deserialize(deserializer)?;
            FileName::unescape(&text).ok_or_else(|| {
                de::Error::custom("a backslash in a name is written `\\\\`, a raw byte `\\xNN`")
            })
        } else {
            serde_bytes::ByteBuf::deserialize(deserializer).map(|b| FileName(b.into_vec()))
        }
    }
}

/// What a path is resolved beneath. It never leads out of it, whatever links it meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Root {
    /// The whole file system of the box, as its processes see it. Relative paths start in `/work`.
    #[default]
    Box,
    /// The workspace alone; a link that leads out of it is an error.
    Work,
    /// The home of the user named; a link that leads out of it is an error.
    Home,
}

/// A file, seen by a user.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FileRef {
    #[serde(default)]
    pub root: Root,
    pub path: FileName,
    /// Whose rights apply, and who owns what is made. None: the sandbox's default user.
    #[serde(default)]
    pub user: Option<String>,
}

impl FileRef {
    pub fn new(path: impl Into<FileName>) -> Self {
        FileRef { root: Root::Box, path: path.into(), user: None }
    }

    pub fn beneath(mut self, root: Root) -> Self {
        self.root = root;
        self
    }

    pub fn as_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    Device,
}

/// A file as it was when it was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Relative to what was asked for; the last name for a single file.
    pub path: FileName,
    pub kind: EntryKind,
    pub size: u64,
    /// Permission bits, with set-id and sticky.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    #[serde(default)]
    pub user: Option<String>,
    #[serde(default)]
    pub group: Option<String>,
    /// Modified: seconds since 1970, and the nanoseconds in them.
    pub mtime: i64,
    pub mtime_nanos: u32,
    /// Where a symlink points, as it is written there.
    #[serde(default)]
    pub target: Option<FileName>,
}

/// A page of a listing, in the order of the names' bytes, parents first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    pub entries: Vec<Entry>,
    /// Where the next page starts; none on the last one.
    #[serde(default)]
    pub next: Option<FileName>,
    /// Directories that could not be read, with the reason. They are entries too.
    #[serde(default)]
    pub unreadable: Vec<(FileName, String)>,
}

/// The most entries in a page.
pub const MAX_PAGE: u32 = 1000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListDir {
    pub dir: FileRef,
    /// 1 lists the directory alone.
    pub depth: u32,
    #[serde(default)]
    pub after: Option<FileName>,
    pub limit: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadFile {
    pub file: FileRef,
    #[serde(default)]
    pub offset: u64,
    /// None: up to the end.
    #[serde(default)]
    pub length: Option<u64>,
}

/// What is read of a file that says it has no size, as those of `/proc` do.
pub const MAX_UNSIZED: u64 = 64 << 20;

/// The most bytes that a read of a file may bring.
pub fn body_limit(entry: &Entry, offset: u64, length: Option<u64>) -> u64 {
    let rest = match entry.size {
        0 => MAX_UNSIZED,
        size => size.saturating_sub(offset),
    };
    length.map_or(rest, |length| length.min(rest))
}

/// How a body reaches its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteMode {
    /// The file has the new body or the old one, never a part: it appears when the body is whole. Only what
    /// a rename would break (a link, a file of several names, a directory one may not write) is written in
    /// place.
    #[default]
    Replace,
    /// As above, and it must not exist.
    CreateNew,
    /// Behind the last byte.
    Append,
    /// From this offset on, in place; the rest stays.
    At(u64),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteFile {
    pub file: FileRef,
    #[serde(default)]
    pub mode: WriteMode,
    /// Permission bits of a new file (0644 unless given); given, an existing one gets them too.
    #[serde(default)]
    pub permissions: Option<u32>,
    /// Modification time: seconds and nanoseconds.
    #[serde(default)]
    pub mtime: Option<(i64, u32)>,
    /// Make missing directories above it.
    #[serde(default)]
    pub parents: bool,
    /// Refuse a body larger than this.
    #[serde(default)]
    pub max_size: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MakeDir {
    pub dir: FileRef,
    #[serde(default)]
    pub parents: bool,
    #[serde(default)]
    pub permissions: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveFile {
    pub from: FileRef,
    /// Beneath the same root, as the same user.
    pub to: FileName,
    /// Replace what is there.
    #[serde(default)]
    pub overwrite: bool,
}

/// Changes of a file's metadata; what is none stays.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SetMeta {
    pub file: FileRef,
    #[serde(default)]
    pub permissions: Option<u32>,
    #[serde(default)]
    pub mtime: Option<(i64, u32)>,
    /// The new owner, by name or number.
    #[serde(default)]
    pub owner: Option<String>,
}

/// Extended attributes (`user.…`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum XattrCall {
    Get(String),
    List,
    Set {
        name: String,
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
    },
    Remove(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum XattrReply {
    Value(#[serde(with = "serde_bytes")] Vec<u8>),
    Names(Vec<String>),
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Create,
    Write,
    Remove,
    Rename,
    Chmod,
    /// Events were lost; look at everything again.
    Overflow,
}

/// Something changed in a watched directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    /// Relative to the watched directory.
    pub path: FileName,
    pub kind: ChangeKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchDir {
    pub dir: FileRef,
    #[serde(default)]
    pub recursive: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_survive_json(bytes in proptest::collection::vec(1u8..=255, 0..64)) {
            let name = FileName(bytes);
            let json = serde_json::to_string(&name).unwrap();
            prop_assert_eq!(serde_json::from_str::<FileName>(&json).unwrap(), name);
        }

        #[test]
        fn names_survive_frames(bytes in proptest::collection::vec(1u8..=255, 0..64)) {
            let name = FileName(bytes);
            let packed = rmp_serde::to_vec_named(&name).unwrap();
            prop_assert_eq!(rmp_serde::from_slice::<FileName>(&packed).unwrap(), name);
        }
    }

    #[test]
    fn plain_names_are_plain_json() {
        assert_eq!(serde_json::to_string(&FileName::from("a/ü.txt")).unwrap(), "\"a/ü.txt\"");
        assert!(serde_json::from_str::<FileName>("\"a\\\\q\"").is_err());
    }
}
