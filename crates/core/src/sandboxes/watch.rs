//! Changes of sandboxes, from all providers together.

use super::{Sandboxes, info};
use crate::{
    Error, Result,
    ports::{BoxEvent, BoxEvents, BoxState, Provider},
};
use futures::{
    StreamExt,
    future::join_all,
    stream::{self, BoxStream},
};
use seawall_api::{SandboxId, sandbox::SandboxInfo};
use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};
use tokio::time::sleep;

#[derive(Debug, Clone, PartialEq)]
pub enum SandboxEvent {
    /// A sandbox that was there when the watch began, or one that changed.
    Is(Box<SandboxInfo>),
    /// All that was there has been told.
    Ready,
    /// Its box is gone.
    Gone(SandboxId),
}

/// The pause after a provider's stream of changes broke.
const RESUBSCRIBE_PAUSE: Duration = Duration::from_secs(1);

impl Sandboxes {
    /// Ends calls that wait for a guest soon after its provider reports that the box does not run, such as one that was
    /// paused behind the server's back. A guest that answers all the same keeps its calls: it was started again.
    ///
    /// Runs until it is dropped. A server runs it once.
    pub async fn follow(&self) {
        let providers = self.inner.providers.all().cloned().collect::<Vec<_>>();
        join_all(providers.into_iter().map(|provider| self.follow_provider(provider))).await;
    }

    async fn follow_provider(&self, provider: Arc<dyn Provider>) {
        loop {
            let ended = match provider.watch().await {
                Ok(events) => self.take_events(events).await,
                Err(error) => Some(error),
            };
            if let Some(error) = ended {
                tracing::warn!(provider = provider.name(), error = %error.chain(), "changes of boxes are not reported");
            }
            sleep(RESUBSCRIBE_PAUSE).await;
        }
    }

    async fn take_events(&self, mut events: BoxEvents) -> Option<Error> {
        while let Some(event) = events.next().await {
            match event {
                Ok(BoxEvent::Is(found)) if found.state == BoxState::Running => {}
                Ok(BoxEvent::Is(found)) => self.probe(found.id),
                Ok(BoxEvent::Gone(id)) => self.probe(id),
                Ok(BoxEvent::Ready) => {}
                Err(error) => return Some(error),
            }
        }
        None
    }

    fn probe(&self, id: SandboxId) {
        let guest = self.inner.guests.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        if let Some(guest) = guest {
            guest.probe();
        }
    }

    /// Every sandbox as it is now, then [`SandboxEvent::Ready`], then each change. A broken stream
    /// yields an error and ends; subscribe again.
    pub async fn watch(&self) -> Result<BoxStream<'static, Result<SandboxEvent>>> {
        let mut streams = Vec::new();
        for provider in self.inner.providers.all() {
            streams.push(provider.watch().await?);
        }
        let waiting = streams.len();
        let merged = stream::select_all(streams);
        let this = self.clone();
        let events = stream::unfold(Some((merged, waiting)), move |state| {
            let this = this.clone();
            async move {
                let (mut merged, mut waiting) = state?;
                loop {
                    let event = match merged.next().await? {
                        Ok(BoxEvent::Ready) => {
                            waiting -= 1;
                            match waiting {
                                0 => Ok(SandboxEvent::Ready),
                                _ => continue,
                            }
                        }
                        Ok(BoxEvent::Gone(id)) => Ok(SandboxEvent::Gone(id)),
                        // A box without a record is not ours to tell of; a sweep will see to it.
                        Ok(BoxEvent::Is(found)) => match this.inner.records.get(found.id).await {
                            Ok(Some(record)) => Ok(SandboxEvent::Is(Box::new(info(&record, Some(&found))))),
                            Ok(None) => continue,
                            Err(error) => Err(error),
                        },
                        Err(error) => Err(error),
                    };
                    // Going on with the other providers would hide that one's changes are missed.
                    let next = event.is_ok().then_some((merged, waiting));
                    return Some((event, next));
                }
            }
        });
        Ok(events.boxed())
    }
}
