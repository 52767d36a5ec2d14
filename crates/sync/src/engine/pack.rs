//! Packs: small bodies together in one object, behind them a list of what is in it.
//!
//! ```text
//! bodies | (hash: 32 bytes, offset: u64, size: u64) for each | count: u32 | check of the list: 8 bytes | "SWPACK01"
//! ```
//!
//! The list is for a push that died: the next one finds what is there already. Restores do not need it. A body that is
//! stored without its zeros is listed by the size that it has here, which no file with its hash has: it is not found.

use crate::{
    Result,
    bucket::{self, Bucket, Object},
    sparse,
    sums::Strong,
    tree::{Place, Sparse},
    versions::PACKS,
};
use bytes::Bytes;
use std::{collections::HashMap, sync::Arc};

const MAGIC: &[u8; 8] = b"SWPACK01";
const ENTRY: usize = 48;
const FOOTER: u64 = 20;
/// A list of more bodies than this is not believed.
const MAX_COUNT: u64 = 1 << 20;

/// Bodies of what is where, by what they are.
pub type Places = HashMap<(Strong, u64), Place>;

/// A pack that is being filled.
#[derive(Debug, Default)]
pub struct Pack {
    bytes: Vec<u8>,
    entries: Vec<(Strong, u64, u64)>,
    /// Bodies without their zeros: which entry, the size of the body, and how it is stored.
    sparse: Vec<(usize, u64, Sparse)>,
}

impl Pack {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn add(&mut self, hash: Strong, body: &[u8]) {
        let offset = self.bytes.len() as u64;
        match sparse::encode(body) {
            None => self.bytes.extend_from_slice(body),
            Some((stored, sparse)) => {
                self.sparse.push((self.entries.len(), body.len() as u64, sparse));
                self.bytes.extend_from_slice(&stored);
            }
        }
        self.entries.push((hash, offset, self.bytes.len() as u64 - offset));
    }

    /// The object, and where each body is in it.
    pub fn finish(mut self, name: &Arc<str>) -> (Bytes, Places) {
        let list = self.bytes.len();
        for (hash, offset, size) in &self.entries {
            self.bytes.extend_from_slice(&hash.0);
            self.bytes.extend_from_slice(&offset.to_le_bytes());
            self.bytes.extend_from_slice(&size.to_le_bytes());
        }
        self.bytes.extend_from_slice(&(self.entries.len() as u32).to_le_bytes());
        let check = check(&self.bytes[list..]);
        self.bytes.extend_from_slice(&check);
        self.bytes.extend_from_slice(MAGIC);
        let mut places = places(name, &self.entries);
        for (number, size, sparse) in self.sparse {
            let (hash, offset, stored) = self.entries[number];
            places.remove(&(hash, stored));
            let place = Place { object: name.clone(), offset, sparse: Some(Box::new(sparse)) };
            places.insert((hash, size), place);
        }
        (Bytes::from(self.bytes), places)
    }
}

fn places(name: &Arc<str>, entries: &[(Strong, u64, u64)]) -> Places {
    let place = |offset: u64| Place::plain(name.clone(), offset);
    entries.iter().map(|(hash, offset, size)| ((*hash, *size), place(*offset))).collect()
}

/// Unique, and sorted by the version that it was made for.
pub fn name(seq: u64, id: &str) -> Arc<str> {
    format!("{}{id}", prefix(seq)).into()
}

/// A large body alone. Its hash is in its name.
pub fn large_name(seq: u64, id: &str, hash: &Strong) -> Arc<str> {
    format!("{}{id}-{hash}", prefix(seq)).into()
}

pub fn prefix(seq: u64) -> String {
    format!("{PACKS}{seq:020}-")
}

/// What is in a pack that somebody left. Empty where it is none.
pub async fn contents(bucket: &dyn Bucket, object: &Object) -> Result<Places> {
    let name: Arc<str> = object.key.as_str().into();
    if let Some(hash) = object.key.rsplit('-').next().filter(|last| last.len() == 64).and_then(Strong::parse)
    {
        return Ok(HashMap::from([((hash, object.size), Place::plain(name, 0))]));
    }
    let Some(footer) = tail(bucket, object, FOOTER).await? else { return Ok(Places::new()) };
    let count = u32::from_le_bytes([footer[0], footer[1], footer[2], footer[3]]);
    if &footer[12..] != MAGIC || u64::from(count) > MAX_COUNT {
        return Ok(Places::new());
    }
    let size = u64::from(count) * ENTRY as u64 + FOOTER;
    let Some(list) = tail(bucket, object, size).await? else { return Ok(Places::new()) };
    let counted = count as usize * ENTRY + 4;
    if list[counted..counted + 8] != check(&list[..counted]) {
        return Ok(Places::new());
    }
    let bodies = object.size - size;
    let entries = list[..count as usize * ENTRY].chunks_exact(ENTRY).map(entry);
    let inside =
        |(_, offset, size): &(Strong, u64, u64)| offset.checked_add(*size).is_some_and(|end| end <= bodies);
    Ok(places(&name, &entries.filter(inside).collect::<Vec<_>>()))
}

/// A list that was damaged must not lead a version astray.
fn check(list: &[u8]) -> [u8; 8] {
    let mut check = [0; 8];
    check.copy_from_slice(&Strong::of(list).0[..8]);
    check
}

async fn tail(bucket: &dyn Bucket, object: &Object, size: u64) -> Result<Option<Bytes>> {
    let Some(start) = object.size.checked_sub(size) else { return Ok(None) };
    let body = bucket::collect(bucket.get(&object.key, Some(start..object.size)).await?, size).await?;
    Ok((body.len() as u64 == size).then_some(body))
}

fn entry(bytes: &[u8]) -> (Strong, u64, u64) {
    let number = |at: usize| {
        let mut eight = [0; 8];
        eight.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(eight)
    };
    let mut hash = [0; 32];
    hash.copy_from_slice(&bytes[..32]);
    (Strong(hash), number(32), number(40))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::MemoryBucket;

    #[tokio::test]
    async fn a_pack_tells_what_is_in_it() {
        let bucket = MemoryBucket::default();
        let mut pack = Pack::default();
        for body in [&b"one"[..], b"three"] {
            pack.add(Strong::of(body), body);
        }
        let name = name(7, "x");
        let (bytes, places) = pack.finish(&name);
        bucket.put(&name, bytes.clone()).await.unwrap();
        let object = Object { key: name.to_string(), size: bytes.len() as u64 };
        assert_eq!(contents(&bucket, &object).await.unwrap(), places);
        assert_eq!(places[&(Strong::of(b"three"), 5)].offset, 3);
        // One whose list was damaged tells nothing.
        let mut flipped = bytes.to_vec();
        flipped[8 + 32] ^= 1;
        bucket.put(&name, flipped.into()).await.unwrap();
        assert!(contents(&bucket, &object).await.unwrap().is_empty());
        // Half of one, or something else, tells nothing.
        bucket.put(&name, bytes.slice(..9)).await.unwrap();
        let object = Object { size: 9, ..object };
        assert!(contents(&bucket, &object).await.unwrap().is_empty());
    }
}
