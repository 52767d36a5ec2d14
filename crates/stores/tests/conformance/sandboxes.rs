use super::{
    kit::{Cx, at, ensure_kind, now, sandbox},
    suite::cases,
};
use anyhow::{Result, ensure};
use futures::future::join_all;
use seawall_api::{
    ErrorKind, HookRunId, SandboxId,
    sandbox::{EndReason, Limits, SandboxSpec, SandboxState},
};
use seawall_core::ports::{
    Volumes,
    store::{HookOutcome, HookRun, Page, SandboxFilter, SandboxRow},
};
use serde_json::json;

cases!("sandboxes";
    a_row_comes_back_as_it_was;
    an_id_and_a_name_are_taken_once;
    v3_a_row_changes_only_from_what_was_read;
    v3_of_many_changes_at_once_each_is_seen_or_refused;
    v6_metadata_is_merged_whatever_others_do;
    use_is_noted_forward_and_changes_no_version;
    lists_are_filtered_and_paged;
    a_node_finds_its_own;
    what_is_inserted_soon_is_there_at_once;
    removing_twice_is_removing_once;
    runs_of_hooks_are_kept;
);

async fn a_row_comes_back_as_it_was(cx: Cx) -> Result<()> {
    let limits = Limits { cpus: Some(0.5), memory_mb: Some(64), ..Limits::default() };
    let row = SandboxRow {
        name: Some("mine".into()),
        template: Some("shell".into()),
        spec: SandboxSpec { image: Some("host".into()), limits, ..SandboxSpec::default() },
        state: SandboxState::Failed,
        reason: Some(EndReason::Failed("oom".into())),
        removing: Some(Volumes::Keep),
        unsynced: Some("the bucket is down".into()),
        metadata: json!({"last_synced_at": 5, "nested": {"a": [1]}}).as_object().unwrap().clone(),
        started_at: Some(at(4)),
        ..sandbox(cx.account)
    };
    ensure!(cx.stores.sandboxes.insert(&row).await? == row);
    ensure!(cx.stores.sandboxes.get(cx.account, row.id).await? == row);
    ensure_kind(cx.stores.sandboxes.get(cx.account, SandboxId::generate()).await, ErrorKind::NotFound)
}

async fn an_id_and_a_name_are_taken_once(cx: Cx) -> Result<()> {
    let name = Some("web".to_owned());
    let first = SandboxRow { name: name.clone(), ..sandbox(cx.account) };
    cx.stores.sandboxes.insert(&first).await?;
    cx.stores.sandboxes.insert(&first).await?;
    let other = SandboxRow { provider: "local".into(), ..first.clone() };
    ensure_kind(cx.stores.sandboxes.insert(&other).await, ErrorKind::AlreadyExists)?;
    let theirs = SandboxRow { account_id: cx.stranger, ..first.clone() };
    ensure_kind(cx.stores.sandboxes.insert(&theirs).await, ErrorKind::AlreadyExists)?;
    let second = SandboxRow { name: name.clone(), ..sandbox(cx.account) };
    ensure_kind(cx.stores.sandboxes.insert(&second).await, ErrorKind::Conflict)?;
    // Names are an account's own.
    cx.stores.sandboxes.insert(&SandboxRow { name: name.clone(), ..sandbox(cx.stranger) }).await?;
    let third = cx.stores.sandboxes.insert(&sandbox(cx.account)).await?;
    let renamed = SandboxRow { name, ..third };
    ensure_kind(cx.stores.sandboxes.update(&renamed).await, ErrorKind::Conflict)
}

async fn v3_a_row_changes_only_from_what_was_read(cx: Cx) -> Result<()> {
    let read = cx.stores.sandboxes.insert(&sandbox(cx.account)).await?;
    let running = SandboxRow { state: SandboxState::Running, started_at: Some(at(9)), ..read.clone() };
    let after = cx.stores.sandboxes.update(&running).await?;
    ensure!(after == SandboxRow { version: 2, ..running.clone() });
    // The same call again, its answer having been lost.
    ensure!(cx.stores.sandboxes.update(&running).await? == after);
    let late = SandboxRow { state: SandboxState::Stopped, ..read };
    ensure_kind(cx.stores.sandboxes.update(&late).await, ErrorKind::Conflict)?;
    ensure!(cx.stores.sandboxes.get(cx.account, after.id).await? == after, "memory and database agree");
    let unknown = SandboxRow { id: SandboxId::generate(), ..after };
    ensure_kind(cx.stores.sandboxes.update(&unknown).await, ErrorKind::NotFound)
}

