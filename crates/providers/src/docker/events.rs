//! Changes of boxes, from the daemon's events.

use super::{labels, provider::DockerProvider};
use bollard::{models::EventMessage, query_parameters::EventsOptionsBuilder};
use futures::{StreamExt, future::ready, stream, stream::BoxStream};
use seawall_api::{ErrorKind, SandboxId};
use seawall_core::{
    Error, Result,
    ports::{BoxEvent, BoxEvents},
};
use std::collections::HashMap;

/// The events that change what a box is reported as.
const CHANGES: [&str; 7] = ["create", "start", "die", "destroy", "oom", "pause", "unpause"];

/// Every box as it is, then [`BoxEvent::Ready`], then each change.
pub async fn watch(provider: DockerProvider) -> Result<BoxEvents> {
    if provider.is_used() {
        return watch_daemon(provider).await;
    }
    // There is no box yet, and perhaps no daemon.
    let later = stream::once(async move {
        provider.wait_until_used().await;
        match watch_daemon(provider).await {
            Ok(events) => events.filter(|event| ready(!matches!(event, Ok(BoxEvent::Ready)))).boxed(),
            Err(error) => stream::once(ready(Err(error))).boxed(),
        }
    });
    Ok(stream::once(ready(Ok(BoxEvent::Ready))).chain(later.flatten()).boxed())
}

async fn watch_daemon(provider: DockerProvider) -> Result<BoxEvents> {
    let changes = changes(&provider).await?;
    let present = provider.boxes().await?;
    let present = present.into_iter().map(|info| Ok(BoxEvent::Is(Box::new(info))));
    let first = stream::iter(present.chain([Ok(BoxEvent::Ready)]));
    let rest = changes.then(move |change| {
        let provider = provider.clone();
        async move { now(&provider, change?).await }
    });
    Ok(first.chain(until_error(rest.boxed())).boxed())
}

/// The sandboxes whose containers change. It ends with an error, because the daemon ended the stream.
async fn changes(provider: &DockerProvider) -> Result<BoxStream<'static, Result<SandboxId>>> {
    let mut filters = labels::filter(provider.installation());
    filters.insert("type".to_owned(), vec!["container".to_owned()]);
    filters.insert("event".to_owned(), CHANGES.map(str::to_owned).to_vec());
    let daemon = provider.daemon();
    let (docker, address) = (daemon.docker().await?.clone(), daemon.address.host.clone());
    // Events since this moment of the daemon's clock are replayed, so none is missed until the stream is read.
    let options = EventsOptionsBuilder::default().since(&daemon.time().await?).filters(&filters).build();
    let broken = move |why: String| {
        let message = format!("the events of the Docker daemon at {address} ended: {why}");
        Error::new(ErrorKind::Unavailable, message)
    };
    let ended = broken.clone();
    let changed = docker.events(Some(options)).filter_map(move |event| {
        ready(match event {
            Ok(event) => sandbox_of(&event).map(Ok),
            Err(error) => Some(Err(broken(error.to_string()))),
        })
    });
    Ok(changed.chain(stream::once(ready(Err(ended("it closed the connection".to_owned()))))).boxed())
}

fn sandbox_of(event: &EventMessage) -> Option<SandboxId> {
    let attributes: &HashMap<String, String> = event.actor.as_ref()?.attributes.as_ref()?;
    attributes.get(labels::SANDBOX)?.parse().ok()
}

async fn now(provider: &DockerProvider, id: SandboxId) -> Result<BoxEvent> {
    match provider.inspect(id).await {
        Ok(found) => Ok(BoxEvent::Is(Box::new(found.info))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(BoxEvent::Gone(id)),
        Err(error) => Err(error),
    }
}

/// A stream up to its first error.
fn until_error(events: BoxEvents) -> BoxEvents {
    let next = |state: Option<BoxEvents>| async move {
        let mut events = state?;
        let event = events.next().await?;
        let rest = event.is_ok().then_some(events);
        Some((event, rest))
    };
    stream::unfold(Some(events), next).boxed()
}
