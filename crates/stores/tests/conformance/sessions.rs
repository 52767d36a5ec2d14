use super::{
    kit::{Cx, at, ensure_kind},
    suite::cases,
};
use anyhow::{Result, ensure};
use futures::future::join_all;
use seawall_api::{AccountId, ErrorKind, SandboxId};
use seawall_core::ports::store::{Session, SessionScope};

cases!("sessions";
    t3_the_first_open_makes_it_and_later_ones_return_it;
    t3_of_many_at_once_one_makes_it;
    t5_those_not_used_for_long_are_found;
    ending_twice_is_ending_once;
);

fn session(account: AccountId, id: &str) -> Session {
    Session {
        account_id: account,
        scope: SessionScope::Workflow,
        scope_id: id.to_owned(),
        sandbox_id: SandboxId::generate(),
        image: Some("python".into()),
        created_at: at(0),
        last_used_at: at(0),
    }
}

async fn t3_the_first_open_makes_it_and_later_ones_return_it(cx: Cx) -> Result<()> {
    let first = session(cx.account, "w");
    ensure!(cx.stores.sessions.open(&first).await? == (first.clone(), true));
    ensure!(cx.stores.sessions.open(&session(cx.account, "w")).await? == (first.clone(), false));
    ensure!(cx.stores.sessions.get(cx.account, SessionScope::Workflow, "w").await? == first);
    let agent = Session { scope: SessionScope::Agent, ..session(cx.account, "w") };
    ensure!(cx.stores.sessions.open(&agent).await?.1, "scopes are apart");
    ensure!(cx.stores.sessions.open(&session(cx.stranger, "w")).await?.1, "accounts are apart");
    Ok(())
}

async fn t3_of_many_at_once_one_makes_it(cx: Cx) -> Result<()> {
    let tries = (0..16).map(|_| {
        let cx = cx.clone();
        async move { cx.stores.sessions.open(&session(cx.account, "w")).await }
    });
    let done: Vec<_> = join_all(tries).await.into_iter().collect::<Result<_, _>>()?;
    ensure!(done.iter().filter(|(_, made)| *made).count() == 1);
    ensure!(done.iter().all(|(found, _)| *found == done[0].0));
    Ok(())
}

async fn t5_those_not_used_for_long_are_found(cx: Cx) -> Result<()> {
    for id in ["old", "used", "ancient"] {
        cx.stores.sessions.open(&session(cx.account, id)).await?;
    }
    for (id, second) in [("used", 50), ("ancient", 60), ("used", 40)] {
        cx.stores.sessions.touch(cx.account, SessionScope::Workflow, id, at(second)).await?;
    }
    let ids = async |used, made| -> Result<Vec<String>> {
        let found = cx.stores.sessions.expired(at(used), at(made), 10).await?;
        let mut ids: Vec<_> = found.into_iter().map(|session| session.scope_id).collect();
        ids.sort();
        Ok(ids)
    };
    ensure!(ids(50, 0).await? == ["old"]);
    ensure!(ids(51, 0).await? == ["old", "used"]);
    ensure!(ids(0, 1).await? == ["ancient", "old", "used"]);
    let unknown = cx.stores.sessions.touch(cx.account, SessionScope::Agent, "old", at(1)).await;
    ensure_kind(unknown, ErrorKind::NotFound)
}

async fn ending_twice_is_ending_once(cx: Cx) -> Result<()> {
    let made = session(cx.account, "w");
    cx.stores.sessions.open(&made).await?;
    ensure!(cx.stores.sessions.end(cx.stranger, SessionScope::Workflow, "w").await?.is_none());
    ensure!(cx.stores.sessions.end(cx.account, SessionScope::Workflow, "w").await? == Some(made));
    ensure!(cx.stores.sessions.end(cx.account, SessionScope::Workflow, "w").await?.is_none());
    ensure_kind(cx.stores.sessions.get(cx.account, SessionScope::Workflow, "w").await, ErrorKind::NotFound)
}
