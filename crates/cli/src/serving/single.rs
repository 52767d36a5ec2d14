//! One server per database: a lease in it, which ends by the database's clock.
//!
//! A server on another data folder, or another machine, is refused while the lease lasts. The same data folder replaces its own
//! lease at once, since its lock says that the server before is dead. A server that finds its lease taken stops.

use anyhow::{Result, bail};
use seawall_core::ports::store::{Lease, Leases, Takeover};
use std::{sync::Arc, time::Duration};
use tokio::time::{sleep, timeout};

const NAME: &str = "server";
/// How long a server that is gone keeps others out.
const TIME: Duration = Duration::from_secs(30);
const RENEW: Duration = Duration::from_secs(5);

/// The right to serve a database.
pub struct Single {
    leases: Arc<dyn Leases>,
    lease: Lease,
}

impl Single {
    /// An error where another node has it.
    pub async fn take(leases: Arc<dyn Leases>, node: &str) -> Result<Single> {
        match leases.take_over(NAME, node, TIME).await? {
            Takeover::Ours(lease) => Ok(Single { leases, lease }),
            Takeover::Held { holder, left } => bail!(
                "another server has this database: node {holder}, for {} s more unless it renews that. One server per database is the \
                 rule: stop that one; if its machine is gone, start this one again then; or name another database",
                left.as_secs() + 1
            ),
        }
    }

    /// Renews the lease until another has it. A database that is away is waited for: what nobody else took meanwhile is ours.
    pub async fn lost(&self) {
        loop {
            sleep(RENEW).await;
            match timeout(TIME, self.leases.renew(&self.lease, TIME)).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => return,
                Ok(Err(error)) => {
                    tracing::warn!(error = %error.chain(), "the right to this database could not be renewed");
                }
                Err(_) => {
                    tracing::warn!("the database does not answer: the right to it could not be renewed")
                }
            }
        }
    }

    /// Lets the next server in at once.
    pub async fn give_back(&self) {
        if let Ok(Err(error)) = timeout(RENEW, self.leases.release(&self.lease)).await {
            tracing::warn!(error = %error.chain(), "the right to this database ends by itself");
        }
    }
}
