//! Lists of a sync as bytes: small to write, to read and to carry.
//!
//! Numbers are little-endian; bytes have their length before them (u32). Nothing is believed: what is cut short, too
//! long or of an unknown kind is an error, and nothing is allocated for what is not there.

use crate::{
    diff::Step,
    disk::Refused,
    sums::{Md5, Strong, Sums},
    tree::{File, Mtime, Node},
};
use seawall_api::files::FileName;

/// How many bytes of a list go into one frame.
pub const PART: usize = 256 << 10;

/// One thing that a list tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    Entry(FileName, Node),
    Removed(FileName),
    /// It could not be looked at, and why.
    Problem(FileName, String),
    Ignored(FileName),
    Step(Step),
    Refused(Refused),
}

/// Writes items, and gives a frame's worth when there is one.
#[derive(Debug, Default)]
pub struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    /// The bytes of a frame, when enough came together.
    pub fn add(&mut self, item: &Item) -> Option<Vec<u8>> {
        self.put(item);
        (self.bytes.len() >= PART).then(|| std::mem::take(&mut self.bytes))
    }

    /// What is left.
    pub fn finish(self) -> Option<Vec<u8>> {
        (!self.bytes.is_empty()).then_some(self.bytes)
    }

    fn put(&mut self, item: &Item) {
        match item {
            Item::Entry(path, node) => {
                self.bytes.push(1);
                self.name(path);
                self.node(node);
            }
            Item::Removed(path) => self.tagged(2, path),
            Item::Problem(path, why) => {
                self.tagged(3, path);
                self.data(why.as_bytes());
            }
            Item::Ignored(path) => self.tagged(4, path),
            Item::Step(step) => self.step(step),
            Item::Refused(Refused { path, why }) => {
                self.tagged(6, path);
                self.data(why.as_bytes());
            }
        }
    }

    fn tagged(&mut self, tag: u8, path: &FileName) {
        self.bytes.push(tag);
        self.name(path);
    }

    fn step(&mut self, step: &Step) {
        self.bytes.push(5);
        let (kind, node) = match step {
            Step::Move { .. } => (1, None),
            Step::Remove { .. } => (2, None),
            Step::Dir { node, .. } => (3, Some(node)),
            Step::Finish { node, .. } => (4, Some(node)),
            Step::Link { node, .. } => (5, Some(node)),
            Step::File { node, .. } => (6, Some(node)),
            Step::Meta { node, .. } => (7, Some(node)),
        };
        self.tagged(kind, step.path());
        if let Step::Move { to, .. } = step {
            self.name(to);
        }
        if let Some(node) = node {
            self.node(node);
        }
    }

    fn node(&mut self, node: &Node) {
        let Mtime { secs, nanos } = node.mtime();
        self.bytes.push(match node {
            Node::File(_) => 1,
            Node::Link { .. } => 2,
            Node::Dir { .. } => 3,
        });
        self.bytes.extend_from_slice(&secs.to_le_bytes());
        self.bytes.extend_from_slice(&nanos.to_le_bytes());
        // No mode is larger than this.
        self.bytes.extend_from_slice(&node.mode().unwrap_or(u32::MAX).to_le_bytes());
        match node {
            Node::File(file) => {
                self.bytes.extend_from_slice(&file.size.to_le_bytes());
                self.bytes.extend_from_slice(&file.sums.md5.0);
                match file.sums.strong {
                    Some(strong) => {
                        self.bytes.push(1);
                        self.bytes.extend_from_slice(&strong.0);
                    }
                    None => self.bytes.push(0),
                }
            }
            Node::Link { target, .. } => self.name(target),
            Node::Dir { .. } => {}
        }
    }

    fn name(&mut self, name: &FileName) {
        self.data(name.as_bytes());
    }

    fn data(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(bytes);
    }
}

/// A list that is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a list of files that cannot be read")]
pub struct Malformed;

/// The items of one frame.
pub fn decode(bytes: &[u8]) -> Result<Vec<Item>, Malformed> {
    let (mut decoder, mut items) = (Decoder { rest: bytes }, Vec::new());
    while !decoder.rest.is_empty() {
        items.push(decoder.item()?);
    }
    Ok(items)
}

struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    fn item(&mut self) -> Result<Item, Malformed> {
        Ok(match self.byte()? {
            1 => Item::Entry(self.name()?, self.node()?),
            2 => Item::Removed(self.name()?),
            3 => Item::Problem(self.name()?, self.text()?),
            4 => Item::Ignored(self.name()?),
            5 => Item::Step(self.step()?),
            6 => Item::Refused(Refused { path: self.name()?, why: self.text()? }),
            _ => return Err(Malformed),
        })
    }

    fn step(&mut self) -> Result<Step, Malformed> {
        let kind = self.byte()?;
        let path = self.name()?;
        Ok(match kind {
            1 => Step::Move { from: path, to: self.name()? },
            2 => Step::Remove { path },
            3 => Step::Dir { path, node: self.node()? },
            4 => Step::Finish { path, node: self.node()? },
            5 => Step::Link { path, node: self.node()? },
            6 => Step::File { path, node: self.node()? },
            7 => Step::Meta { path, node: self.node()? },
            _ => return Err(Malformed),
        })
    }

    fn node(&mut self) -> Result<Node, Malformed> {
        let kind = self.byte()?;
        let secs = i64::from_le_bytes(self.array()?);
        let nanos = u32::from_le_bytes(self.array()?);
        let mtime = Mtime { secs, nanos };
        let mode = Some(u32::from_le_bytes(self.array()?)).filter(|mode| *mode != u32::MAX);
        Ok(match kind {
            1 => {
                let size = u64::from_le_bytes(self.array()?);
                let md5 = Md5(self.array()?);
                let strong = match self.byte()? {
                    0 => None,
                    1 => Some(Strong(self.array()?)),
                    _ => return Err(Malformed),
                };
                Node::File(File { size, sums: Sums { md5, strong }, mode, mtime, place: None })
            }
            2 => Node::Link { target: self.name()?, mtime },
            3 => Node::Dir { mode, mtime },
            _ => return Err(Malformed),
        })
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    fn data(&mut self) -> Result<&'a [u8], Malformed> {
        let len = u32::from_le_bytes(self.array()?);
        self.take(usize::try_from(len).map_err(|_| Malformed)?)
    }

    fn name(&mut self) -> Result<FileName, Malformed> {
        Ok(FileName(self.data()?.to_vec()))
    }

    fn text(&mut self) -> Result<String, Malformed> {
        Ok(String::from_utf8_lossy(self.data()?).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn items() -> Vec<Item> {
        let path = FileName(b"dir/\xff".to_vec());
        let mtime = Mtime { secs: -7, nanos: 123_456_789 };
        let sums = Sums::of(b"body");
        let file = |strong, mode| {
            Node::File(File { size: 4, sums: Sums { strong, ..sums }, mode, mtime, place: None })
        };
        let link = Node::Link { target: FileName::from("../x"), mtime };
        let dir = Node::Dir { mode: Some(0o700), mtime };
        let why = "because".to_owned();
        let mut items = vec![
            Item::Removed(path.clone()),
            Item::Problem(path.clone(), why.clone()),
            Item::Ignored(path.clone()),
            Item::Refused(Refused { path: path.clone(), why }),
            Item::Step(Step::Move { from: path.clone(), to: FileName::from("y") }),
            Item::Step(Step::Remove { path: path.clone() }),
        ];
        for node in [file(sums.strong, Some(0o644)), file(None, None), link, dir] {
            items.push(Item::Entry(path.clone(), node.clone()));
            items.push(Item::Step(Step::Dir { path: path.clone(), node: node.clone() }));
            items.push(Item::Step(Step::Finish { path: path.clone(), node: node.clone() }));
            items.push(Item::Step(Step::Link { path: path.clone(), node: node.clone() }));
            items.push(Item::Step(Step::File { path: path.clone(), node: node.clone() }));
            items.push(Item::Step(Step::Meta { path: path.clone(), node }));
        }
        items
    }

    fn encoded() -> Vec<u8> {
        let mut encoder = Encoder::default();
        for item in items() {
            assert_eq!(encoder.add(&item), None);
        }
        encoder.finish().unwrap()
    }

    #[test]
    fn every_kind_survives() {
        assert_eq!(decode(&encoded()), Ok(items()));
    }

    #[test]
    fn what_is_cut_short_is_refused() {
        let bytes = encoded();
        let whole: Vec<usize> = (0..=items().len())
            .map(|count| {
                let mut encoder = Encoder::default();
                items()[..count].iter().for_each(|item| drop(encoder.add(item)));
                encoder.finish().map_or(0, |bytes| bytes.len())
            })
            .collect();
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]).is_ok(), whole.contains(&cut), "{cut}");
        }
    }

    /// Frozen: hosts and guests of different builds understand each other.
    #[test]
    fn the_bytes_do_not_change() {
        let hash = Strong::of(&encoded()).to_string();
        assert_eq!(hash, "5db2e87fef2c59aab0589ed2a1bccbdab586b93a9cd40d3bedcec4000989dd54");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes);
        }
    }
}