async fn v3_of_many_changes_at_once_each_is_seen_or_refused(cx: Cx) -> Result<()> {
    let read = cx.stores.sandboxes.insert(&sandbox(cx.account)).await?;
    let tries = (0..16).map(|number| {
        let row = SandboxRow { template: Some(format!("t{number}")), ..read.clone() };
        let cx = cx.clone();
        async move { cx.stores.sandboxes.update(&row).await }
    });
    let done = join_all(tries).await;
    let won: Vec<_> = done.iter().flatten().collect();
    ensure!(won.len() == 1, "{} won", won.len());
    ensure!(cx.stores.sandboxes.get(cx.account, read.id).await? == *won[0]);
    Ok(())
}

async fn v6_metadata_is_merged_whatever_others_do(cx: Cx) -> Result<()> {
    let row = cx.stores.sandboxes.insert(&sandbox(cx.account)).await?;
    let merge = async |changes: serde_json::Value| {
        cx.stores.sandboxes.merge_metadata(cx.account, row.id, changes.as_object().unwrap()).await
    };
    let many = (0..10).map(|number| merge(json!({format!("key-{number}"): number})));
    for done in join_all(many).await {
        done?;
    }
    let found = merge(json!({"key-3": null, "key-4": {"deep": true}, "last_synced_at": 7})).await?;
    ensure!(found.metadata.len() == 10);
    ensure!(!found.metadata.contains_key("key-3") && found.metadata["key-4"] == json!({"deep": true}));
    ensure!(cx.stores.sandboxes.get(cx.account, row.id).await? == found);
    // A row that is replaced keeps its metadata.
    let changed =
        SandboxRow { metadata: serde_json::Map::new(), unsynced: Some("x".into()), ..found.clone() };
    ensure!(cx.stores.sandboxes.update(&changed).await?.metadata == found.metadata);
    let stranger = cx.stores.sandboxes.merge_metadata(cx.stranger, row.id, &found.metadata).await;
    ensure_kind(stranger, ErrorKind::NotFound)
}

async fn use_is_noted_forward_and_changes_no_version(cx: Cx) -> Result<()> {
    let row = cx.stores.sandboxes.insert(&SandboxRow { last_used_at: at(1), ..sandbox(cx.account) }).await?;
    for second in [5, 3] {
        cx.stores.sandboxes.touch(cx.account, row.id, at(second)).await?;
    }
    let found = cx.stores.sandboxes.get(cx.account, row.id).await?;
    ensure!((found.last_used_at, found.version) == (at(5), row.version));
    ensure_kind(
        cx.stores.sandboxes.touch(cx.account, SandboxId::generate(), now()).await,
        ErrorKind::NotFound,
    )
}

async fn lists_are_filtered_and_paged(cx: Cx) -> Result<()> {
    let mut made = Vec::new();
    for number in 0..9 {
        let state = if number % 3 == 0 { SandboxState::Running } else { SandboxState::Stopped };
        let row = SandboxRow {
            name: Some(format!("n{number}")),
            state,
            created_at: at(number),
            ..sandbox(cx.account)
        };
        made.push(cx.stores.sandboxes.insert(&row).await?.id);
    }
    cx.stores.sandboxes.insert(&sandbox(cx.stranger)).await?;
    let list = async |filter: SandboxFilter| -> Result<Vec<SandboxId>> {
        let (mut found, mut page) = (Vec::new(), Page::first(2));
        loop {
            let part = cx.stores.sandboxes.list(cx.account, &filter, &page).await?;
            found.extend(part.items.into_iter().map(|row| row.id));
            let Some(next) = part.next else { return Ok(found) };
            page = page.after(next);
        }
    };
    let newest_first: Vec<_> = made.iter().rev().copied().collect();
    ensure!(list(SandboxFilter::default()).await? == newest_first);
    let running = SandboxFilter { state: Some(SandboxState::Running), ..Default::default() };
    ensure!(list(running).await? == [made[6], made[3], made[0]]);
    let named = SandboxFilter { name: Some("n4".into()), ..Default::default() };
    ensure!(list(named.clone()).await? == [made[4]]);
    ensure!(list(SandboxFilter { state: Some(SandboxState::Running), ..named }).await?.is_empty());
    Ok(())
}

