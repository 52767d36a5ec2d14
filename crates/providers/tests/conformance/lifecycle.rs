//! The rules of the provider contract, a case for each.

use super::{
    kit::{Sandbox, ensure_kind, error_of, eventually, guest_of, guest_with},
    suite::{Cx, cases, clean, skip},
};
use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, future::join_all};
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    files::FileRef,
    hello::Role,
    sandbox::{Limits, SandboxSpec},
};
use seawall_core::ports::{BoxEvent, BoxEvents, BoxInfo, BoxState, Volumes};
use std::time::Duration;
use tokio::time::timeout;

cases!("lifecycle";
    p1_create_twice_is_once;
    p1_creates_at_the_same_time_make_one_box;
    p1_create_starts_nothing;
    create_with_another_spec_conflicts;
    p1_start_stop_and_remove_work_from_any_state;
    p1_remove_keeps_the_volume;
    p1_remove_deletes_the_volume_when_told;
    s12_boxes_share_a_volume_by_its_name;
    stop_keeps_the_files;
    p1_get_and_list_tell_the_truth;
    boxes_are_found_again_by_another_host_process [Durable];
    what_another_host_process_does_is_seen [Durable];
    boxes_of_another_installation_are_left_alone;
    p1_watch_tells_the_present_then_each_change;
    watch_tells_that_a_guest_died;
    p9_what_is_missing_is_not_found;
    p9_a_box_that_does_not_run_is_stopped;
    limits_that_cannot_be_enforced_are_refused;
    an_image_is_refused_where_none_is_taken [NoImages];
    connections_are_given_as_often_as_asked;
    a_restart_is_another_boot;
    boxes_do_not_share_files;
    an_older_control_wire_is_refused;
);

const GRACE: Duration = Duration::from_secs(2);

fn spec() -> SandboxSpec {
    SandboxSpec::default()
}

fn labelled() -> SandboxSpec {
    SandboxSpec { labels: [("team".into(), "red".into())].into(), ..spec() }
}

async fn p1_create_twice_is_once(cx: Cx) -> Result<()> {
    let id = SandboxId::generate();
    let first = cx.provider.create(id, &labelled(), AccountId::LOCAL).await?;
    let second = cx.provider.create(id, &labelled(), AccountId::LOCAL).await?;
    ensure!(first == second, "{first:?} is not {second:?}");
    ensure!(first.spec == labelled(), "the spec is kept");
    ensure!(cx.provider.list().await?.len() == 1);
    cx.provider.start(id).await?;
    let running = cx.provider.create(id, &labelled(), AccountId::LOCAL).await?;
    ensure!(running.state == BoxState::Running, "a second create stopped it: {running:?}");
    Ok(())
}

async fn p1_creates_at_the_same_time_make_one_box(cx: Cx) -> Result<()> {
    let id = SandboxId::generate();
    let made = join_all((0..8).map(|_| {
        let provider = cx.provider.clone();
        tokio::spawn(async move { provider.create(id, &spec(), AccountId::LOCAL).await })
    }));
    let mut times = Vec::new();
    for info in made.await {
        times.push(info??.created_at);
    }
    times.dedup();
    ensure!(times.len() == 1, "several boxes were made: {times:?}");
    ensure!(cx.provider.list().await?.len() == 1);
    Ok(())
}

async fn p1_create_starts_nothing(cx: Cx) -> Result<()> {
    let id = SandboxId::generate();
    let info = cx.provider.create(id, &spec(), AccountId::LOCAL).await?;
    ensure!(info.state == BoxState::Created, "{info:?}");
    ensure!(info.pid.is_none(), "something runs: {info:?}");
    ensure!(cx.provider.get(id).await?.state == BoxState::Created);
    ensure_kind(cx.provider.connect(id).await, &[ErrorKind::Stopped])
}

async fn create_with_another_spec_conflicts(cx: Cx) -> Result<()> {
    let id = SandboxId::generate();
    cx.provider.create(id, &spec(), AccountId::LOCAL).await?;
    ensure_kind(cx.provider.create(id, &labelled(), AccountId::LOCAL).await, &[ErrorKind::Conflict])?;
    ensure!(cx.provider.get(id).await?.spec == spec(), "the first one stays as it was");
    Ok(())
}

