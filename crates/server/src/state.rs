//! What every handler and layer has at hand.

use crate::{audit::Audit, limits::Limiter, options::Options};
use metrics_exporter_prometheus::PrometheusHandle;
use seawall_core::Services;
use std::{fmt, sync::Arc};
use tokio_util::sync::CancellationToken;

/// Cheap to clone.
#[derive(Clone)]
pub struct AppState(Arc<Inner>);

struct Inner {
    services: Services,
    options: Options,
    limiter: Limiter,
    metrics: PrometheusHandle,
    audit: Audit,
    shutdown: CancellationToken,
}

impl AppState {
    pub fn new(services: Services, options: Options, metrics: PrometheusHandle, audit: Audit) -> AppState {
        let limiter = Limiter::new(&options);
        let shutdown = CancellationToken::new();
        AppState(Arc::new(Inner { services, options, limiter, metrics, audit, shutdown }))
    }

    pub fn services(&self) -> &Services {
        &self.0.services
    }

    pub fn options(&self) -> &Options {
        &self.0.options
    }

    pub fn limiter(&self) -> &Limiter {
        &self.0.limiter
    }

    pub fn metrics(&self) -> &PrometheusHandle {
        &self.0.metrics
    }

    pub fn audit(&self) -> &Audit {
        &self.0.audit
    }

    /// Cancelled when the server begins to go down: streams and sockets end then.
    pub fn shutdown(&self) -> &CancellationToken {
        &self.0.shutdown
    }
}

impl fmt::Debug for AppState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AppState").field("options", &self.0.options).finish_non_exhaustive()
    }
}
