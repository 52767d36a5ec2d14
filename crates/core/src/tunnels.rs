//! Ports of a sandbox on the host's loopback, and ports of the host in a sandbox.

use crate::{Error, Result};
use futures::future::BoxFuture;
use seawall_api::ErrorKind;
use seawall_wire::{Duplex, Guest, Listener};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::copy_bidirectional,
    net::TcpListener,
    task::{JoinHandle, JoinSet},
    time::sleep,
};

/// Connections that one tunnel carries at the same time, so that the wire has room for other calls.
const MAX_CONNECTIONS: usize = 96;

/// How often and how long a port of a broken wire is tried again.
const LISTEN_TRIES: u32 = 60;
const LISTEN_PAUSE: Duration = Duration::from_millis(500);

/// A port of a sandbox, reachable on the host while this lives.
#[derive(Debug)]
pub struct Forward {
    pub local: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A port of the host, reachable in a sandbox while this lives.
#[derive(Debug)]
pub struct Expose {
    pub port: u16,
    task: JoinHandle<()>,
}

impl Drop for Expose {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A port of a guest, on the host.
pub async fn forward(guest: Guest, port: u16, bind: SocketAddr) -> Result<Forward> {
    let listener = TcpListener::bind(bind).await.map_err(|error| {
        Error::new(ErrorKind::Conflict, format!("cannot listen on {bind}")).with_source(error)
    })?;
    let local =
        listener.local_addr().map_err(|e| Error::internal("a listener without an address").with_source(e))?;
    let task = tokio::spawn(async move {
        // Dropped with the task, and every connection with it.
        let mut connections = JoinSet::new();
        loop {
            while connections.len() >= MAX_CONNECTIONS {
                connections.join_next().await;
            }
            let mut tcp = match listener.accept().await {
                Ok((tcp, _)) => tcp,
                Err(error) => {
                    tracing::warn!(%error, port, "taking a connection for a sandbox's port");
                    sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let guest = guest.clone();
            connections.spawn(async move {
                match guest.connect_port(port).await {
                    // Either side may hang up at any time; that is how connections end.
                    Ok(mut inside) => drop(copy_bidirectional(&mut tcp, &mut inside).await),
                    Err(error) => tracing::warn!(%error, port, "connecting to a sandbox's port"),
                }
            });
            while connections.try_join_next().is_some() {}
        }
    });
    Ok(Forward { local, task })
}

/// A port whose wire broke is opened again, unless the sandbox is gone or somebody else has control.
async fn listen_again(guest: &Guest, port: u16, mut error: seawall_wire::Error) -> Option<Listener> {
    for _ in 0..LISTEN_TRIES {
        sleep(LISTEN_PAUSE).await;
        match guest.listen(port).await {
            Ok(listener) => return Some(listener),
            // The port may still be the old listener's for a moment.
            Err(next) if next.is_retryable() || next.kind() == ErrorKind::Conflict => error = next,
            Err(next) => {
                error = next;
                break;
            }
        }
    }
    tracing::warn!(%error, port, "a port in a sandbox is closed");
    None
}

/// What becomes of a connection that somebody in a box made.
pub type Serve = Arc<dyn Fn(Box<dyn Duplex>) -> BoxFuture<'static, ()> + Send + Sync>;

/// `guest` must hold the control wire.
pub(crate) async fn serve(guest: Guest, port: u16, serve: Serve) -> Result<Expose> {
    let mut listener = guest.listen(port).await?;
    let port = listener.port;
    let task = tokio::spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let inside = match listener.accept().await {
                Ok(inside) => inside,
                Err(error) => match listen_again(&guest, port, error).await {
                    Some(again) => {
                        listener = again;
                        continue;
                    }
                    None => return,
                },
            };
            if connections.len() >= MAX_CONNECTIONS {
                tracing::warn!(port, "too many connections from a sandbox; one was refused");
                continue;
            }
            connections.spawn(serve(inside));
            while connections.try_join_next().is_some() {}
        }
    });
    Ok(Expose { port, task })
}