async fn p1_start_stop_and_remove_work_from_any_state(cx: Cx) -> Result<()> {
    let id = SandboxId::generate();
    let provider = &cx.provider;
    provider.remove(id, Volumes::Keep).await.context("remove what never was")?;
    provider.create(id, &spec(), AccountId::LOCAL).await?;
    provider.stop(id, GRACE).await.context("stop what never ran")?;
    let started = provider.start(id).await?;
    ensure!(started.state == BoxState::Running, "{started:?}");
    let again = provider.start(id).await.context("start what runs")?;
    ensure!(again.pid == started.pid, "a second start replaced the guest");
    for _ in 0..2 {
        provider.stop(id, GRACE).await?;
        ensure!(provider.get(id).await?.state == BoxState::Stopped);
    }
    provider.start(id).await.context("start what was stopped")?;
    guest_of(provider, id).info().await?;
    for _ in 0..2 {
        provider.remove(id, Volumes::Delete).await.context("remove")?;
        ensure_kind(provider.get(id).await, &[ErrorKind::NotFound])?;
    }
    provider.create(id, &spec(), AccountId::LOCAL).await?;
    provider.start(id).await?;
    provider.stop(id, GRACE).await?;
    provider.remove(id, Volumes::Delete).await.context("remove what was stopped")?;
    Ok(())
}

async fn p1_remove_keeps_the_volume(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    sandbox.put("kept.txt", b"still here").await?;
    cx.provider.remove(sandbox.id, Volumes::Keep).await?;
    ensure_kind(cx.provider.get(sandbox.id).await, &[ErrorKind::NotFound])?;
    cx.provider.create(sandbox.id, &spec(), AccountId::LOCAL).await?;
    cx.provider.start(sandbox.id).await?;
    ensure!(sandbox.take("kept.txt").await? == b"still here");
    Ok(())
}

async fn p1_remove_deletes_the_volume_when_told(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    sandbox.put("gone.txt", b"x").await?;
    cx.provider.remove(sandbox.id, Volumes::Delete).await?;
    cx.provider.create(sandbox.id, &spec(), AccountId::LOCAL).await?;
    cx.provider.start(sandbox.id).await?;
    let found = sandbox.guest.stat(FileRef::new("gone.txt"), true).await;
    ensure_kind(found, &[ErrorKind::NotFound])
}

async fn s12_boxes_share_a_volume_by_its_name(cx: Cx) -> Result<()> {
    const NAME: &str = "local.team-1";
    let shares = SandboxSpec { volume: Some(NAME.to_owned()), ..spec() };
    let ids: Vec<_> = (0..3).map(|_| SandboxId::generate()).collect();
    let begin = async |id: SandboxId| {
        let made = cx.provider.create(id, &shares, AccountId::LOCAL).await?;
        ensure!(made.volume.contains(NAME), "{made:?}");
        cx.provider.start(id).await?;
        anyhow::Ok(Sandbox { id, guest: guest_of(&cx.provider, id) })
    };
    ensure!(!cx.provider.has_volume(NAME).await?);
    let first = begin(ids[0]).await?;
    ensure!(cx.provider.has_volume(NAME).await?);
    first.put("shared.txt", b"one").await?;
    let second = begin(ids[1]).await?;
    ensure!(second.take("shared.txt").await? == b"one");
    second.put("shared.txt", b"two").await?;
    ensure!(first.take("shared.txt").await? == b"two");
    // Neither the end of one nor of the last takes the files of others along.
    cx.provider.remove(ids[0], Volumes::Delete).await?;
    ensure!(second.take("shared.txt").await? == b"two");
    ensure_kind(cx.provider.remove_volume(NAME).await, &[ErrorKind::Conflict])?;
    cx.provider.stop(ids[1], GRACE).await?;
    ensure_kind(cx.provider.remove_volume(NAME).await, &[ErrorKind::Conflict])?;
    cx.provider.remove(ids[1], Volumes::Delete).await?;
    let third = begin(ids[2]).await?;
    ensure!(third.take("shared.txt").await? == b"two");
    cx.provider.remove(ids[2], Volumes::Keep).await?;
    let known = cx.provider.volumes().await?;
    ensure!(known.iter().any(|volume| volume.name == NAME && !volume.in_use), "{known:?}");
    cx.provider.remove_volume(NAME).await?;
    ensure!(!cx.provider.has_volume(NAME).await?);
    for missing in [NAME, "..", ".", "../boxes", "local.team-2", ""] {
        ensure_kind(cx.provider.remove_volume(missing).await, &[ErrorKind::NotFound])?;
    }
    Ok(())
}

async fn stop_keeps_the_files(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    sandbox.put("file", b"body").await?;
    cx.provider.stop(sandbox.id, GRACE).await?;
    cx.provider.start(sandbox.id).await?;
    ensure!(sandbox.take("file").await? == b"body");
    Ok(())
}

