use super::{
    kit::{Cx, ensure_kind},
    suite::cases,
};
use anyhow::{Result, bail, ensure};
use futures::future::join_all;
use seawall_api::ErrorKind;
use seawall_core::ports::store::Begun;
use std::time::Duration;

cases!("idempotency";
    a_repeat_gets_the_first_answer;
    another_request_under_the_key_is_a_conflict;
    of_many_at_once_one_does_it;
    k6_a_call_that_went_silent_is_never_taken_over;
    k6_a_renewed_hold_lasts_whatever_its_length;
    k6_a_call_without_an_answer_is_not_forgotten;
    what_was_given_up_is_free;
    answers_are_forgotten_in_time;
    keys_are_an_accounts_own;
);

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(1);
const REQUEST: [u8; 32] = [1; 32];

async fn take(cx: &Cx, key: &str, time: Duration) -> Result<u64> {
    match cx.stores.idempotency.begin(cx.account, key, &REQUEST, time, LONG).await? {
        Begun::New { receipt } => Ok(receipt),
        other => bail!("{other:?}"),
    }
}

async fn again(cx: &Cx, key: &str) -> seawall_core::Result<Begun> {
    cx.stores.idempotency.begin(cx.account, key, &REQUEST, LONG, LONG).await
}

async fn a_repeat_gets_the_first_answer(cx: Cx) -> Result<()> {
    let receipt = take(&cx, "k", LONG).await?;
    ensure!(again(&cx, "k").await? == Begun::Running);
    for _ in 0..2 {
        cx.stores.idempotency.finish(cx.account, "k", receipt, b"\0answer\xff").await?;
    }
    ensure!(again(&cx, "k").await? == Begun::Done(b"\0answer\xff".as_slice().into()));
    let other = cx.stores.idempotency.finish(cx.account, "k", receipt, b"another").await;
    ensure_kind(other, ErrorKind::Conflict)
}

async fn another_request_under_the_key_is_a_conflict(cx: Cx) -> Result<()> {
    let receipt = take(&cx, "k", LONG).await?;
    let other = || cx.stores.idempotency.begin(cx.account, "k", &[2; 32], LONG, LONG);
    ensure_kind(other().await, ErrorKind::Conflict)?;
    cx.stores.idempotency.finish(cx.account, "k", receipt, b"x").await?;
    ensure_kind(other().await, ErrorKind::Conflict)
}

async fn of_many_at_once_one_does_it(cx: Cx) -> Result<()> {
    let done: Vec<_> =
        join_all((0..16).map(|_| again(&cx, "k"))).await.into_iter().collect::<Result<_, _>>()?;
    let new = done.iter().filter(|begun| matches!(begun, Begun::New { .. })).count();
    let running = done.iter().filter(|begun| **begun == Begun::Running).count();
    ensure!((new, running) == (1, 15));
    Ok(())
}

/// As soon as the hold has ended.
async fn lost(cx: &Cx, key: &str) -> Result<()> {
    loop {
        match again(cx, key).await? {
            Begun::Running => tokio::task::yield_now().await,
            Begun::Lost => return Ok(()),
            other => bail!("{other:?}"),
        }
    }
}

async fn k6_a_call_that_went_silent_is_never_taken_over(cx: Cx) -> Result<()> {
    let keys = &cx.stores.idempotency;
    let late = take(&cx, "k", SHORT).await?;
    lost(&cx, "k").await?;
    ensure!(again(&cx, "k").await? == Begun::Lost, "asking again changes nothing");
    ensure_kind(keys.begin(cx.account, "k", &[2; 32], LONG, LONG).await, ErrorKind::Conflict)?;
    // It was slow, and not dead.
    keys.finish(cx.account, "k", late, b"done").await?;
    ensure!(again(&cx, "k").await? == Begun::Done(b"done".as_slice().into()));
    let late = take(&cx, "free", SHORT).await?;
    lost(&cx, "free").await?;
    keys.abandon(cx.account, "free", late).await?;
    take(&cx, "free", LONG).await?;
    Ok(())
}

async fn k6_a_renewed_hold_lasts_whatever_its_length(cx: Cx) -> Result<()> {
    let keys = &cx.stores.idempotency;
    let (one, two) = (take(&cx, "one", SHORT).await?, take(&cx, "two", SHORT).await?);
    let done = take(&cx, "done", SHORT).await?;
    keys.finish(cx.account, "done", done, b"x").await?;
    lost(&cx, "one").await?;
    lost(&cx, "two").await?;
    ensure!(keys.renew(&[], LONG, LONG).await? == 0);
    ensure!(keys.renew(&[one, done, 7], LONG, LONG).await? == 1, "only what is held can be renewed");
    ensure!(again(&cx, "one").await? == Begun::Running && again(&cx, "two").await? == Begun::Lost);
    ensure!(keys.renew(&[one, two], LONG, LONG).await? == 2);
    ensure!(again(&cx, "two").await? == Begun::Running);
    Ok(())
}

async fn k6_a_call_without_an_answer_is_not_forgotten(cx: Cx) -> Result<()> {
    let keys = &cx.stores.idempotency;
    let Begun::New { receipt } = keys.begin(cx.account, "k", &REQUEST, SHORT, SHORT).await? else {
        bail!("it is new");
    };
    lost(&cx, "k").await?;
    ensure!(keys.expire(10).await? == 0);
    ensure!(again(&cx, "k").await? == Begun::Lost);
    keys.finish(cx.account, "k", receipt, b"x").await?;
    ensure!(keys.expire(10).await? == 1);
    Ok(())
}

async fn what_was_given_up_is_free(cx: Cx) -> Result<()> {
    let receipt = take(&cx, "k", LONG).await?;
    cx.stores.idempotency.abandon(cx.account, "k", receipt).await?;
    take(&cx, "k", LONG).await?;
    Ok(())
}

async fn answers_are_forgotten_in_time(cx: Cx) -> Result<()> {
    for key in ["a", "b"] {
        let begun = cx.stores.idempotency.begin(cx.account, key, &REQUEST, SHORT, SHORT).await?;
        let Begun::New { receipt } = begun else { bail!("{begun:?}") };
        cx.stores.idempotency.finish(cx.account, key, receipt, b"x").await?;
    }
    take(&cx, "kept", LONG).await?;
    let mut gone = 0;
    while gone < 2 {
        gone += cx.stores.idempotency.expire(10).await?;
        tokio::task::yield_now().await;
    }
    ensure!(cx.stores.idempotency.expire(10).await? == 0);
    ensure!(again(&cx, "kept").await? == Begun::Running);
    Ok(())
}

async fn keys_are_an_accounts_own(cx: Cx) -> Result<()> {
    let receipt = take(&cx, "k", LONG).await?;
    let theirs = cx.stores.idempotency.begin(cx.stranger, "k", &[9; 32], LONG, LONG).await?;
    ensure!(matches!(theirs, Begun::New { .. }));
    ensure_kind(cx.stores.idempotency.finish(cx.stranger, "k", receipt, b"x").await, ErrorKind::Conflict)?;
    cx.stores.idempotency.finish(cx.account, "k", receipt, b"x").await?;
    Ok(())
}
