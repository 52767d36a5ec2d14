use super::{
    kit::{Cx, at, ensure_kind, now, sandbox},
    suite::cases,
};
use anyhow::{Result, ensure};
use futures::future::join_all;
use seawall_api::{
    ErrorKind, HookRunId, SandboxId, TurnId,
    sandbox::{EndReason, Limits, SandboxSpec, SandboxState, Timeouts},
};
use seawall_core::ports::{
    Volumes,
    store::{HookOutcome, HookRun, MAX_METADATA, MAX_METADATA_KEYS, Page, SandboxFilter, SandboxRow},
};
use serde_json::json;

cases!("sandboxes";
    a_row_comes_back_as_it_was;
    an_id_and_a_name_are_taken_once;
    v3_a_row_changes_only_from_what_was_read;
    v3_of_many_changes_at_once_each_is_seen_or_refused;
    v6_metadata_is_merged_whatever_others_do;
    k5_metadata_has_a_bound_that_holds_for_merges_at_once;
    sizes_are_told_before_rows_are_read;
    use_is_noted_forward_and_changes_no_version;
    lists_are_filtered_and_paged;
    a_node_finds_its_own;
    rounds_read_heads_of_rows;
    v2_what_was_ended_is_kept_and_not_in_the_way;
    v2_of_what_was_ended_nothing_is_a_nodes;
    v2_what_was_ended_can_be_made_again;
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

async fn k5_metadata_has_a_bound_that_holds_for_merges_at_once(cx: Cx) -> Result<()> {
    let row = cx.stores.sandboxes.insert(&sandbox(cx.account)).await?;
    let merge = async |changes: serde_json::Value| {
        cx.stores.sandboxes.merge_metadata(cx.account, row.id, changes.as_object().unwrap()).await
    };
    // Each alone would fit.
    let large = "x".repeat(MAX_METADATA / 3);
    let done = join_all((0..6).map(|number| merge(json!({format!("key-{number}"): large})))).await;
    ensure!(done.iter().filter(|done| done.is_ok()).count() == 2, "{}", done.len());
    let refused = done.into_iter().find_map(Result::err).unwrap();
    ensure!((refused.kind(), refused.code()) == (ErrorKind::TooLarge, "metadata_too_large"), "{refused:?}");
    // What the service notes is never refused, and what becomes smaller neither.
    merge(json!({"last_place": "x".repeat(MAX_METADATA)})).await?;
    let there = cx.stores.sandboxes.get(cx.account, row.id).await?.metadata;
    let mine: Vec<_> = there.keys().filter(|key| key.starts_with("key-")).cloned().collect();
    merge(json!({mine[0].clone(): null})).await?;
    let many: serde_json::Map<_, _> = (0..=MAX_METADATA_KEYS).map(|n| (format!("k{n}"), json!(1))).collect();
    ensure_kind(merge(json!(many)).await, ErrorKind::TooLarge)
}

async fn sizes_are_told_before_rows_are_read(cx: Cx) -> Result<()> {
    let store = &cx.stores.sandboxes;
    for size in [10, 5000] {
        let row = store.insert(&SandboxRow { created_at: at(size), ..sandbox(cx.account) }).await?;
        let text = "é".repeat(usize::try_from(size)?);
        store.merge_metadata(cx.account, row.id, json!({"text": text}).as_object().unwrap()).await?;
    }
    let sizes = store.sizes(cx.account, &SandboxFilter::default(), &Page::first(9)).await?;
    // Newest first, in bytes.
    ensure!(sizes.len() == 2 && sizes[0] >= 10_000 && sizes[1] < 1000, "{sizes:?}");
    let one = store.sizes(cx.account, &SandboxFilter::default(), &Page::first(1)).await?;
    ensure!(one == sizes[..1]);
    let none = SandboxFilter { state: Some(SandboxState::Lost), ..SandboxFilter::default() };
    ensure!(store.sizes(cx.account, &none, &Page::first(9)).await?.is_empty());
    let named = SandboxFilter { name: Some("x".into()), ..SandboxFilter::default() };
    ensure!(store.sizes(cx.account, &named, &Page::first(9)).await?.is_empty());
    Ok(())
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

/// What a user put into a row is not part of it, and what rounds decide by is.
async fn rounds_read_heads_of_rows(cx: Cx) -> Result<()> {
    let store = &cx.stores.sandboxes;
    let timeouts = Timeouts { idle_seconds: Some(60), max_lifetime_seconds: None };
    let spec = SandboxSpec {
        timeouts,
        volume: Some("a.shared".into()),
        labels: [("zero".to_owned(), "\0 ☃".to_owned())].into(),
        ..SandboxSpec::default()
    };
    let mut made = Vec::new();
    for (second, node) in [(3, Some("a")), (1, Some("a")), (2, Some("b")), (4, None)] {
        let (node, spec) = (node.map(str::to_owned), spec.clone());
        let row = SandboxRow { node, spec, created_at: at(second), ..sandbox(cx.account) };
        made.push(store.insert(&row).await?);
    }
    let heads = async |node, page: Page| store.heads_of_node(node, &page).await;
    let first = heads(Some("a"), Page::first(1)).await?;
    ensure!(first.items == [made[1].head()]);
    let rest = heads(Some("a"), Page::first(1).after(first.next.unwrap())).await?;
    ensure!(rest.items == [made[0].head()] && rest.next.is_none());
    ensure!(heads(None, Page::first(9)).await?.items == [made[3].head()]);
    // A change is seen.
    let changed = SandboxRow {
        state: SandboxState::Stopped,
        reason: Some(EndReason::Idle),
        removing: Some(Volumes::Keep),
        unsynced: Some("the bucket is down".into()),
        started_at: Some(at(9)),
        template: Some("shell".into()),
        spec: SandboxSpec::default(),
        ..made[2].clone()
    };
    let changed = store.update(&changed).await?;
    ensure!(store.head(changed.id).await? == Some(changed.head()));
    ensure!(changed.head().timeouts.is_empty() && changed.head().volume.is_none());
    store.update(&ended(changed.clone())).await?;
    ensure!(heads(Some("b"), Page::first(9)).await?.items.is_empty());
    ensure!(store.head(changed.id).await?.is_some_and(|head| head.state == SandboxState::Terminated));
    ensure!(store.head(SandboxId::generate()).await?.is_none());
    Ok(())
}

fn ended(row: SandboxRow) -> SandboxRow {
    SandboxRow { state: SandboxState::Terminated, reason: Some(EndReason::Terminated), ..row }
}

async fn v2_what_was_ended_is_kept_and_not_in_the_way(cx: Cx) -> Result<()> {
    let store = &cx.stores.sandboxes;
    let named = |second| SandboxRow {
        name: Some("web".into()),
        template: Some("shell".into()),
        created_at: at(second),
        ..sandbox(cx.account)
    };
    let list = async |state: Option<SandboxState>, name: Option<&str>| -> Result<Vec<SandboxId>> {
        let filter = SandboxFilter { state, name: name.map(str::to_owned) };
        let (mut found, mut page) = (Vec::new(), Page::first(1));
        loop {
            let part = store.list(cx.account, &filter, &page).await?;
            found.extend(part.items.into_iter().map(|row| row.id));
            let Some(next) = part.next else { return Ok(found) };
            page = Page::first(1).after(next);
        }
    };
    let gone = Some(SandboxState::Terminated);
    let mut made = Vec::new();
    for second in 0..3 {
        // Its name is free again each time.
        let row = store.insert(&named(second)).await?;
        ensure_kind(store.insert(&named(9)).await, ErrorKind::Conflict)?;
        ensure!(list(None, None).await? == [row.id]);
        ensure!(list(None, Some("web")).await? == [row.id]);
        let row = store.update(&ended(row)).await?;
        // Whoever knows its id finds it.
        ensure!(
            store.get(cx.account, row.id).await? == row && store.find(row.id).await? == Some(row.clone())
        );
        ensure!(list(None, None).await?.is_empty() && list(None, Some("web")).await?.is_empty());
        made.push(row.id);
        let newest_first: Vec<_> = made.iter().rev().copied().collect();
        ensure!(list(gone, None).await? == newest_first);
        ensure!(list(gone, Some("web")).await? == newest_first);
        ensure!(list(gone, Some("other")).await?.is_empty());
    }
    ensure!(list(Some(SandboxState::Creating), None).await?.is_empty());
    // Its id is taken for good, by whomever.
    let again = SandboxRow { id: made[0], ..sandbox(cx.stranger) };
    ensure_kind(store.insert(&again).await, ErrorKind::AlreadyExists)?;
    store.remove(cx.account, made[0]).await?;
    ensure!(list(gone, None).await? == [made[2], made[1]]);
    Ok(())
}

async fn v2_of_what_was_ended_nothing_is_a_nodes(cx: Cx) -> Result<()> {
    let store = &cx.stores.sandboxes;
    for node in [Some("a"), None] {
        let mut made = Vec::new();
        for second in 0..4 {
            let node = node.map(str::to_owned);
            let row = SandboxRow { node, created_at: at(second), ..sandbox(cx.account) };
            made.push(store.insert(&row).await?);
        }
        store.update(&ended(made[0].clone())).await?;
        store.update(&ended(made[2].clone())).await?;
        let first = store.of_node(node, &Page::first(1)).await?;
        ensure!(first.items == [made[1].clone()]);
        let rest = store.of_node(node, &Page::first(9).after(first.next.unwrap())).await?;
        ensure!(rest.items == [made[3].clone()] && rest.next.is_none());
    }
    Ok(())
}

async fn v2_what_was_ended_can_be_made_again(cx: Cx) -> Result<()> {
    let store = &cx.stores.sandboxes;
    let named = || SandboxRow { name: Some("web".into()), ..sandbox(cx.account) };
    let first = store.insert(&named()).await?;
    let merged = json!({"mine": 1}).as_object().unwrap().clone();
    let first = store.merge_metadata(cx.account, first.id, &merged).await?;
    let first = store.update(&ended(first)).await?;
    let second = store.insert(&named()).await?;
    let again = SandboxRow { state: SandboxState::Creating, ..first.clone() };
    // Its name is another's now.
    ensure_kind(store.update(&again).await, ErrorKind::Conflict)?;
    ensure!(store.get(cx.account, first.id).await? == first);
    let nameless = store.update(&SandboxRow { name: None, ..again }).await?;
    ensure!((nameless.state, &nameless.metadata) == (SandboxState::Creating, &merged));
    let all = store.list(cx.account, &SandboxFilter::default(), &Page::first(9)).await?.items;
    ensure!(all.len() == 2 && all.contains(&nameless) && all.contains(&second));
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
        name: Some("git fetch".into()),
        turn_id: Some(TurnId::generate()),
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
