//! A workspace whose calls go wrong, between any two of its steps.

use super::Faults;
use crate::{
    Result,
    diff::Step,
    disk::{Refused, ScanAsk, ScanReport},
    state::{CommitRef, StateFile},
    workspace::{Agree, Pieces, Put, Workspace},
};
use async_trait::async_trait;
use seawall_api::files::FileName;
use std::sync::Arc;
use tokio::sync::mpsc;

pub struct FaultyWorkspace<W> {
    inner: W,
    faults: Arc<Faults>,
}

impl<W> std::fmt::Debug for FaultyWorkspace<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FaultyWorkspace")
    }
}

impl<W: Workspace> FaultyWorkspace<W> {
    pub fn new(inner: W, faults: Arc<Faults>) -> Self {
        FaultyWorkspace { inner, faults }
    }
}

#[async_trait]
impl<W: Workspace> Workspace for FaultyWorkspace<W> {
    async fn scan(&self, ask: ScanAsk) -> Result<ScanReport> {
        self.faults.call(self.inner.scan(ask)).await
    }

    async fn base(&self) -> Result<Option<StateFile>> {
        self.faults.call(self.inner.base()).await
    }

    async fn collect(&self, files: Vec<FileName>) -> Result<Pieces> {
        self.faults.call(self.inner.collect(files)).await
    }

    async fn apply(&self, steps: Vec<Step>) -> Result<Vec<Refused>> {
        let mut refused = Vec::new();
        for step in steps {
            refused.extend(self.faults.call(self.inner.apply(vec![step])).await?);
        }
        Ok(refused)
    }

    async fn put(&self, mut files: mpsc::Receiver<Put>) -> Result<Vec<Refused>> {
        let (sender, receiver) = mpsc::channel(1);
        let faults = self.faults.clone();
        let passing = async move {
            while let Some(put) = files.recv().await {
                let sent = async {
                    // Whoever takes them tells what is wrong.
                    let _ = sender.send(put).await;
                    Ok(())
                };
                faults.call(sent).await?;
            }
            Ok(())
        };
        let (passed, put) = futures::future::join(passing, self.inner.put(receiver)).await;
        passed.and(put)
    }

    async fn prepare(&self, agree: Agree) -> Result<()> {
        self.faults.call(self.inner.prepare(agree)).await
    }

    async fn settle(&self, commit: Option<CommitRef>, now: i64) -> Result<()> {
        self.faults.call(self.inner.settle(commit, now)).await
    }

    async fn agree(&self, agree: Agree) -> Result<()> {
        self.faults.call(self.inner.agree(agree)).await
    }
}
