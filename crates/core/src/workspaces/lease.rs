//! A database's leases as the turnstile of a bucket that refuses nothing.

use crate::ports::store::Leases;
use async_trait::async_trait;
use seawall_sync::{Error, Result, versions::Turnstile};
use std::{fmt, sync::Arc, time::Duration};

/// As good as for ever: whoever is let through stores a record within seconds, and whoever is let through after the
/// end finds it.
const TIME: Duration = Duration::from_secs(30 * 86_400);

pub struct LeaseTurnstile {
    leases: Arc<dyn Leases>,
}

impl fmt::Debug for LeaseTurnstile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseTurnstile")
    }
}

impl LeaseTurnstile {
    pub fn new(leases: Arc<dyn Leases>) -> LeaseTurnstile {
        LeaseTurnstile { leases }
    }
}

#[async_trait]
impl Turnstile for LeaseTurnstile {
    async fn admit(&self, name: &str, who: &str) -> Result<bool> {
        let asked = self.leases.acquire(name, who, TIME).await;
        let lease = asked.map_err(|error| {
            Error::new(error.kind(), error.chain()).during("asking the database for the right to commit")
        })?;
        Ok(lease.is_some())
    }
}
