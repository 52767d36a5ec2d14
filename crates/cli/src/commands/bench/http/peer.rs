//! The same work without HTTP, on threads as the server has them: what HTTP adds is then told of HTTP, and of nothing else.

use crate::{
    app::App,
    commands::bench::turns::first,
    config::Settings,
    turns::{account, open},
};
use anyhow::{Context, Result, ensure};
use seawall_api::{AccountId, ConversationId, SandboxId};
use seawall_core::{ExecRequest, Turns};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::runtime::{Builder, Runtime};

pub struct Peer {
    /// None while it is dropped.
    runtime: Option<Runtime>,
    service: Arc<Service>,
}

struct Service {
    app: App,
    account: AccountId,
    turns: Turns,
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Peer {
    /// On the server's data folder.
    pub async fn open(settings: Settings) -> Result<Peer> {
        let runtime = Builder::new_multi_thread().enable_all().build()?;
        let opening = runtime.spawn(async move {
            let app = App::open(settings, false).await?;
            let (account, turns) = (account(&app).await?, open(&app).await?);
            anyhow::Ok(Arc::new(Service { app, account, turns }))
        });
        match opening.await.map_err(anyhow::Error::from).flatten() {
            Ok(service) => Ok(Peer { runtime: Some(runtime), service }),
            Err(error) => {
                // One runtime may not wait for the end of another.
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
        let runtime = self.runtime.as_ref().context("it is there until it is dropped")?;
        runtime.spawn(work(self.service.clone())).await?
    }

    /// `true`, over the wire.
    pub async fn exec(&self, sandbox: SandboxId) -> Result<Duration> {
        self.timed(move |service| async move {
            let begun = Instant::now();
            let done = service.app.sandboxes.exec(sandbox, ExecRequest::new(["true"])).await?;
            ensure!(done.status.success(), "`true` {}", done.status);
            Ok(begun.elapsed())
        })
        .await
    }

    /// From a prompt to the first output.
    pub async fn first_output(&self, conversation: ConversationId) -> Result<Duration> {
        self.timed(move |service| async move {
            first(&service.turns, service.account, conversation, "echo hello").await
        })
        .await
    }
}