async fn p1_get_and_list_tell_the_truth(cx: Cx) -> Result<()> {
    let ids: Vec<_> = (0..3).map(|_| SandboxId::generate()).collect();
    for id in &ids {
        cx.provider.create(*id, &labelled(), AccountId::LOCAL).await?;
    }
    cx.provider.start(ids[0]).await?;
    cx.provider.start(ids[1]).await?;
    cx.provider.stop(ids[1], GRACE).await?;
    let wanted = [BoxState::Running, BoxState::Stopped, BoxState::Created];
    let listed = cx.provider.list().await?;
    ensure!(listed.len() == 3, "{listed:?}");
    for (id, state) in ids.iter().zip(wanted) {
        let info = cx.provider.get(*id).await?;
        ensure!(info.state == state, "{info:?} is not {state:?}");
        ensure!(info.spec == labelled() && !info.volume.is_empty(), "{info:?}");
        ensure!(listed.contains(&info), "list has another view than get: {listed:?}, {info:?}");
    }
    let stopped = cx.provider.get(ids[1]).await?;
    let reason = stopped.reason.context("why it does not run")?;
    ensure!(reason.to_string() == "stopped", "{reason}");
    Ok(())
}

async fn boxes_are_found_again_by_another_host_process(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox_of(&labelled()).await?;
    let before = cx.provider.get(sandbox.id).await?;
    let other = cx.fixture.reopen()?;
    let after = other.get(sandbox.id).await?;
    ensure!(before == after, "{before:?} became {after:?}");
    ensure!(other.list().await? == [after]);
    guest_of(&other, sandbox.id).info().await.context("its guest answers")?;
    ensure!(other.create(sandbox.id, &labelled(), AccountId::LOCAL).await?.state == BoxState::Running);
    Ok(())
}

async fn what_another_host_process_does_is_seen(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let other = cx.fixture.reopen()?;
    other.stop(sandbox.id, GRACE).await?;
    ensure!(cx.provider.get(sandbox.id).await?.state == BoxState::Stopped);
    other.start(sandbox.id).await?;
    ensure!(cx.provider.get(sandbox.id).await?.state == BoxState::Running);
    guest_of(&cx.provider, sandbox.id).info().await?;
    other.remove(sandbox.id, Volumes::Delete).await?;
    ensure_kind(cx.provider.get(sandbox.id).await, &[ErrorKind::NotFound])
}

async fn boxes_of_another_installation_are_left_alone(cx: Cx) -> Result<()> {
    let neighbour = cx.fixture.elsewhere()?;
    let theirs = neighbour.provider();
    let id = SandboxId::generate();
    theirs.create(id, &spec(), AccountId::LOCAL).await?;
    theirs.start(id).await?;
    let ours = cx.provider.list().await?;
    let got = cx.provider.get(id).await;
    cx.provider.remove(id, Volumes::Delete).await?;
    let still = theirs.get(id).await;
    clean(theirs.as_ref()).await?;
    ensure!(ours.is_empty(), "{ours:?}");
    ensure_kind(got, &[ErrorKind::NotFound])?;
    ensure!(still?.state == BoxState::Running);
    Ok(())
}

/// The next event that fits; others may come between, as a change may be told twice.
async fn event(events: &mut BoxEvents, fits: impl Fn(&BoxEvent) -> bool) -> Result<BoxEvent> {
    let search = async {
        while let Some(event) = events.next().await {
            let event = event?;
            if fits(&event) {
                return Ok(event);
            }
        }
        bail!("the stream ended")
    };
    timeout(Duration::from_secs(30), search).await.context("the event did not come")?
}

fn is(id: SandboxId, state: BoxState) -> impl Fn(&BoxEvent) -> bool {
    move |event| matches!(event, BoxEvent::Is(info) if info.id == id && info.state == state)
}

async fn p1_watch_tells_the_present_then_each_change(cx: Cx) -> Result<()> {
    let first = cx.sandbox().await?.id;
    let mut events = cx.provider.watch().await?;
    let mut present: Vec<Box<BoxInfo>> = Vec::new();
    loop {
        match event(&mut events, |_| true).await? {
            BoxEvent::Is(info) => present.push(info),
            BoxEvent::Ready => break,
            BoxEvent::Gone(id) => bail!("{id} is gone before it was there"),
        }
    }
    ensure!(present.len() == 1 && present[0].id == first, "{present:?}");
    ensure!(present[0].state == BoxState::Running, "{present:?}");
    let id = SandboxId::generate();
    cx.provider.create(id, &spec(), AccountId::LOCAL).await?;
    event(&mut events, is(id, BoxState::Created)).await.context("created")?;
    cx.provider.start(id).await?;
    event(&mut events, is(id, BoxState::Running)).await.context("running")?;
    cx.provider.stop(id, GRACE).await?;
    event(&mut events, is(id, BoxState::Stopped)).await.context("stopped")?;
    cx.provider.remove(id, Volumes::Delete).await?;
    event(&mut events, |event| *event == BoxEvent::Gone(id)).await.context("gone")?;
    Ok(())
}

