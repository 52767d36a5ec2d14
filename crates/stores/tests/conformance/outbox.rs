use super::{
    kit::{Cx, message, now},
    suite::cases,
};
use anyhow::{Result, ensure};
use futures::future::join_all;
use seawall_api::{ConversationId, conversation::Role};
use seawall_core::ports::store::{Delivery, Task};
use std::{collections::BTreeSet, time::Duration};

cases!("outbox";
    m5_an_entry_is_delivered_until_it_is_done;
    m5_what_failed_comes_again_with_its_error;
    m5_what_somebody_took_and_forgot_comes_again;
    of_many_takers_each_gets_its_own;
    what_is_not_due_waits;
);

const LONG: Duration = Duration::from_secs(60);

fn task(cx: &Cx) -> Task {
    let message = message(ConversationId::generate(), None, Role::User, "hello");
    Task::PutMessage { account: cx.account, message: Box::new(message) }
}

async fn m5_an_entry_is_delivered_until_it_is_done(cx: Cx) -> Result<()> {
    let tasks = [
        task(&cx),
        task(&cx),
        Task::DeleteMessages { account: cx.account, conversation: ConversationId::generate() },
    ];
    for task in &tasks {
        cx.stores.outbox.add(task, jiff::Timestamp::UNIX_EPOCH).await?;
    }
    ensure!(cx.stores.outbox.waiting().await? == (3, Some(jiff::Timestamp::UNIX_EPOCH)));
    let taken = cx.stores.outbox.take(10, LONG).await?;
    ensure!(taken.iter().map(|delivery| &delivery.entry.task).eq(&tasks), "oldest first");
    ensure!(taken.iter().all(|delivery| delivery.entry.attempts == 1));
    ensure!(cx.stores.outbox.take(10, LONG).await?.is_empty());
    for delivery in &taken {
        ensure!(cx.stores.outbox.done(delivery).await?);
        ensure!(!cx.stores.outbox.done(delivery).await?);
    }
    ensure!(cx.stores.outbox.waiting().await? == (0, None));
    Ok(())
}

async fn m5_what_failed_comes_again_with_its_error(cx: Cx) -> Result<()> {
    cx.stores.outbox.add(&task(&cx), jiff::Timestamp::UNIX_EPOCH).await?;
    let first = one(&cx, LONG).await?;
    ensure!(cx.stores.outbox.failed(&first, "no network", Duration::ZERO).await?);
    ensure!(!cx.stores.outbox.failed(&first, "again", Duration::ZERO).await?);
    let second = one(&cx, LONG).await?;
    ensure!((second.entry.attempts, second.entry.last_error.as_deref()) == (2, Some("no network")));
    ensure!(!cx.stores.outbox.done(&first).await?, "it is another's now");
    ensure!(cx.stores.outbox.failed(&second, "no network", LONG).await?);
    ensure!(cx.stores.outbox.take(10, LONG).await?.is_empty());
    Ok(())
}

/// The next that is due, within a while.
async fn one(cx: &Cx, time: Duration) -> Result<Delivery> {
    let next = async {
        loop {
            if let Some(delivery) = cx.stores.outbox.take(1, time).await?.pop() {
                return anyhow::Ok(delivery);
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), next).await?
}

async fn m5_what_somebody_took_and_forgot_comes_again(cx: Cx) -> Result<()> {
    cx.stores.outbox.add(&task(&cx), jiff::Timestamp::UNIX_EPOCH).await?;
    let forgotten = one(&cx, Duration::from_millis(1)).await?;
    let again = one(&cx, LONG).await?;
    ensure!(again.entry.id == forgotten.entry.id && again.receipt != forgotten.receipt);
    ensure!(!cx.stores.outbox.done(&forgotten).await?);
    ensure!(cx.stores.outbox.done(&again).await?);
    Ok(())
}

async fn of_many_takers_each_gets_its_own(cx: Cx) -> Result<()> {
    for _ in 0..40 {
        cx.stores.outbox.add(&task(&cx), jiff::Timestamp::UNIX_EPOCH).await?;
    }
    let takers = (0..8).map(|_| {
        let cx = cx.clone();
        async move {
            let mut taken = Vec::new();
            // Others may have locked what is left just now.
            for _ in 0..10 {
                taken.extend(cx.stores.outbox.take(3, LONG).await?);
            }
            anyhow::Ok(taken)
        }
    });
    let taken: Vec<Delivery> = join_all(takers).await.into_iter().collect::<Result<Vec<_>>>()?.concat();
    let ids: BTreeSet<_> = taken.iter().map(|delivery| delivery.entry.id).collect();
    ensure!((taken.len(), ids.len()) == (40, 40), "{} taken, {} entries", taken.len(), ids.len());
    Ok(())
}

async fn what_is_not_due_waits(cx: Cx) -> Result<()> {
    let later = now() + Duration::from_secs(3600);
    cx.stores.outbox.add(&task(&cx), later).await?;
    ensure!(cx.stores.outbox.take(10, LONG).await?.is_empty());
    ensure!(cx.stores.outbox.waiting().await? == (1, Some(later)));
    Ok(())
}
