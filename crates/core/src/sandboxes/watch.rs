//! Changes of sandboxes, from all providers together.

use super::{Sandboxes, info};
use crate::{Result, ports::BoxEvent};
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use seawall_api::{SandboxId, sandbox::SandboxInfo};

#[derive(Debug, Clone, PartialEq)]
pub enum SandboxEvent {
    /// A sandbox that was there when the watch began, or one that changed.
    Is(Box<SandboxInfo>),
    /// All that was there has been told.
    Ready,
    /// Its box is gone.
    Gone(SandboxId),
}

impl Sandboxes {
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
