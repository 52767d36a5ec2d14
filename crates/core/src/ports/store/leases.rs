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

/// What came of an attempt to take a lease over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Takeover {
    Ours(Lease),
    /// Another holder has it, and keeps it for so long unless it is renewed.
    Held {
        holder: String,
        left: Duration,
    },
}

/// Names are chosen by the server, never by a request.
///
/// The end of a lease only says when another holder may take it. Until one does, it is its holder's: fences and renewals compare
/// epochs, so that a database whose clock jumps ahead stops nobody.
#[async_trait]
pub trait Leases: Send + Sync {
    /// None while another holder has it. Whoever holds it already gets it again, with the same epoch and a new end.
    async fn acquire(&self, name: &str, holder: &str, time: Duration) -> Result<Option<Lease>>;

    /// As [`Leases::acquire`], but a loss of power may undo it: for what dies with the machine.
    async fn acquire_soon(&self, name: &str, holder: &str, time: Duration) -> Result<Option<Lease>> {
        self.acquire(name, holder, time).await
    }

    /// As [`Leases::acquire`], for a holder that was started anew: it replaces its own lease at once, and whoever had that
    /// before has lost it, since the epoch is always the next.
    async fn take_over(&self, name: &str, holder: &str, time: Duration) -> Result<Takeover>;

    /// A new end, also where the old one has passed. False where the lease is another's or was given back: then nothing may be
    /// done any more.
    async fn renew(&self, lease: &Lease, time: Duration) -> Result<bool>;

    /// Whether the lease is still its holder's. For looking: writes are fenced.
    async fn holds(&self, fence: &Fence) -> Result<bool>;

    /// Gives it back. Of no effect where it is another's.
    async fn release(&self, lease: &Lease) -> Result<()>;
}
