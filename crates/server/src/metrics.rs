//! Numbers for whoever watches the server, as Prometheus reads them.

use crate::{in_flight::hold, request_id::route, state::AppState};
use ::metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use axum::{extract::Request, http::Method, middleware::Next, response::Response};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use seawall_core::{Error, Result, ports::store::Page};
use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

/// Of a process: there is one recorder, however many servers there are.
static HANDLE: OnceLock<std::result::Result<PrometheusHandle, String>> = OnceLock::new();

/// Seconds. Most answers take milliseconds, cold starts take minutes.
const BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0];
/// For what is asked of stores while somebody waits for numbers.
const PATIENCE: Duration = Duration::from_secs(2);
/// What nobody fetches must not pile up.
const UPKEEP: Duration = Duration::from_secs(5);
/// Turns that are counted; more than that is this many.
const MAX_TURNS: u32 = 1000;

/// The recorder's, which is made the first time.
pub fn install() -> Result<PrometheusHandle> {
    let made = HANDLE.get_or_init(|| {
        let builder = PrometheusBuilder::new().set_buckets(&BUCKETS).map_err(|error| error.to_string())?;
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        if ::metrics::set_global_recorder(recorder).is_err() {
            tracing::warn!("somebody else in this process takes the metrics: /metrics has none");
        }
        describe();
        Ok(handle)
    });
    made.clone().map_err(|error| Error::internal(format!("metrics cannot be set up: {error}")))
}

fn describe() {
    describe_histogram!(
        "http_request_duration_seconds",
        Unit::Seconds,
        "Time until the head of the answer, by method, route and status."
    );
    describe_counter!("http_requests_total", Unit::Count, "Requests that were answered.");
    describe_gauge!("http_requests_in_flight", Unit::Count, "Requests and streams that are open.");
    describe_counter!("http_requests_refused_total", Unit::Count, "Requests over a limit, by reason.");
    describe_gauge!("http_connections", Unit::Count, "Open connections.");
    describe_counter!("http_connections_total", Unit::Count, "Connections that were accepted.");
    describe_counter!("http_connections_evicted_total", Unit::Count, "Idle connections that made room.");
    describe_counter!("http_connections_refused_total", Unit::Count, "Connections there was no room for.");
    describe_counter!("audit_failures_total", Unit::Count, "Calls that could not be written down.");
    describe_gauge!(
        "seawall_outbox_waiting",
        Unit::Count,
        "Entries of the outbox that are not delivered yet."
    );
    describe_gauge!(
        "seawall_outbox_oldest_seconds",
        Unit::Seconds,
        "For how long the oldest of them is due."
    );
    describe_gauge!("seawall_turns_running", Unit::Count, "Turns that run, up to 1000.");
    describe_gauge!("seawall_store_up", Unit::Count, "1 where the store answered for these numbers, else 0.");
}

/// Until the server ends. Without it, what nobody fetches would be kept.
pub async fn upkeep(state: AppState) {
    loop {
        tokio::select! {
            () = state.shutdown().cancelled() => return,
            () = tokio::time::sleep(UPKEEP) => state.metrics().run_upkeep(),
        }
    }
}

/// All numbers, as text. Those of stores are fetched now.
pub async fn collect(state: &AppState) -> String {
    let up = match tokio::time::timeout(PATIENCE, ask_stores(state)).await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::warn!(error = error.chain(), "the stores have no numbers now");
            false
        }
        Err(_) => false,
    };
    gauge!("seawall_store_up").set(if up { 1.0 } else { 0.0 });
    state.metrics().render()
}

async fn ask_stores(state: &AppState) -> Result<()> {
    let services = state.services();
    let (waiting, oldest) = services.stores.outbox.waiting().await?;
    gauge!("seawall_outbox_waiting").set(waiting as f64);
    let now = services.clock.now();
    let age = oldest.map_or(0, |due| now.as_millisecond().saturating_sub(due.as_millisecond()).max(0));
    gauge!("seawall_outbox_oldest_seconds").set(age as f64 / 1000.0);
    let running = services.stores.turns.running(&Page::first(MAX_TURNS)).await?;
    gauge!("seawall_turns_running").set(running.items.len() as f64);
    Ok(())
}

/// A request that is open.
struct Flying;

impl Flying {
    fn begin() -> Flying {
        gauge!("http_requests_in_flight").increment(1.0);
        Flying
    }
}

impl Drop for Flying {
    fn drop(&mut self) {
        gauge!("http_requests_in_flight").decrement(1.0);
    }
}

/// The layer.
pub async fn measure(request: Request, next: Next) -> Response {
    let flying = Flying::begin();
    let begun = Instant::now();
    let method = named(request.method());
    let route = route(request.extensions()).to_owned();
    let response = next.run(request).await;
    let status = response.status().as_str().to_owned();
    let labels = [("method", method.to_owned()), ("route", route), ("status", status)];
    counter!("http_requests_total", &labels).increment(1);
    histogram!("http_request_duration_seconds", &labels).record(begun.elapsed().as_secs_f64());
    hold(response, flying)
}

/// Whoever makes up methods makes up no new rows.
fn named(method: &Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    KNOWN.into_iter().find(|name| *name == method.as_str()).unwrap_or("OTHER")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_recorder_however_many_servers_there_are() {
        let (first, second) = (install().unwrap(), install().unwrap());
        gauge!("seawall_test_gauge").set(3.0);
        assert!(first.render().contains("seawall_test_gauge 3"));
        assert!(second.render().contains("seawall_test_gauge 3"));
    }

    #[test]
    fn methods_are_few() {
        assert_eq!(named(&Method::POST), "POST");
        assert_eq!(named(&Method::from_bytes(b"BREW").unwrap()), "OTHER");
    }
}
