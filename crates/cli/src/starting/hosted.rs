//! A server in the process of a command, on separate threads.

use super::Start;
use crate::{
    config::Settings,
    serving::{self, How, Ownership, StartLock},
};
use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use seawall_api::http::ServerKind;
use seawall_server::Stop;
use std::{
    sync::{Mutex, PoisonError},
    thread::JoinHandle,
};
use tokio::sync::oneshot;

/// Hosts the server of a data folder for as long as its command runs.
#[derive(Default)]
pub struct Host(Mutex<Option<Hosted>>);

struct Hosted {
    stop: Stop,
    thread: JoinHandle<()>,
}

#[async_trait]
impl Start for Host {
    async fn start(&self, settings: &Settings, _lock: &mut StartLock) -> Result<()> {
        // A server of this process that has ended must be gone before the next.
        self.finish().await;
        let Some(owned) = Ownership::take(&settings.data).await? else {
            bail!("another process has just become the owner of {}: try again", settings.data.display());
        };
        let (ready, is_ready) = oneshot::channel();
        let stop = Stop::default();
        let how = How { kind: ServerKind::Hosted, network: None, stop: stop.clone(), start: None };
        let settings = settings.clone();
        let thread = std::thread::Builder::new().name("server".to_owned()).spawn(move || {
            run(settings, owned, how, ready);
        });
        let thread = thread.context("there is no thread for the server")?;
        let done = is_ready.await;
        *self.hosted() = Some(Hosted { stop, thread });
        match done {
            Ok(done) => done,
            Err(_) => bail!("the server in this process ended before it answered"),
        }
    }

    async fn finish(&self) {
        let Some(hosted) = self.hosted().take() else { return };
        hosted.stop.ask(true);
        let joined = tokio::task::spawn_blocking(move || hosted.thread.join()).await;
        if !matches!(joined, Ok(Ok(()))) {
            tracing::warn!("the server in this process ended badly");
        }
    }
}

impl Host {
    fn hosted(&self) -> std::sync::MutexGuard<'_, Option<Hosted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the server to its end. All its tasks are gone before the data folder is given back.
fn run(settings: Settings, owned: Ownership, how: How, ready: oneshot::Sender<Result<()>>) {
    let ready = Mutex::new(Some(ready));
    let tell = |result: Result<()>| {
        if let Some(ready) = ready.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // The command may have been interrupted.
            let _ = ready.send(result);
        } else if let Err(error) = result {
            tracing::error!(error = %format!("{error:#}"), "the server in this process failed");
        }
    };
    let runtime = match crate::server_runtime() {
        Ok(runtime) => runtime,
        Err(error) => return tell(Err(error.into())),
    };
    let served = runtime.block_on(serving::serve(settings, &owned, how, |_| tell(Ok(()))));
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    drop(owned);
    tell(served);
}