async fn a_node_finds_its_own(cx: Cx) -> Result<()> {
    let mut made = Vec::new();
    for (number, node) in [Some("a"), Some("b"), None, Some("a")].into_iter().enumerate() {
        let node = node.map(str::to_owned);
        let account = if number == 3 { cx.stranger } else { cx.account };
        let row = SandboxRow { node, created_at: at(number as i64), ..sandbox(account) };
        made.push(cx.stores.sandboxes.insert(&row).await?);
    }
    let first = cx.stores.sandboxes.of_node(Some("a"), &Page::first(1)).await?;
    ensure!(first.items == [made[0].clone()]);
    let rest = cx.stores.sandboxes.of_node(Some("a"), &Page::first(1).after(first.next.unwrap())).await?;
    ensure!(rest.items == [made[3].clone()] && rest.next.is_none());
    ensure!(cx.stores.sandboxes.of_node(None, &Page::first(9)).await?.items == [made[2].clone()]);
    Ok(())
}

async fn what_is_inserted_soon_is_there_at_once(cx: Cx) -> Result<()> {
    let row = sandbox(cx.account);
    let made = cx.stores.sandboxes.insert_soon(&row).await?;
    ensure!(cx.stores.sandboxes.find(row.id).await? == Some(made.clone()));
    ensure_kind(
        cx.stores.sandboxes.insert_soon(&SandboxRow { provider: "x".into(), ..row }).await,
        ErrorKind::AlreadyExists,
    )?;
    cx.stores.sandboxes.settle(made.id).await?;
    ensure!(cx.stores.sandboxes.find(made.id).await? == Some(made));
    ensure!(cx.stores.sandboxes.find(SandboxId::generate()).await?.is_none());
    Ok(())
}

async fn removing_twice_is_removing_once(cx: Cx) -> Result<()> {
    let row = cx.stores.sandboxes.insert(&sandbox(cx.account)).await?;
    cx.stores.sandboxes.remove(cx.stranger, row.id).await?;
    ensure!(cx.stores.sandboxes.get(cx.account, row.id).await.is_ok());
    for _ in 0..2 {
        cx.stores.sandboxes.remove(cx.account, row.id).await?;
    }
    ensure_kind(cx.stores.sandboxes.get(cx.account, row.id).await, ErrorKind::NotFound)
}

async fn runs_of_hooks_are_kept(cx: Cx) -> Result<()> {
    let sandbox_id = Some(SandboxId::generate());
    let run = |second, sandbox_id| HookRun {
        id: HookRunId::generate(),
        kind: "cold_start".into(),
        template: Some("shell".into()),
        conversation_id: None,
        sandbox_id,
        began_at: at(second),
        outcome: None,
    };
    let runs = [run(0, sandbox_id), run(1, None), run(2, sandbox_id)];
    for run in &runs {
        cx.stores.hook_runs.begin(cx.account, run).await?;
        cx.stores.hook_runs.begin(cx.account, run).await?;
    }
    let failed = HookOutcome { ended_at: at(5), error: Some("exit code 1".into()) };
    cx.stores.hook_runs.end(cx.account, runs[0].id, &failed).await?;
    let other = HookOutcome { ended_at: at(6), error: None };
    cx.stores.hook_runs.end(cx.account, runs[0].id, &other).await?;
    ensure_kind(
        cx.stores.hook_runs.end(cx.account, HookRunId::generate(), &other).await,
        ErrorKind::NotFound,
    )?;
    let all = cx.stores.hook_runs.list(cx.account, None, &Page::first(2)).await?;
    ensure!(all.items == [runs[2].clone(), runs[1].clone()]);
    let of_it = cx.stores.hook_runs.list(cx.account, sandbox_id, &Page::first(9)).await?;
    ensure!(of_it.items == [runs[2].clone(), HookRun { outcome: Some(failed), ..runs[0].clone() }]);
    ensure!(cx.stores.hook_runs.list(cx.stranger, None, &Page::first(9)).await?.items.is_empty());
    Ok(())
}
