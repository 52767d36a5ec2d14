//! Connections: who is let in, for how long, and how they end.
//!
//! Whoever opens connections and says nothing keeps nobody else out: heads of requests and handshakes have their time,
//! and where there are too many connections some make room ([`crate::places`]).

use crate::{
    in_flight::hold,
    local::{LocalSocket, Peer},
    options::Tls,
    places::{Busy, Place, Places, Watched},
    state::AppState,
};
use axum::{Router, body::Body, extract::Request, response::Response};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use seawall_core::{Error, Result};
use std::{convert::Infallible, fmt, io, net::SocketAddr, path::Path, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixStream},
    time::Instant,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

/// Of a connection, and so the longest head of a request.
pub const BUFFER: usize = 64 << 10;
/// After an error of the listener that will not go away by itself.
const PAUSE: Duration = Duration::from_millis(50);
/// How often the server looks whether its socket is there.
const LOOK_AT_SOCKET: Duration = Duration::from_secs(10);
/// The longest pause between looks whether the server is idle.
const LONGEST_LOOK: Duration = Duration::from_secs(5);
/// How long requests in flight may take where another server takes over.
const HANDOVER: Duration = Duration::from_secs(10);
/// For what is cut off at the end of the grace.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// All that connections share.
#[derive(Clone)]
struct Door {
    router: Router,
    state: AppState,
    tls: Option<TlsAcceptor>,
    places: Arc<Places>,
    /// No more grace.
    cut: CancellationToken,
}

/// Where a server listens. At least one of the two is there.
#[derive(Debug, Default)]
pub struct Listeners {
    pub network: Option<TcpListener>,
    pub local: Option<LocalSocket>,
}

/// An accepted connection.
enum Accepted {
    Network(TcpStream, SocketAddr),
    Local(UnixStream),
}

impl Listeners {
    async fn accept(&self) -> io::Result<Accepted> {
        let network = async {
            match &self.network {
                Some(listener) => {
                    listener.accept().await.map(|(stream, peer)| Accepted::Network(stream, peer))
                }
                None => std::future::pending().await,
            }
        };
        let local = async {
            match &self.local {
                Some(socket) => socket.accept().await.map(Accepted::Local),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            accepted = network => accepted,
            accepted = local => accepted,
        }
    }
}

/// Serves until `shutdown`, or until the server is idle and no client is left; then until the requests in flight are
/// answered, or the grace is over.
pub async fn serve(
    mut listeners: Listeners,
    router: Router,
    state: AppState,
    tls: Option<TlsAcceptor>,
    shutdown: impl Future<Output = ()>,
    idle: Option<Duration>,
) -> Result<()> {
    let places = state.places().clone();
    let door = Door { router, state, tls, places, cut: CancellationToken::new() };
    let tracker = TaskTracker::new();
    tokio::pin!(shutdown);
    let mut looks = tokio::time::interval(LOOK_AT_SOCKET);
    let mut resting = Box::pin(rest(door.state.clone(), idle));
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = listeners.accept() => accepted,
            _ = looks.tick() => {
                keep_reachable(&mut listeners);
                continue;
            }
            () = &mut resting => {
                if door.retire(&mut listeners, &tracker).await {
                    break;
                }
                resting = Box::pin(rest(door.state.clone(), idle));
                continue;
            }
        };
        match accepted {
            Ok(Accepted::Network(stream, peer)) => {
                door.admit(&tracker, Peer::Remote(peer), Io::Network(stream))
            }
            Ok(Accepted::Local(stream)) => door.admit_local(&tracker, stream),
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                // Mostly too many open files: one fewer is a beginning.
                tracing::warn!(%error, "connections cannot be accepted now");
                door.places.evict();
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    if let Some(local) = &listeners.local {
        local.remove();
    }
    drop(listeners);
    door.close(&tracker).await;
    Ok(())
}

/// Ends when the server had neither a client nor work for this time. Never without a time.
async fn rest(state: AppState, idle: Option<Duration>) {
    let Some(time) = idle else { return std::future::pending().await };
    let pause = (time / 10).clamp(Duration::from_millis(1), LONGEST_LOOK);
    let mut since = Instant::now();
    loop {
        tokio::time::sleep(pause).await;
        if !is_idle(&state).await {
            since = Instant::now();
        }
        if since.elapsed() >= time {
            return;
        }
    }
}

/// Whether the server has neither a client nor work. A store that does not answer may have some.
async fn is_idle(state: &AppState) -> bool {
    state.places().count() == 0 && state.services().activity().await.is_ok_and(|activity| activity.is_idle())
}

/// Binds the local socket again where it was deleted, as clean-ups of old files do.
fn keep_reachable(listeners: &mut Listeners) {
    let Some(local) = listeners.local.as_mut().filter(|local| !local.is_reachable()) else { return };
    match local.reopen() {
        Ok(()) => tracing::warn!("the local socket was deleted, and is there again"),
        Err(error) => tracing::error!(%error, "the local socket was deleted, and cannot be bound again"),
    }
}

/// The byte stream of a connection that was accepted.
enum Io {
    Network(TcpStream),
    Local(UnixStream),
}

impl fmt::Debug for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Io")
    }
}

/// The peer's, before it was accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

