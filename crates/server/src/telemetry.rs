//! Traces for a collector of OpenTelemetry: one per turn, from the request to the push.
//!
//! The spans are those of `tracing`; this sends them on. Made before any runtime: the exporter has a thread of its own.

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use seawall_core::{Error, Result};
use tracing::Subscriber;
use tracing_subscriber::{Layer, registry::LookupSpan};

/// Sends what is left when it is dropped.
#[derive(Debug)]
pub struct Telemetry {
    provider: SdkTracerProvider,
}

impl Telemetry {
    /// `endpoint`: the collector's address, e.g. `http://127.0.0.1:4318`.
    pub fn new(endpoint: &str) -> Result<Telemetry> {
        let url = match endpoint.trim_end_matches('/') {
            whole if whole.ends_with("/v1/traces") => whole.to_owned(),
            base => format!("{base}/v1/traces"),
        };
        let exporter = SpanExporter::builder().with_http().with_endpoint(url).build();
        let exporter = exporter.map_err(|error| {
            Error::invalid(format!("cannot send traces to {endpoint}")).with_source(error)
        })?;
        let resource = Resource::builder()
            .with_service_name("seawall")
            .with_attribute(opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        Ok(Telemetry { provider })
    }

    /// Where `tracing` leaves its spans.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + 'static
    where
        S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        tracing_opentelemetry::layer().with_tracer(self.provider.tracer("seawall"))
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Err(error) = self.provider.shutdown() {
            tracing::warn!(%error, "the last traces could not be sent");
        }
    }
}
