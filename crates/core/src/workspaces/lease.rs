//! A database's lease as the turnstile of a bucket that refuses nothing.

use crate::ports::store::{Lease, Leases};
use async_trait::async_trait;
use seawall_sync::{
    Error, Result,
    versions::{Pass, Turnstile},
};
use std::{fmt, sync::Arc, time::Duration};

/// Long enough to store a manifest and a record; whoever needs longer looks again.
const TIME: Duration = Duration::from_secs(60);
const TRY_EVERY: Duration = Duration::from_millis(50);
/// How long others may have it, one after the other.
const PATIENCE: Duration = Duration::from_secs(180);

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

struct Held {
    leases: Arc<dyn Leases>,
    lease: Lease,
}

fn failed(error: &crate::Error) -> Error {
    Error::new(error.kind(), error.chain()).during("asking the database for the right to commit")
}

#[async_trait]
impl Turnstile for LeaseTurnstile {
    async fn enter(&self, name: &str) -> Result<Box<dyn Pass>> {
        // Whoever holds a lease already gets it again: each commit is a holder of its own.
        let holder = seawall_api::ProcessId::generate().to_string();
        let give_up = tokio::time::Instant::now() + PATIENCE;
        loop {
            match self.leases.acquire(name, &holder, TIME).await.map_err(|error| failed(&error))? {
                Some(lease) => return Ok(Box::new(Held { leases: self.leases.clone(), lease })),
                None if tokio::time::Instant::now() < give_up => tokio::time::sleep(TRY_EVERY).await,
                None => return Err(Error::unavailable("others commit to this workspace all the time")),
            }
        }
    }
}

#[async_trait]
impl Pass for Held {
    fn epoch(&self) -> u64 {
        self.lease.epoch
    }

    async fn holds(&self) -> Result<bool> {
        self.leases.holds(&self.lease.fence()).await.map_err(|error| failed(&error))
    }

    async fn leave(self: Box<Self>) {
        if let Err(error) = self.leases.release(&self.lease).await {
            // It ends by itself.
            tracing::debug!(name = self.lease.name, error = %error.chain(), "a lease was not given back");
        }
    }
}
