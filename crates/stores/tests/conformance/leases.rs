use super::{kit::Cx, suite::cases};
use anyhow::{Result, ensure};
use futures::future::join_all;
use seawall_core::ports::store::Lease;
use std::time::Duration;

cases!("leases";
    one_holder_at_a_time;
    of_many_at_once_one_gets_it;
    whoever_holds_it_keeps_its_epoch;
    a_new_holder_has_a_larger_epoch;
    what_ended_cannot_be_renewed;
    what_was_given_back_is_free_and_its_epoch_spent;
);

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(1);

/// As soon as it can be had.
async fn wait_for(cx: &Cx, name: &str, holder: &str) -> Result<Lease> {
    let next = async {
        loop {
            if let Some(lease) = cx.stores.leases.acquire(name, holder, LONG).await? {
                return anyhow::Ok(lease);
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), next).await?
}

async fn one_holder_at_a_time(cx: Cx) -> Result<()> {
    let lease = cx.stores.leases.acquire("l", "one", LONG).await?.unwrap();
    ensure!((lease.name.as_str(), lease.holder.as_str()) == ("l", "one"));
    ensure!(cx.stores.leases.acquire("l", "two", LONG).await?.is_none());
    ensure!(cx.stores.leases.acquire("other", "two", LONG).await?.is_some());
    ensure!(cx.stores.leases.holds(&lease.fence()).await?);
    ensure!(cx.stores.leases.renew(&lease, LONG).await?);
    Ok(())
}

async fn of_many_at_once_one_gets_it(cx: Cx) -> Result<()> {
    let tries = (0..16).map(|number| {
        let cx = cx.clone();
        async move { cx.stores.leases.acquire("l", &format!("holder-{number}"), LONG).await }
    });
    let done: Vec<_> = join_all(tries).await.into_iter().collect::<Result<_, _>>()?;
    ensure!(done.iter().flatten().count() == 1);
    Ok(())
}

async fn whoever_holds_it_keeps_its_epoch(cx: Cx) -> Result<()> {
    let first = cx.stores.leases.acquire("l", "one", LONG).await?;
    ensure!(first.is_some() && cx.stores.leases.acquire("l", "one", LONG).await? == first);
    Ok(())
}

async fn a_new_holder_has_a_larger_epoch(cx: Cx) -> Result<()> {
    let mut last = 0;
    for round in 0..5 {
        let holder = format!("holder-{round}");
        let lease = wait_for(&cx, "l", &holder).await?;
        ensure!(lease.epoch > last);
        last = lease.epoch;
        ensure!(cx.stores.leases.renew(&lease, SHORT).await?);
    }
    // The same holder again, after its lease ended: somebody else may have acted in between.
    let again = loop {
        let lease = cx.stores.leases.acquire("l", "holder-4", LONG).await?.unwrap();
        if lease.epoch > last {
            break lease;
        }
        cx.stores.leases.renew(&lease, SHORT).await?;
    };
    ensure!(again.epoch > last);
    Ok(())
}

async fn what_ended_cannot_be_renewed(cx: Cx) -> Result<()> {
    let old = cx.stores.leases.acquire("l", "one", SHORT).await?.unwrap();
    let new = wait_for(&cx, "l", "two").await?;
    ensure!(!cx.stores.leases.renew(&old, LONG).await?);
    ensure!(!cx.stores.leases.holds(&old.fence()).await?);
    cx.stores.leases.release(&old).await?;
    ensure!(
        cx.stores.leases.holds(&new.fence()).await?,
        "the old holder gives nothing of the new one's back"
    );
    Ok(())
}

async fn what_was_given_back_is_free_and_its_epoch_spent(cx: Cx) -> Result<()> {
    let first = cx.stores.leases.acquire("l", "one", LONG).await?.unwrap();
    cx.stores.leases.release(&first).await?;
    ensure!(!cx.stores.leases.holds(&first.fence()).await?);
    let again = cx.stores.leases.acquire("l", "one", LONG).await?.unwrap();
    ensure!(again.epoch > first.epoch);
    Ok(())
}
