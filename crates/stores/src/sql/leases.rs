//! Leases, by the database's clock.

use super::{
    SqlStore,
    db::Tx,
    statement::statement,
    value::{Row, micros, values},
};
use async_trait::async_trait;
use futures::future::BoxFuture;
use seawall_core::{
    Error, Result,
    ports::store::{Fence, Lease, Leases, Takeover},
};
use std::time::Duration;

statement! {
    listed;
    // A new holder gets the next epoch. Whoever holds it keeps its own.
    ACQUIRE: ["INSERT INTO leases (name, holder, epoch, expires_at) VALUES ($1, $2, 1, ", NOW, " + $3)
        ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at,
        epoch = CASE WHEN leases.holder = excluded.holder AND leases.expires_at > ", NOW, " THEN leases.epoch ELSE leases.epoch + 1 END
        WHERE leases.holder = excluded.holder OR leases.expires_at <= ", NOW, " RETURNING name, holder, epoch"];
    TAKE_OVER: ["INSERT INTO leases (name, holder, epoch, expires_at) VALUES ($1, $2, 1, ", NOW, " + $3)
        ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at, epoch = leases.epoch + 1
        WHERE leases.holder = excluded.holder OR leases.expires_at <= ", NOW, " RETURNING name, holder, epoch"];
    HOLDER: ["SELECT holder, expires_at - ", NOW, " FROM leases WHERE name = $1"];
    // What was given back is below zero. What has only ended is its holder's until another takes it.
    RENEW: ["UPDATE leases SET expires_at = ", NOW, " + $4 WHERE name = $1 AND epoch = $2 AND holder = $3 AND expires_at > 0"];
    HOLDS: ["SELECT epoch FROM leases WHERE name = $1 AND epoch = $2 AND expires_at > 0"];
    // It cannot be taken over before the transaction has ended.
    CHECK: ["SELECT epoch FROM leases WHERE name = $1 AND epoch = $2 AND expires_at > 0", FOR_UPDATE];
    // The row stays for a while, so that epochs go on growing.
    RELEASE: ["UPDATE leases SET expires_at = -", NOW, " WHERE name = $1 AND epoch = $2 AND expires_at > 0"];
}

/// Within a transaction: nothing of it happens where the lease is another's.
pub async fn check(tx: &mut Tx, fence: Option<&Fence>) -> Result<()> {
    let Some(fence) = fence else { return Ok(()) };
    match tx.row(CHECK, values![fence.name.as_str(), fence.epoch]).await? {
        Some(_) => Ok(()),
        None => Err(lost(fence)),
    }
}

fn lost(fence: &Fence) -> Error {
    Error::conflict(format!("the lease `{}` of epoch {} has ended", fence.name, fence.epoch))
}

fn lease(row: &Row) -> Result<Lease> {
    Ok(Lease { name: row.text(0)?, holder: row.text(1)?, epoch: row.count(2)? })
}

/// None: another's.
pub async fn acquire(tx: &mut Tx, name: &str, holder: &str, time: Duration) -> Result<Option<Lease>> {
    let row = tx.row(ACQUIRE, values![name, holder, micros(time)]).await?;
    row.as_ref().map(lease).transpose()
}

async fn take_over(tx: &mut Tx, (name, holder, time): &Wanted) -> Result<Takeover> {
    let (name, holder) = (name.as_str(), holder.as_str());
    if let Some(row) = tx.row(TAKE_OVER, values![name, holder, micros(*time)]).await? {
        return lease(&row).map(Takeover::Ours);
    }
    let Some(row) = tx.row(HOLDER, values![name]).await? else {
        return Err(Error::unavailable(format!("the lease `{name}` was just removed; try again")));
    };
    let left = Duration::from_micros(row.int(1)?.max(0).unsigned_abs());
    Ok(Takeover::Held { holder: row.text(0)?, left })
}

/// Name, holder and time.
type Wanted = (String, String, Duration);

fn acquired<'t>(tx: &'t mut Tx, (name, holder, time): &'t Wanted) -> BoxFuture<'t, Result<Option<Lease>>> {
    Box::pin(acquire(tx, name, holder, *time))
}

#[async_trait]
impl Leases for SqlStore {
    async fn acquire(&self, name: &str, holder: &str, time: Duration) -> Result<Option<Lease>> {
        self.db.write((name.to_owned(), holder.to_owned(), time), acquired).await
    }

    async fn acquire_soon(&self, name: &str, holder: &str, time: Duration) -> Result<Option<Lease>> {
        self.db.write_lazily((name.to_owned(), holder.to_owned(), time), acquired).await
    }

    async fn take_over(&self, name: &str, holder: &str, time: Duration) -> Result<Takeover> {
        let wanted = (name.to_owned(), holder.to_owned(), time);
        self.db.write(wanted, |tx, wanted| Box::pin(take_over(tx, wanted))).await
    }

    async fn renew(&self, lease: &Lease, time: Duration) -> Result<bool> {
        let values = values![lease.name.as_str(), lease.epoch, lease.holder.as_str(), micros(time)];
        Ok(self.db.run(RENEW, values).await? == 1)
    }

    async fn holds(&self, fence: &Fence) -> Result<bool> {
        Ok(self.db.row(HOLDS, values![fence.name.as_str(), fence.epoch]).await?.is_some())
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        self.db.run(RELEASE, values![lease.name.as_str(), lease.epoch]).await.map(drop)
    }
}
