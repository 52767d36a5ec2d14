//! What every handler and layer has at hand.

use crate::{
    audit::Audit,
    counts::{Counts, InFlightLimits, Kind, Ticket, bound, descriptors},
    error::ApiResult,
    health::Readiness,
    instance::Instance,
    kept::Kept,
    limits::Limiter,
    memory,
    options::Options,
    pace::Pace,
    places::Places,
};
use metrics_exporter_prometheus::PrometheusHandle;
use seawall_api::{AccountId, account::LimitUse};
use seawall_core::{Services, accounts::Limit, budget::Budget};
use std::{fmt, sync::Arc};
use tokio_util::sync::CancellationToken;

/// Cheap to clone.
#[derive(Clone)]
pub struct AppState(Arc<Inner>);

struct Inner {
    services: Services,
    options: Options,
    limiter: Limiter,
    pace: Pace,
    budget: Budget,
    counts: Counts,
    in_flight: InFlightLimits,
    readiness: Readiness,
    kept: Kept,
    metrics: PrometheusHandle,
    audit: Audit,
    shutdown: CancellationToken,
    places: Arc<Places>,
    instance: Instance,
}

impl AppState {
    pub fn new(
        services: Services,
        mut options: Options,
        metrics: PrometheusHandle,
        audit: Audit,
    ) -> AppState {
        let memory = memory::budget(options.memory_budget, options.account_memory_budget);
        bound(&mut options, descriptors(), memory.server);
        let (limiter, pace) = (Limiter::new(&options), Pace::of_processors(options.processor_percent));
        let budget = Budget::new(memory);
        services.turns.count_in(&budget);
        let in_flight = options.in_flight.unwrap_or_else(|| InFlightLimits::for_descriptors(descriptors()));
        let places = Arc::new(Places::new(options.connections));
        AppState(Arc::new(Inner {
            services,
            options,
            limiter,
            pace,
            budget,
            counts: Counts::default(),
            in_flight,
            readiness: Readiness::default(),
            kept: Kept::default(),
            metrics,
            audit,
            shutdown: CancellationToken::new(),
            places,
            instance: Instance::default(),
        }))
    }

    /// The same state, of a server that was started in this way. Only before the state is shared.
    pub fn with_instance(self, instance: Instance) -> AppState {
        // A state that is shared already keeps its own.
        match Arc::try_unwrap(self.0) {
            Ok(inner) => AppState(Arc::new(Inner { instance, ..inner })),
            Err(shared) => AppState(shared),
        }
    }

    pub fn instance(&self) -> &Instance {
        &self.0.instance
    }

    /// Open connections.
    pub fn places(&self) -> &Arc<Places> {
        &self.0.places
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

    /// The processor time that accounts take from the server's threads.
    pub fn pace(&self) -> &Pace {
        &self.0.pace
    }

    /// What bodies in flight may take of the server's memory.
    pub fn budget(&self) -> &Budget {
        &self.0.budget
    }

    /// How many streams, waiters and previews an account may have open. The operator's own has no bound.
    async fn limits_of(&self, account: AccountId) -> ApiResult<InFlightLimits> {
        if account == AccountId::LOCAL {
            return Ok(InFlightLimits::NONE);
        }
        let settings = self.services().accounts.settings(account).await?;
        let of = |limit: Limit, server: u64| settings.limits.get(limit).map_or(server, |own| own.min(server));
        let server = self.0.in_flight;
        Ok(InFlightLimits {
            streams: of(Limit::Streams, server.streams),
            waiters: of(Limit::Waiters, server.waiters),
            previews: of(Limit::Previews, server.previews),
        })
    }

    /// Returns how many streams, waiters and previews an account has open in this server, with its limits.
    pub async fn open_now(&self, account: AccountId) -> ApiResult<Vec<LimitUse>> {
        let limits = self.limits_of(account).await?;
        Ok(self.0.counts.open_now(account, &limits))
    }

    /// Counts one more stream, waiter or preview of an account, until the ticket is dropped. 429 at its limit.
    pub async fn enter(&self, account: AccountId, kind: Kind) -> ApiResult<Ticket> {
        self.0.counts.enter(account, kind, &self.limits_of(account).await?)
    }

    /// What is kept for repeats of calls.
    pub fn kept(&self) -> &Kept {
        &self.0.kept
    }

    /// What `/ready` said last.
    pub fn readiness(&self) -> &Readiness {
        &self.0.readiness
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
