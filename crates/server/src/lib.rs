//! The service on the network: HTTP, server-sent events, WebSockets; keys, limits, metrics, the audit file.
//!
//! What holds for every request, in the order of the layers around the routes (see [`Server::router`]):
//!
//! - It has an id, in its answer and on every line of the log about it (`request_id`). It is counted and timed
//!   (`metrics`). A panic is that request's 500.
//! - Who calls is known before anything is done (`auth`); extractors refuse (`extract`).
//! - Nobody takes from others: requests in a second, requests in flight, time (`limits`); connections (`listen`,
//!   `places`). What was let in and changes something is written down (`audit`).
//! - What was done is not done again (`idempotency`).
//! - Every error is application/problem+json (`error`).
//!
//! Streams pass through all of it unbuffered. There is no behaviour here: it is core's. Start with `routes`.

mod audit;
mod auth;
mod cors;
mod counts;
mod docs_page;
mod error;
mod extract;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod health;
mod idempotency;
mod in_flight;
mod instance;
mod kept;
mod limits;
mod listen;
mod lists;
pub mod local;
mod memory;
mod metrics;
mod openapi;
mod options;
mod origin;
mod pace;
mod places;
mod request_id;
mod routes;
mod sse;
mod state;
mod telemetry;

pub use audit::{KeepAudit, tidy as tidy_audit};
pub use counts::InFlightLimits;
pub use idempotency::cut_off;
pub use instance::{Instance, Stop};
pub use listen::Listeners;
pub use openapi::openapi;
pub use options::{Options, Tls};
pub use telemetry::Telemetry;

use crate::{audit::Audit, idempotency::Replays, state::AppState};
use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware::{from_fn, from_fn_with_state},
};
use seawall_core::{Result, Services};
use std::{fmt, time::Duration};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;
use tower_http::cors::CorsLayer;
use utoipa::openapi::OpenApi;

/// A server that does not listen yet.
pub struct Server {
    state: AppState,
    tls: Option<TlsAcceptor>,
    cors: Option<CorsLayer>,
    idle: Option<Duration>,
}

impl Server {
    /// An error where a setting cannot be used: a certificate, an origin, the audit file.
    pub fn new(services: Services, options: Options) -> Result<Server> {
        let tls = options.tls.as_ref().map(listen::tls).transpose()?;
        let cors = cors::rules(&options.cors_origins)?;
        let audit = Audit::open(options.audit.as_deref(), options.keep_audit.clone())?;
        let state = AppState::new(services, options, crate::metrics::install()?, audit);
        Ok(Server { state, tls, cors, idle: None })
    }

    /// Says how the server was started, and lets operators stop it.
    pub fn with_instance(mut self, instance: Instance) -> Server {
        self.state = self.state.with_instance(instance);
        self
    }

    /// Ends the server when it had neither a client nor work for this time.
    pub fn until_idle(mut self, idle: Duration) -> Server {
        self.idle = Some(idle);
        self
    }

    /// How long requests in flight may take when the server ends.
    pub fn grace(&self) -> Duration {
        self.state.options().grace
    }

    /// Everything but connections.
    pub fn router(self) -> Router {
        let state = self.state;
        let (routes, _) = routes::all(OpenApi::default()).split_for_parts();
        let routes: Router = routes
            .fallback(error::no_such_route)
            .method_not_allowed_fallback(error::no_such_method)
            .layer(from_fn(error::know_caller))
            .layer(DefaultBodyLimit::max(state.options().body_limit))
            .layer(from_fn(limits::in_name))
            .with_state(state.clone());
        // The last is the outermost.
        let replays = Replays::new(state.clone(), routes.clone());
        let mut router = routes
            .layer(from_fn_with_state(replays, idempotency::once))
            .layer(from_fn_with_state(state.clone(), limits::hurry))
            .layer(from_fn_with_state(state.clone(), audit::record))
            .layer(from_fn_with_state(state.clone(), limits::limit))
            .layer(from_fn_with_state(state, auth::authenticate));
        if let Some(cors) = self.cors {
            router = router.layer(from_fn_with_state(cors, cors::share));
        }
        router
            .layer(from_fn(error::catch_panics))
            .layer(from_fn(crate::metrics::measure))
            .layer(from_fn(request_id::identify))
    }

    /// Until `shutdown`; then what is in flight may end, for as long as the grace lasts.
    pub async fn run(
        mut self,
        listeners: Listeners,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<()> {
        let (state, tls, idle) = (self.state.clone(), self.tls.clone(), self.idle.take());
        let _upkeep = AbortOnDropHandle::new(tokio::spawn(crate::metrics::upkeep(state.clone())));
        listen::serve(listeners, self.router(), state, tls, shutdown, idle).await
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("options", self.state.options()).finish_non_exhaustive()
    }
}
