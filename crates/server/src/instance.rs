//! One running server: how it was started, how it is asked to stop, and the maintenance of its database.

use seawall_api::http::{ServerInfo, ServerKind};
use seawall_core::ports::store::Database;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio_util::sync::CancellationToken;

/// A handle that stops a server. Clones stop the same server.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    asked: CancellationToken,
    again: CancellationToken,
    replaced: Arc<AtomicBool>,
}

impl Stop {
    /// `replaced`: another server continues the running turns at once, so they are not waited for.
    pub fn ask(&self, replaced: bool) {
        self.replaced.fetch_or(replaced, Ordering::AcqRel);
        match self.asked.is_cancelled() {
            true => self.again.cancel(),
            false => self.asked.cancel(),
        }
    }

    /// Ends when the server is asked to stop a second time: its caller does not want to wait.
    pub async fn asked_again(&self) {
        self.again.cancelled().await;
    }

    /// Ends when the server is asked to stop.
    pub async fn asked(&self) {
        self.asked.cancelled().await;
    }

    pub fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }
}

/// What a server knows of itself.
#[derive(Clone)]
pub struct Instance {
    pub info: ServerInfo,
    pub stop: Stop,
    pub database: Option<Arc<dyn Database>>,
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance").field("info", &self.info).finish_non_exhaustive()
    }
}

impl Default for Instance {
    fn default() -> Instance {
        let info = ServerInfo {
            instance: seawall_api::ProcessId::generate().to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kind: ServerKind::Foreground,
            pid: std::process::id(),
            started_at: jiff::Timestamp::now(),
            data: String::new(),
            addresses: Vec::new(),
            config: None,
            environment: BTreeMap::new(),
        };
        Instance { info, stop: Stop::default(), database: None }
    }
}
