use super::{kit::Cx, suite::cases};
use anyhow::{Result, bail, ensure};
use futures::future::join_all;
use seawall_core::ports::store::{Lease, Takeover};
use std::time::Duration;

cases!("leases";
    one_holder_at_a_time;
    of_many_at_once_one_gets_it;
    whoever_holds_it_keeps_its_epoch;
    a_new_holder_has_a_larger_epoch;
    what_ended_cannot_be_renewed;
    what_was_given_back_is_free_and_its_epoch_spent;
    a_lease_that_ended_is_its_holders_until_another_takes_it;
    a_holder_that_starts_again_replaces_its_own;
    another_is_told_who_has_it_and_for_how_long;
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

/// As a database's clock that jumps ahead lets all of them end.
async fn a_lease_that_ended_is_its_holders_until_another_takes_it(cx: Cx) -> Result<()> {
    let leases = &cx.stores.leases;
    let lease = leases.acquire("l", "one", SHORT).await?.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    ensure!(leases.holds(&lease.fence()).await? && leases.renew(&lease, SHORT).await?);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let other = leases.acquire("l", "two", LONG).await?.unwrap();
    ensure!(other.epoch == lease.epoch + 1);
    ensure!(!leases.holds(&lease.fence()).await? && !leases.renew(&lease, LONG).await?);
    leases.release(&other).await?;
    ensure!(!leases.renew(&other, LONG).await?, "what was given back is nobody's");
    Ok(())
}

async fn a_holder_that_starts_again_replaces_its_own(cx: Cx) -> Result<()> {
    let leases = &cx.stores.leases;
    let Takeover::Ours(first) = leases.take_over("server", "node", LONG).await? else { bail!("it is free") };
    let Takeover::Ours(second) = leases.take_over("server", "node", LONG).await? else { bail!("it is ours") };
    ensure!(second.epoch == first.epoch + 1);
    ensure!(!leases.renew(&first, LONG).await?, "the one before has lost it");
    ensure!(leases.renew(&second, LONG).await?);
    Ok(())
}

async fn another_is_told_who_has_it_and_for_how_long(cx: Cx) -> Result<()> {
    let leases = &cx.stores.leases;
    let Takeover::Ours(lease) = leases.take_over("server", "node", LONG).await? else { bail!("it is free") };
    match leases.take_over("server", "other", LONG).await? {
        Takeover::Held { holder, left } => {
            ensure!(holder == "node" && left > LONG / 2 && left <= LONG, "{holder} {left:?}");
        }
        taken => bail!("{taken:?}"),
    }
    ensure!(leases.renew(&lease, SHORT).await?);
    let other = loop {
        match leases.take_over("server", "other", LONG).await? {
            Takeover::Ours(other) => break other,
            Takeover::Held { .. } => tokio::task::yield_now().await,
        }
    };
    ensure!(other.epoch > lease.epoch && !leases.renew(&lease, LONG).await?);
    leases.release(&other).await?;
    ensure!(matches!(leases.take_over("server", "node", LONG).await?, Takeover::Ours(_)));
    Ok(())
}
