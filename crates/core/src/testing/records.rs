//! Records in memory. Clones share them, as two host processes share a data folder.

use super::lock;
use crate::{
    Error, Result,
    ports::{
        Claim, Record, RecordHead, Records,
        store::{Cursor, Page, Paged},
    },
};
use async_trait::async_trait;
use seawall_api::{ErrorKind, SandboxId};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

#[derive(Debug, Clone, Default)]
pub struct MemoryRecords(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    records: BTreeMap<SandboxId, Record>,
    /// Outlives its record: an epoch is never given twice, also not after a removal.
    epochs: BTreeMap<SandboxId, u64>,
    claims: BTreeMap<SandboxId, Arc<tokio::sync::Mutex<()>>>,
}

impl Inner {
    fn check_name(&self, record: &Record) -> Result<()> {
        let taken = self
            .records
            .values()
            .any(|other| other.id != record.id && other.name.is_some() && other.name == record.name);
        match (&record.name, taken) {
            (Some(name), true) => Err(Error::conflict(format!("the name `{name}` is taken; choose another"))),
            _ => Ok(()),
        }
    }
}

impl MemoryRecords {
    pub fn new() -> Self {
        MemoryRecords::default()
    }
}

#[async_trait]
impl Records for MemoryRecords {
    async fn insert(&self, record: &Record) -> Result<()> {
        let mut inner = lock(&self.0);
        if inner.records.contains_key(&record.id) {
            let message = format!("sandbox {} exists already", record.id);
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        inner.check_name(record)?;
        inner.records.insert(record.id, record.clone());
        Ok(())
    }

    async fn update(&self, record: &Record) -> Result<()> {
        let mut inner = lock(&self.0);
        if !inner.records.contains_key(&record.id) {
            return Err(Error::not_found(format!("no sandbox {}", record.id)));
        }
        inner.check_name(record)?;
        inner.records.insert(record.id, record.clone());
        Ok(())
    }

    async fn get(&self, id: SandboxId) -> Result<Option<Record>> {
        Ok(lock(&self.0).records.get(&id).cloned())
    }

    async fn list(&self) -> Result<Vec<Record>> {
        let mut all: Vec<Record> = lock(&self.0).records.values().cloned().collect();
        all.sort_by_key(|record| (record.created_at, record.id));
        Ok(all)
    }

    async fn heads(&self, page: &Page) -> Result<Paged<RecordHead>> {
        page.check()?;
        let place = |head: &RecordHead| Cursor::at(head.created_at, head.id.as_uuid().as_u128());
        let all = self.list().await?;
        let later = |head: &RecordHead| page.after.is_none_or(|after| place(head) > after);
        let found = all.iter().map(RecordHead::from).filter(later).take(page.limit as usize + 1).collect();
        Ok(Paged::cut(found, page.limit, place))
    }

    async fn head(&self, id: SandboxId) -> Result<Option<RecordHead>> {
        Ok(lock(&self.0).records.get(&id).map(RecordHead::from))
    }

    async fn remove(&self, id: SandboxId) -> Result<()> {
        lock(&self.0).records.remove(&id);
        Ok(())
    }

    async fn claim(&self, id: SandboxId) -> Result<Claim> {
        let claim = lock(&self.0).claims.entry(id).or_default().clone();
        Ok(Box::new(claim.lock_owned().await))
    }

    async fn try_claim(&self, id: SandboxId) -> Result<Option<Claim>> {
        let claim = lock(&self.0).claims.entry(id).or_default().clone();
        Ok(claim.try_lock_owned().ok().map(|held| Box::new(held) as Claim))
    }

    async fn next_epoch(&self, id: SandboxId) -> Result<u64> {
        let mut inner = lock(&self.0);
        let epoch = inner.epochs.entry(id).or_insert(0);
        *epoch += 1;
        Ok(*epoch)
    }
}
