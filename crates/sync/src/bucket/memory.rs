//! A bucket in memory, for tests and for trying things.

use super::{Bodies, Bucket, Object};
use crate::{Error, Result};
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Mutex, MutexGuard, PoisonError},
};

#[derive(Debug, Default)]
pub struct MemoryBucket {
    objects: Mutex<BTreeMap<String, Bytes>>,
    /// Behaves as stores do that know no conditional writes.
    careless: bool,
}

impl MemoryBucket {
    /// One that stores whatever it is given, whether there is something or not.
    pub fn careless() -> Self {
        MemoryBucket { careless: true, ..MemoryBucket::default() }
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Bytes>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn keys(&self) -> Vec<String> {
        self.objects().keys().cloned().collect()
    }
}

#[async_trait]
impl Bucket for MemoryBucket {
    fn place(&self) -> String {
        "memory:".to_owned()
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<bool> {
        let mut objects = self.objects();
        if !self.careless && objects.contains_key(key) {
            return Ok(false);
        }
        objects.insert(key.to_owned(), body);
        Ok(true)
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<()> {
        self.objects().insert(key.to_owned(), body);
        Ok(())
    }

    async fn upload(&self, key: &str, mut body: Bodies) -> Result<()> {
        let mut whole = Vec::new();
        while let Some(part) = body.next().await {
            whole.extend_from_slice(&part?);
        }
        self.put(key, whole.into()).await
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bodies> {
        let body = self.objects().get(key).cloned();
        let body = body.ok_or_else(|| Error::not_found("there is no such object").on(key))?;
        let end = body.len();
        let part = match range {
            None => body,
            Some(range) => {
                let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX).min(end);
                body.slice(at(range.start)..at(range.end))
            }
        };
        Ok(futures::stream::once(async { Ok(part) }).boxed())
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<Object>> {
        let objects = self.objects();
        let all = objects.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        let behind = all.filter(|(key, _)| after.is_none_or(|after| key.as_str() > after));
        Ok(behind.map(|(key, body)| Object { key: key.clone(), size: body.len() as u64 }).collect())
    }

    async fn folders(&self, prefix: &str) -> Result<Vec<String>> {
        let listed = self.list(prefix, None).await?;
        let mut folders: Vec<String> = listed
            .iter()
            .filter_map(|object| {
                object.key[prefix.len()..].split_once('/').map(|(first, _)| first.to_owned())
            })
            .collect();
        folders.dedup();
        Ok(folders)
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.objects().remove(key);
        Ok(())
    }
}