async fn watch_tells_that_a_guest_died(cx: Cx) -> Result<()> {
    let id = cx.sandbox().await?.id;
    let mut events = cx.provider.watch().await?;
    event(&mut events, |event| *event == BoxEvent::Ready).await?;
    cx.fixture.crash_guest(id).await?;
    event(&mut events, is(id, BoxState::Stopped)).await?;
    Ok(())
}

async fn p9_what_is_missing_is_not_found(cx: Cx) -> Result<()> {
    let id = SandboxId::generate();
    let not_found = [ErrorKind::NotFound];
    ensure_kind(cx.provider.get(id).await, &not_found)?;
    ensure_kind(cx.provider.start(id).await, &not_found)?;
    ensure_kind(cx.provider.connect(id).await, &not_found)?;
    let error = error_of(cx.provider.get(id).await)?;
    ensure!(!error.is_retryable(), "trying again would not help");
    ensure!(error.to_string().contains(&id.to_string()), "it does not say which: {error}");
    Ok(())
}

async fn p9_a_box_that_does_not_run_is_stopped(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    cx.provider.stop(sandbox.id, GRACE).await?;
    ensure_kind(cx.provider.connect(sandbox.id).await, &[ErrorKind::Stopped])?;
    ensure_kind(guest_of(&cx.provider, sandbox.id).info().await, &[ErrorKind::Stopped])
}

async fn limits_that_cannot_be_enforced_are_refused(cx: Cx) -> Result<()> {
    let can = cx.provider.capabilities().limits;
    let all = [
        (can.cpus, Limits { cpus: Some(0.5), ..Limits::default() }),
        (can.memory, Limits { memory_mb: Some(64), ..Limits::default() }),
        (can.disk, Limits { disk_mb: Some(64), ..Limits::default() }),
        (can.processes, Limits { max_processes: Some(16), ..Limits::default() }),
        (can.disk_io, Limits { disk_io_mb_s: Some(16), ..Limits::default() }),
        (can.disk_io, Limits { disk_iops: Some(100), ..Limits::default() }),
    ];
    let mut refused = 0;
    for (_, limits) in all.into_iter().filter(|(enforced, _)| !enforced) {
        let asked = SandboxSpec { limits, ..spec() };
        let error = error_of(cx.provider.create(SandboxId::generate(), &asked, AccountId::LOCAL).await)?;
        ensure!(error.kind() == ErrorKind::LimitUnenforceable, "{error}");
        let name = limits.named().join(" ");
        ensure!(error.to_string().contains(&name), "it does not name `{name}`: {error}");
        refused += 1;
    }
    ensure!(cx.provider.list().await?.is_empty(), "a refused box was made");
    if refused == 0 {
        return skip("it enforces every limit");
    }
    Ok(())
}

async fn an_image_is_refused_where_none_is_taken(cx: Cx) -> Result<()> {
    let asked = SandboxSpec { image: Some("debian:12".into()), ..spec() };
    let made = cx.provider.create(SandboxId::generate(), &asked, AccountId::LOCAL).await;
    ensure_kind(made, &[ErrorKind::Unsupported, ErrorKind::Invalid])?;
    ensure!(cx.provider.list().await?.is_empty(), "a refused box was made");
    Ok(())
}

async fn connections_are_given_as_often_as_asked(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let guests: Vec<_> = (0..8).map(|_| guest_of(&cx.provider, sandbox.id)).collect();
    for info in join_all(guests.iter().map(|guest| guest.info())).await {
        info?;
    }
    for guest in &guests {
        guest.info().await.context("each wire stays")?;
    }
    Ok(())
}

async fn a_restart_is_another_boot(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let first = sandbox.guest.info().await?.boot;
    ensure!(sandbox.guest.info().await?.boot == first);
    cx.provider.stop(sandbox.id, GRACE).await?;
    cx.provider.start(sandbox.id).await?;
    ensure!(guest_of(&cx.provider, sandbox.id).info().await?.boot != first);
    Ok(())
}

async fn boxes_do_not_share_files(cx: Cx) -> Result<()> {
    let (one, two) = (cx.sandbox().await?, cx.sandbox().await?);
    one.put("mine", b"1").await?;
    let found = two.guest.stat(FileRef::new("mine"), true).await;
    ensure_kind(found, &[ErrorKind::NotFound])
}

async fn an_older_control_wire_is_refused(cx: Cx) -> Result<()> {
    let id = cx.sandbox().await?.id;
    let control = |epoch| guest_with(&cx.provider, id, Role::Control { epoch });
    let second = control(2);
    second.info().await?;
    ensure_kind(control(1).info().await, &[ErrorKind::Conflict])?;
    second.info().await.context("the refused one did no harm")?;
    control(3).info().await.context("a newer one takes over")?;
    let refused =
        eventually(|| async { second.info().await.is_err_and(|error| error.kind() == ErrorKind::Conflict) });
    ensure!(refused.await, "the older one still works");
    Ok(())
}
