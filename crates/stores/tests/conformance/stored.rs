use super::{kit::Cx, suite::cases};
use anyhow::{Result, ensure};
use futures::future::join_all;
use seawall_core::ports::store::StoredPlace;

cases!("stored";
    k8_what_is_added_is_counted_by_account;
    k8_no_count_falls_below_zero;
    k8_adding_at_once_loses_nothing;
    k8_a_listing_replaces_what_was_counted;
    k8_places_are_listed_in_pages;
    k8_what_is_forgotten_is_not_counted;
);

const PLACE: &str = "s3://bucket/docs/one";

async fn k8_what_is_added_is_counted_by_account(cx: Cx) -> Result<()> {
    let stored = &cx.stores.stored;
    ensure!(stored.total(cx.account).await? == 0);
    ensure!(stored.add(cx.account, PLACE, 100).await? == 0);
    ensure!(stored.add(cx.account, PLACE, 20).await? == 0);
    ensure!(stored.add(cx.account, "s3://bucket/docs/two", 3).await? == 0);
    // The same place of another is another's.
    stored.add(cx.stranger, PLACE, 5000).await?;
    ensure!(stored.total(cx.account).await? == 123);
    ensure!(stored.total(cx.stranger).await? == 5000);
    stored.add(cx.account, PLACE, 1 << 45).await?;
    ensure!(stored.total(cx.account).await? == (1 << 45) + 123);
    Ok(())
}

async fn k8_no_count_falls_below_zero(cx: Cx) -> Result<()> {
    let stored = &cx.stores.stored;
    stored.add(cx.account, "new", -7).await?;
    ensure!(stored.total(cx.account).await? == 0);
    stored.add(cx.account, PLACE, 5).await?;
    stored.add(cx.account, PLACE, -9).await?;
    stored.add(cx.account, PLACE, 4).await?;
    ensure!(stored.total(cx.account).await? == 4);
    Ok(())
}

async fn k8_adding_at_once_loses_nothing(cx: Cx) -> Result<()> {
    let adds = (0..32).map(|number| {
        let cx = cx.clone();
        async move { cx.stores.stored.add(cx.account, PLACE, if number % 2 == 0 { 10 } else { 3 }).await }
    });
    for done in join_all(adds).await {
        done?;
    }
    ensure!(cx.stores.stored.total(cx.account).await? == 16 * 13);
    Ok(())
}

async fn k8_a_listing_replaces_what_was_counted(cx: Cx) -> Result<()> {
    let stored = &cx.stores.stored;
    stored.add(cx.account, PLACE, 100).await?;
    stored.set(cx.account, PLACE, 40).await?;
    ensure!(stored.total(cx.account).await? == 40);
    // Whoever adds knows that a listing came in between.
    ensure!(stored.add(cx.account, PLACE, 2).await? == 1);
    stored.set(cx.account, PLACE, 0).await?;
    ensure!(stored.add(cx.account, PLACE, 1).await? == 2);
    stored.set(cx.account, "never added", 9).await?;
    ensure!(stored.add(cx.account, "never added", 0).await? == 1);
    ensure!(stored.total(cx.account).await? == 10);
    Ok(())
}

async fn k8_places_are_listed_in_pages(cx: Cx) -> Result<()> {
    let stored = &cx.stores.stored;
    for (number, place) in ["b", "a/x", "c", "a"].into_iter().enumerate() {
        stored.add(cx.account, place, number as i64).await?;
    }
    stored.add(cx.stranger, "b", 77).await?;
    let names = |found: Vec<StoredPlace>| found.into_iter().map(|one| one.place).collect::<Vec<_>>();
    ensure!(names(stored.places(cx.account, None, 3).await?) == ["a", "a/x", "b"]);
    ensure!(names(stored.places(cx.account, Some("b"), 3).await?) == ["c"]);
    let first = stored.places(cx.account, None, 1).await?.remove(0);
    ensure!(first == StoredPlace { account: cx.account, place: "a".into(), bytes: 3 });
    // Of all accounts, each once, in one order.
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = stored.all_places(after.as_ref(), 2).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.clone());
        seen.extend(page);
    }
    ensure!(seen.len() == 5, "{seen:?}");
    let mut sorted = seen.clone();
    sorted.sort_by_key(|one| (one.account, one.place.clone()));
    ensure!(seen == sorted);
    Ok(())
}

async fn k8_what_is_forgotten_is_not_counted(cx: Cx) -> Result<()> {
    let stored = &cx.stores.stored;
    stored.add(cx.account, PLACE, 100).await?;
    stored.forget(cx.stranger, PLACE).await?;
    ensure!(stored.total(cx.account).await? == 100);
    for _ in 0..2 {
        stored.forget(cx.account, PLACE).await?;
        ensure!(stored.total(cx.account).await? == 0 && stored.places(cx.account, None, 9).await?.is_empty());
    }
    ensure!(stored.add(cx.account, PLACE, 1).await? == 0, "it is new");
    Ok(())
}
