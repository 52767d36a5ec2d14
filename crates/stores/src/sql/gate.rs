//! Shares of a database's connections among accounts.
//!
//! A call that is made in the name of an account ([`seawall_core::shares::as_caller`]) waits for the account's share, so that
//! no account takes all connections, and none waits behind another's calls. What the server does in its own name passes: some
//! connections are left for it.

use seawall_core::shares::{Permit, Shares, caller};

#[derive(Debug, Clone)]
pub struct Gate {
    reads: Shares,
    writes: Shares,
}

impl Gate {
    /// SQLite has some readers, and one writer, for which writes that wait are one commit.
    pub fn sqlite(readers: u32) -> Gate {
        let readers = readers as usize;
        Gate { reads: Shares::new(readers / 2, readers * 2), writes: Shares::new(32, 512) }
    }

    /// PostgreSQL has a pool, of which some connections are left.
    pub fn postgres(connections: u32) -> Gate {
        let all = connections as usize * 4 / 5;
        let shares = Shares::new(all / 4, all);
        Gate { reads: shares.clone(), writes: shares }
    }

    pub async fn read(&self) -> Option<Permit> {
        share(&self.reads).await
    }

    pub async fn write(&self) -> Option<Permit> {
        share(&self.writes).await
    }
}

async fn share(shares: &Shares) -> Option<Permit> {
    match caller() {
        Some(account) => Some(shares.enter(account).await),
        None => None,
    }
}
