//! What is needed of an object store, and one in memory.
//!
//! Keys are relative, with `/` between their parts. [`Bucket::create`] must be atomic: of two that create one key,
//! one is told that it exists. [`crate::versions`] lets a store prove that before it believes it.

mod memory;
mod scoped;

pub use memory::MemoryBucket;
pub use scoped::Scoped;

use crate::{Error, Result};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use seawall_api::ErrorKind;
use std::{fmt, ops::Range, sync::Arc};

pub type Bodies = BoxStream<'static, Result<Bytes>>;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Object {
    pub key: String,
    pub size: u64,
}

#[async_trait]
pub trait Bucket: Send + Sync + fmt::Debug {
    /// Where it is, for messages.
    fn place(&self) -> String;

    /// Stores an object unless there is one. False where there is.
    async fn create(&self, key: &str, body: Bytes) -> Result<bool>;

    /// Stores an object, whatever was there.
    async fn put(&self, key: &str, body: Bytes) -> Result<()>;

    /// Stores a large object in parts. It appears when all of it is there; a stream that fails leaves nothing.
    async fn upload(&self, key: &str, body: Bodies) -> Result<()>;

    /// `not_found` where there is none.
    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bodies>;

    /// All objects whose key starts with `prefix`, sorted; with `after` only those behind that key.
    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<Object>>;

    /// The next parts of the keys beneath `prefix`, which ends with a slash or is empty.
    async fn folders(&self, prefix: &str) -> Result<Vec<String>>;

    /// Deleting what is gone succeeds.
    async fn delete(&self, key: &str) -> Result<()>;
}

pub type SharedBucket = Arc<dyn Bucket>;

/// The whole of an object of at most `max` bytes.
pub async fn read(bucket: &dyn Bucket, key: &str, max: u64) -> Result<Bytes> {
    collect(bucket.get(key, None).await?, max).await.map_err(|error| error.on(key))
}

/// As [`read`]; none where there is no such object.
pub async fn find(bucket: &dyn Bucket, key: &str, max: u64) -> Result<Option<Bytes>> {
    match read(bucket, key, max).await {
        Ok(body) => Ok(Some(body)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub async fn collect(mut body: Bodies, max: u64) -> Result<Bytes> {
    let mut parts = Vec::new();
    let mut size = 0u64;
    while let Some(part) = body.next().await {
        let part = part?;
        size += part.len() as u64;
        if size > max {
            return Err(Error::new(ErrorKind::TooLarge, format!("it has more than {max} bytes")));
        }
        parts.push(part);
    }
    Ok(match parts.len() {
        1 => parts.remove(0),
        _ => Bytes::from(parts.concat()),
    })
}
