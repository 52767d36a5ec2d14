//! Leases: who may act on something now, timed by the database's clock alone.

use crate::Result;
use async_trait::async_trait;
use std::time::Duration;

/// The right to act, until it ends or is renewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub name: String,
    pub holder: String,
    /// Larger than that of any lease of this name before.
    pub epoch: u64,
}

impl Lease {
    /// For writes that only its holder may do.
    pub fn fence(&self) -> Fence {
        Fence { name: self.name.clone(), epoch: self.epoch }
    }
}

/// Which lease a write needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    pub name: String,
    pub epoch: u64,
}

/// Names are chosen by the server, never by a request.
#[async_trait]
pub trait Leases: Send + Sync {
    /// None while another holder has it. Whoever holds it already gets it again, with the same epoch and a new end.
    async fn acquire(&self, name: &str, holder: &str, time: Duration) -> Result<Option<Lease>>;

    /// As [`Leases::acquire`], but a loss of power may undo it: for what dies with the machine.
    async fn acquire_soon(&self, name: &str, holder: &str, time: Duration) -> Result<Option<Lease>> {
        self.acquire(name, holder, time).await
    }

    /// A new end. False where it ended, or is another's: then nothing may be done any more.
    async fn renew(&self, lease: &Lease, time: Duration) -> Result<bool>;

    /// Whether it holds at this moment. For looking: writes are fenced.
    async fn holds(&self, fence: &Fence) -> Result<bool>;

    /// Gives it back. Of no effect where it is another's.
    async fn release(&self, lease: &Lease) -> Result<()>;
}
