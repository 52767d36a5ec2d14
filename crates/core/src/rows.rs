//! Records as rows of the database: what a server and the command line on one data folder share.
//!
//! What belongs to one sandbox happens in order: a write that nobody waits for is over before the next look at the
//! same row. So a box can be made while its row is written, and a note costs its caller nothing.

use crate::{
    Error, Result,
    ports::{
        Claim, Claims, Durable, Record, RecordHead, Records,
        store::{MAX_PAGE, Page, Paged, SandboxRow, SandboxRows},
    },
    queues::Queues,
};
use async_trait::async_trait;
use seawall_api::{ErrorKind, SandboxId};
use std::{fmt, sync::Arc};

/// How often a change is tried that others cross.
const TRIES: u32 = 20;

#[derive(Clone)]
pub struct RowRecords {
    rows: Arc<dyn SandboxRows>,
    claims: Arc<dyn Claims>,
    /// The machine, or data folder, whose boxes these are.
    node: Option<String>,
    queues: Queues,
}

impl fmt::Debug for RowRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowRecords").field("node", &self.node).finish_non_exhaustive()
    }
}

impl RowRecords {
    pub fn new(rows: Arc<dyn SandboxRows>, claims: Arc<dyn Claims>, node: Option<String>) -> RowRecords {
        RowRecords { rows, claims, node, queues: Queues::default() }
    }

    fn row(&self, record: &Record) -> SandboxRow {
        SandboxRow {
            id: record.id,
            account_id: record.account_id,
            name: record.name.clone(),
            provider: record.provider.clone(),
            node: self.node.clone(),
            template: record.template.clone(),
            spec: record.spec.clone(),
            state: record.state,
            reason: record.reason.clone(),
            removing: record.removing,
            unsynced: record.unsynced.clone(),
            metadata: serde_json::Map::new(),
            created_at: record.created_at,
            started_at: record.started_at,
            last_used_at: record.created_at,
            version: 0,
        }
    }

    /// What is in the row now becomes what the record says, whatever others change meanwhile.
    async fn replace(&self, record: &Record) -> Result<()> {
        for _ in 0..TRIES {
            let there = self.rows.find(record.id).await?;
            let there = there.ok_or_else(|| no_sandbox(record.id))?;
            let row = SandboxRow {
                account_id: there.account_id,
                node: there.node,
                metadata: there.metadata,
                created_at: there.created_at,
                last_used_at: there.last_used_at,
                version: there.version,
                ..self.row(record)
            };
            match self.rows.update(&row).await {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                other => return other.map(drop),
            }
        }
        Err(Error::conflict(format!("sandbox {} is changed by others all the time", record.id)))
    }
}

fn no_sandbox(id: SandboxId) -> Error {
    Error::not_found(format!("there is no sandbox {id}"))
}

fn record(row: SandboxRow) -> Record {
    Record {
        id: row.id,
        account_id: row.account_id,
        name: row.name,
        provider: row.provider,
        template: row.template,
        state: row.state,
        reason: row.reason,
        spec: row.spec,
        created_at: row.created_at,
        started_at: row.started_at,
        removing: row.removing,
        unsynced: row.unsynced,
    }
}

#[async_trait]
impl Records for RowRecords {
    async fn insert(&self, record: &Record) -> Result<()> {
        let _turn = self.queues.wait(record.id).await;
        self.rows.insert(&self.row(record)).await.map(drop)
    }

    async fn insert_soon(&self, record: &Record) -> Result<Durable> {
        let _turn = self.queues.wait(record.id).await;
        self.rows.insert_soon(&self.row(record)).await?;
        let (rows, id) = (self.rows.clone(), record.id);
        Ok(Box::pin(async move { rows.settle(id).await }))
    }

    async fn update(&self, record: &Record) -> Result<()> {
        let _turn = self.queues.wait(record.id).await;
        self.replace(record).await
    }

    /// Nobody waits for it: the box tells the same.
    async fn note(&self, record: &Record) -> Result<()> {
        let turn = self.queues.wait(record.id).await;
        let (records, record) = (self.clone(), record.clone());
        tokio::spawn(async move {
            let _turn = turn;
            if let Err(error) = records.replace(&record).await {
                tracing::warn!(sandbox = %record.id, error = %error.chain(), "a change could not be recorded");
            }
        });
        Ok(())
    }

    async fn flush(&self) {
        for id in self.queues.occupied() {
            drop(self.queues.wait(id).await);
        }
    }

    async fn get(&self, id: SandboxId) -> Result<Option<Record>> {
        let _turn = self.queues.wait(id).await;
        Ok(self.rows.find(id).await?.map(record))
    }

    async fn list(&self) -> Result<Vec<Record>> {
        let (mut all, mut page) = (Vec::new(), Page::first(MAX_PAGE));
        loop {
            let found = self.rows.of_node(self.node.as_deref(), &page).await?;
            all.extend(found.items.into_iter().map(record));
            match found.next {
                Some(next) => page = Page::first(MAX_PAGE).after(next),
                None => return Ok(all),
            }
        }
    }

    async fn heads(&self, page: &Page) -> Result<Paged<RecordHead>> {
        self.rows.heads_of_node(self.node.as_deref(), page).await
    }

    async fn head(&self, id: SandboxId) -> Result<Option<RecordHead>> {
        let _turn = self.queues.wait(id).await;
        self.rows.head(id).await
    }

    async fn remove(&self, id: SandboxId) -> Result<()> {
        let _turn = self.queues.wait(id).await;
        match self.rows.find(id).await? {
            Some(row) => self.rows.remove(row.account_id, id).await,
            None => Ok(()),
        }
    }

    async fn claim(&self, id: SandboxId) -> Result<Claim> {
        self.claims.claim(id).await
    }

    async fn try_claim(&self, id: SandboxId) -> Result<Option<Claim>> {
        self.claims.try_claim(id).await
    }

    async fn next_epoch(&self, id: SandboxId) -> Result<u64> {
        self.claims.next_epoch(id).await
    }
}
