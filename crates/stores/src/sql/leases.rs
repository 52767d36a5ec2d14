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
    ports::store::{Fence, Lease, Leases},
};
use std::time::Duration;

statement! {
    listed;
    // A new holder gets the next epoch. Whoever holds it keeps its own.
    ACQUIRE: ["INSERT INTO leases (name, holder, epoch, expires_at) VALUES ($1, $2, 1, ", NOW, " + $3)
        ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at,
        epoch = CASE WHEN leases.holder = excluded.holder AND leases.expires_at > ", NOW, " THEN leases.epoch ELSE leases.epoch + 1 END
        WHERE leases.holder = excluded.holder OR leases.expires_at <= ", NOW, " RETURNING name, holder, epoch"];
    RENEW: ["UPDATE leases SET expires_at = ", NOW, " + $3 WHERE name = $1 AND epoch = $2 AND expires_at > ", NOW];
    HOLDS: ["SELECT epoch FROM leases WHERE name = $1 AND epoch = $2 AND expires_at > ", NOW];
    // It cannot be taken over before the transaction has ended.
    CHECK: ["SELECT epoch FROM leases WHERE name = $1 AND epoch = $2 AND expires_at > ", NOW, FOR_UPDATE];
    // The row stays, so that epochs go on growing.
    RELEASE: ["UPDATE leases SET expires_at = 0 WHERE name = $1 AND epoch = $2"];
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

    async fn renew(&self, lease: &Lease, time: Duration) -> Result<bool> {
        let values = values![lease.name.as_str(), lease.epoch, micros(time)];
        Ok(self.db.run(RENEW, values).await? == 1)
    }

    async fn holds(&self, fence: &Fence) -> Result<bool> {
        Ok(self.db.row(HOLDS, values![fence.name.as_str(), fence.epoch]).await?.is_some())
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        self.db.run(RELEASE, values![lease.name.as_str(), lease.epoch]).await.map(drop)
    }
}
