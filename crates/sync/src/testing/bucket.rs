//! A bucket whose calls go wrong.

use super::Faults;
use crate::{
    Result,
    bucket::{Bodies, Bucket, Object, SharedBucket},
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{ops::Range, sync::Arc};

#[derive(Debug, Clone)]
pub struct FaultyBucket {
    inner: SharedBucket,
    faults: Arc<Faults>,
}

impl FaultyBucket {
    pub fn new(inner: SharedBucket, faults: Arc<Faults>) -> Self {
        FaultyBucket { inner, faults }
    }
}

#[async_trait]
impl Bucket for FaultyBucket {
    fn place(&self) -> String {
        self.inner.place()
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<bool> {
        self.faults.call(self.inner.create(key, body)).await
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<()> {
        self.faults.call(self.inner.put(key, body)).await
    }

    async fn upload(&self, key: &str, body: Bodies) -> Result<()> {
        self.faults.call(self.inner.upload(key, body)).await
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bodies> {
        self.faults.call(self.inner.get(key, range)).await
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<Object>> {
        self.faults.call(self.inner.list(prefix, after)).await
    }

    async fn folders(&self, prefix: &str) -> Result<Vec<String>> {
        self.faults.call(self.inner.folders(prefix)).await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.faults.call(self.inner.delete(key)).await
    }
}