impl Door {
    /// Whether the server may end: it refuses new clients, and looks whether one came before. A client that came keeps the
    /// server alive.
    async fn retire(&self, listeners: &mut Listeners, tracker: &TaskTracker) -> bool {
        let Some(local) = &mut listeners.local else { return false };
        if self.places.count() > 0 {
            return false;
        }
        if let Err(error) = local.refuse() {
            tracing::warn!(%error, "the socket cannot be closed to new clients");
            return false;
        }
        let mut is_needed = false;
        while let Ok(Some(stream)) = local.accept_waiting() {
            self.admit_local(tracker, stream);
            is_needed = true;
        }
        // The last client may have left work behind since the last look.
        if !is_needed && is_idle(&self.state).await {
            return true;
        }
        if let Err(error) = local.reopen() {
            tracing::error!(%error, "the socket cannot be opened again; the server ends, and the next command starts another");
            return true;
        }
        false
    }

    fn admit_local(&self, tracker: &TaskTracker, stream: UnixStream) {
        match Peer::of(&stream) {
            Ok(peer) => self.admit(tracker, peer, Io::Local(stream)),
            Err(error) => tracing::debug!(%error, "a connection was gone at once"),
        }
    }

    fn admit(&self, tracker: &TaskTracker, peer: Peer, stream: Io) {
        ::metrics::counter!("http_connections_total").increment(1);
        let Some(place) = self.places.enter() else {
            ::metrics::counter!("http_connections_refused_total").increment(1);
            tracing::warn!(%peer, "a connection was closed: all places are taken by requests in flight");
            return;
        };
        let door = self.clone();
        tracker.spawn(async move {
            let evicted = place.evicted();
            tokio::select! {
                () = door.welcome(stream, peer, place) => {}
                () = evicted.cancelled() => {}
                () = door.cut.cancelled() => {}
            }
        });
    }

    async fn welcome(&self, stream: Io, peer: Peer, place: Arc<Place>) {
        let stream = match stream {
            Io::Network(stream) => stream,
            Io::Local(stream) => return self.speak(stream, peer, place).await,
        };
        // Answers and events are small, and are waited for.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, %peer, "a connection was gone at once");
            return;
        }
        let Some(tls) = &self.tls else { return self.speak(stream, peer, place).await };
        match tokio::time::timeout(self.state.options().header_timeout, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.speak(stream, peer, place).await,
            Ok(Err(error)) => tracing::debug!(%error, %peer, "a TLS handshake failed"),
            Err(_) => tracing::debug!(%peer, "a TLS handshake took too long"),
        }
    }

    async fn speak<I>(&self, io: I, peer: Peer, place: Arc<Place>)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = Watched::new(io, place.clone(), self.state.options().stall_timeout);
        let router = self.router.clone();
        let service = service_fn(move |request| answer(router.clone(), request, peer, place.clone()));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.state.options().header_timeout)
            .max_buf_size(BUFFER)
            .serve_connection(TokioIo::new(io), service)
            .with_upgrades();
        tokio::pin!(connection);
        let done = tokio::select! {
            done = connection.as_mut() => done,
            () = self.state.shutdown().cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.as_mut().await
            }
        };
        if let Err(error) = done {
            tracing::debug!(%error, %peer, "a connection ended badly");
        }
    }

    async fn close(&self, tracker: &TaskTracker) {
        tracing::info!(connections = tracker.len(), "the server goes down");
        self.state.shutdown().cancel();
        tracker.close();
        // Attached commands reconnect to a server that takes this one's place, and must not wait for long.
        let grace = match self.state.instance().stop.is_replaced() {
            true => self.state.options().grace.min(HANDOVER),
            false => self.state.options().grace,
        };
        if tokio::time::timeout(grace, tracker.wait()).await.is_err() {
            tracing::warn!(connections = tracker.len(), "the grace is over: what is left is cut off");
            self.cut.cancel();
            let _ = tokio::time::timeout(LAST_MOMENT, tracker.wait()).await;
        }
    }
}

async fn answer(
    router: Router,
    request: hyper::Request<Incoming>,
    peer: Peer,
    place: Arc<Place>,
) -> std::result::Result<Response, Infallible> {
    let busy = Arc::new(Busy::new(place));
    let mut request: Request = request.map(Body::new);
    request.extensions_mut().insert(peer);
    request.extensions_mut().insert(busy.clone());
    let response = router.oneshot(request).await?;
    Ok(hold(response, busy))
}

/// From files, which are read once.
pub fn tls(settings: &Tls) -> Result<TlsAcceptor> {
    let certificates = CertificateDer::pem_file_iter(&settings.certificate)
        .and_then(|all| all.collect::<std::result::Result<Vec<_>, _>>())
        .map_err(|error| unreadable("certificate", &settings.certificate, error))?;
    if certificates.is_empty() {
        let path = settings.certificate.display();
        return Err(Error::invalid(format!("there is no certificate in {path}; it must be PEM")));
    }
    let key = PrivateKeyDer::from_pem_file(&settings.key)
        .map_err(|error| unreadable("key", &settings.key, error))?;
    let wrong =
        |error| Error::invalid("the certificate and its key cannot be used for TLS").with_source(error);
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(wrong)?
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(wrong)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn unreadable(what: &str, path: &Path, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::invalid(format!("the TLS {what} in {} cannot be read", path.display())).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_not_there_are_named() {
        let settings = Tls { certificate: "/nowhere/cert.pem".into(), key: "/nowhere/key.pem".into() };
        let error = tls(&settings).map(drop).unwrap_err();
        assert!(error.to_string().contains("/nowhere/cert.pem"), "{error}");
    }
}
