//! The part of a bucket beneath a prefix.

use super::{Bodies, Bucket, Object, SharedBucket};
use crate::{Error, Result, path};
use async_trait::async_trait;
use bytes::Bytes;
use std::ops::Range;

#[derive(Debug, Clone)]
pub struct Scoped {
    inner: SharedBucket,
    /// With a slash at its end, or empty.
    prefix: String,
}

impl Scoped {
    pub fn new(inner: SharedBucket, prefix: &str) -> Result<Scoped> {
        let prefix = prefix.trim_matches('/');
        if prefix.is_empty() {
            return Ok(Scoped { inner, prefix: String::new() });
        }
        path::check(prefix.as_bytes())
            .map_err(|why| Error::invalid(format!("the prefix {prefix:?} cannot be used: {why}")))?;
        Ok(Scoped { inner, prefix: format!("{prefix}/") })
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}

#[async_trait]
impl Bucket for Scoped {
    fn place(&self) -> String {
        format!("{}/{}", self.inner.place().trim_end_matches('/'), self.prefix.trim_end_matches('/'))
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<bool> {
        self.inner.create(&self.key(key), body).await
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<()> {
        self.inner.put(&self.key(key), body).await
    }

    async fn upload(&self, key: &str, body: Bodies) -> Result<()> {
        self.inner.upload(&self.key(key), body).await
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bodies> {
        self.inner.get(&self.key(key), range).await
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<Object>> {
        let after = after.map(|after| self.key(after));
        let listed = self.inner.list(&self.key(prefix), after.as_deref()).await?;
        let inside = |object: Object| {
            let key = object.key.strip_prefix(&self.prefix)?.to_owned();
            Some(Object { key, size: object.size })
        };
        Ok(listed.into_iter().filter_map(inside).collect())
    }

    async fn folders(&self, prefix: &str) -> Result<Vec<String>> {
        self.inner.folders(&self.key(prefix)).await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.inner.delete(&self.key(key)).await
    }
}
