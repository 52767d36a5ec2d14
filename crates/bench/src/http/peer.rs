//! The same work without HTTP, on as many threads as the server has, so that the difference is what HTTP adds. The data
//! folder, the conversation and the sandbox are the peer's own: the server's belong to the server.

use crate::{scratch::Owned, turns::first};
use anyhow::{Context, Result, ensure};
use seawall_api::{AccountId, ConversationId, SandboxId};
use seawall_cli::{config::Settings, serving::services};
use seawall_core::{ExecRequest, Turns};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::runtime::{Builder, Runtime};

pub struct Peer {
    /// `None` while the peer is dropped.
    runtime: Option<Runtime>,
    service: Arc<Service>,
}

struct Service {
    owned: Owned,
    account: AccountId,
    turns: Turns,
    conversation: ConversationId,
    sandbox: SandboxId,
}

impl Service {
    /// Opens the data folder, and makes a conversation with its sandbox.
    async fn open(settings: Settings) -> Result<Service> {
        let owned = Owned::open(settings).await?;
        let account = services::account(&owned.app).await?;
        let turns = services::services(&owned.app).await?.turns;
        let conversation = ConversationId::generate();
        first(&turns, account, conversation, "echo made").await?;
        let linked = owned.app.stores.conversations.get(account, conversation).await?.sandbox_id;
        let sandbox = linked.context("the conversation has no sandbox")?;
        Ok(Service { owned, account, turns, conversation, sandbox })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Peer {
    /// On a data folder that no server uses.
    pub async fn open(settings: Settings) -> Result<Peer> {
        let runtime = Builder::new_multi_thread().enable_all().build()?;
        let opening = runtime.spawn(Service::open(settings));
        match opening.await.map_err(anyhow::Error::from).flatten() {
            Ok(service) => Ok(Peer { runtime: Some(runtime), service: Arc::new(service) }),
            Err(error) => {
                // A runtime must not wait for the end of another.
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    async fn timed<F, W>(&self, work: F) -> Result<Duration>
    where
        F: FnOnce(Arc<Service>) -> W,
        W: Future<Output = Result<Duration>> + Send + 'static,
    {
        let runtime = self.runtime.as_ref().context("the peer has been dropped")?;
        runtime.spawn(work(self.service.clone())).await?
    }

    /// `true`, over the wire.
    pub async fn exec(&self) -> Result<Duration> {
        self.timed(move |service| async move {
            let begun = Instant::now();
            let done = service.owned.app.sandboxes.exec(service.sandbox, ExecRequest::new(["true"])).await?;
            ensure!(done.status.success(), "`true` {}", done.status);
            Ok(begun.elapsed())
        })
        .await
    }

    /// From a prompt to the first output.
    pub async fn first_output(&self) -> Result<Duration> {
        self.timed(move |service| async move {
            first(&service.turns, service.account, service.conversation, "echo hello").await
        })
        .await
    }
}
