//! All settings of the service. Plain data: who wires it reads them from wherever they are.

use crate::{audit::KeepAudit, counts::InFlightLimits};
use std::{path::PathBuf, time::Duration};

#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Bytes of a JSON body, at the most. Contents of files stream, and have no limit.
    pub body_limit: usize,
    /// Until the head of an answer.
    pub request_timeout: Duration,
    /// The same, for calls that may have to make a sandbox, or that wait for a command.
    pub slow_timeout: Duration,
    /// Requests of an account in a second, in the long run. 0: no limit.
    pub rate: u32,
    /// And at once, after a pause.
    pub burst: u32,
    /// Requests of an account in flight, with their streams. 0: no limit.
    pub concurrency: usize,
    /// Percent of the processors that requests of one account may keep busy in the server's own threads. 0: no limit.
    pub processor_percent: u32,
    /// Open connections. Where there are more, those that are idle for the longest go.
    pub connections: usize,
    /// Bytes that bodies in flight may take in memory. None: a quarter of what the process may use, at most 1 GiB.
    pub memory_budget: Option<u64>,
    /// The same, of one account. None: a quarter of the whole, at least 32 MiB.
    pub account_memory_budget: Option<u64>,
    /// Streams, waiters and previews of an account. None: by how many descriptors the process may have open.
    pub in_flight: Option<InFlightLimits>,
    /// The data folder, whose disk `/ready` looks at. None: it looks at none.
    pub data: Option<PathBuf>,
    /// Bytes of its disk that must be free.
    pub disk_reserve: u64,
    /// For the head of a request, for a TLS handshake, and between requests on a connection.
    pub header_timeout: Duration,
    /// How long a peer may take nothing of what is sent to it.
    pub stall_timeout: Duration,
    /// How long what is in flight may take when the server goes down.
    pub grace: Duration,
    /// Whose pages may call: `https://app.example.com`, or `*`. Empty: nobody's.
    pub cors_origins: Vec<String>,
    pub tls: Option<Tls>,
    /// Where mutating calls are written down, a line of JSON each. None: nowhere.
    pub audit: Option<PathBuf>,
    pub keep_audit: KeepAudit,
    /// `/metrics` without a key.
    pub public_metrics: bool,
    /// How callers reach the server, e.g. `https://seawall.example.com`. None: as the `Host` header says.
    pub public_url: Option<String>,
    /// The last address of `x-forwarded-for` is the caller's. Only behind a proxy that sets it.
    pub trust_forwarded: bool,
    /// Pages of programs in sandboxes may be pages of the server's own origin. Else browsers keep them apart from it.
    pub proxy_trusted: bool,
    /// How long an answer is kept for repeats with the same `Idempotency-Key`.
    pub idempotency_keep: Duration,
    /// How long a call with an `Idempotency-Key` holds its key without being renewed. When it ends the outcome is unknown.
    pub idempotency_hold: Duration,
}

/// Files in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The server's own first, then those above it.
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            body_limit: 1 << 20,
            request_timeout: Duration::from_secs(60),
            slow_timeout: Duration::from_secs(3600),
            rate: 2000,
            burst: 4000,
            concurrency: 1024,
            processor_percent: 25,
            connections: 16_384,
            memory_budget: None,
            account_memory_budget: None,
            in_flight: None,
            data: None,
            disk_reserve: 256 << 20,
            header_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
            grace: Duration::from_secs(30),
            cors_origins: Vec::new(),
            tls: None,
            audit: None,
            keep_audit: KeepAudit::default(),
            public_metrics: false,
            public_url: None,
            trust_forwarded: false,
            proxy_trusted: false,
            idempotency_keep: Duration::from_secs(24 * 3600),
            idempotency_hold: Duration::from_secs(600),
        }
    }
}
