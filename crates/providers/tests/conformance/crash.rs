//! What breaks: the guest, the host process, the wire; and many at once.

use super::{
    kit::{Output, attach, ensure_same, eventually, guest_of, long_sleep, pattern, to},
    suite::{Cx, cases},
};
use anyhow::{Context, Result, bail, ensure};
use futures::future::join_all;
use seawall_api::{
    AccountId, SandboxId,
    exec::{ExitReason, StartProcess, WhenFull},
    sandbox::{EndReason, SandboxSpec},
};
use seawall_core::{
    ports::{BoxState, Provider, Volumes},
    testing::{FaultyProvider, Op},
};
use seawall_wire::ProcessOutput;
use std::{sync::Arc, time::Duration};

cases!("crash";
    a_guest_that_died_is_told_and_started_again;
    a_guest_that_died_leaves_no_process;
    a_dead_guest_with_a_stopped_keeper_is_removed [Programs];
    a_process_outlives_the_host_process [Durable];
    output_is_replayed_whole_after_a_restart_of_the_host [Durable, Programs];
    a_wire_cut_in_mid_command_loses_nothing [Programs];
    a_provider_that_fails_for_a_while_is_tried_again;
    removing_while_commands_run;
    fifty_at_once [Room];
);

async fn a_guest_that_died_is_told_and_started_again(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    sandbox.put("file", b"kept").await?;
    cx.fixture.crash_guest(sandbox.id).await?;
    let told = eventually(|| async {
        let info = cx.provider.get(sandbox.id).await;
        info.is_ok_and(|info| {
            info.state == BoxState::Stopped && matches!(info.reason, Some(EndReason::Failed(_)))
        })
    });
    ensure!(told.await, "{:?}", cx.provider.get(sandbox.id).await?);
    cx.provider.start(sandbox.id).await.context("start again")?;
    ensure!(sandbox.take("file").await? == b"kept");
    ensure!(sandbox.run(["true"]).await?.status.success());
    let info = cx.provider.get(sandbox.id).await?;
    ensure!(info.state == BoxState::Running && info.reason.is_none(), "{info:?}");
    Ok(())
}

async fn a_guest_that_died_leaves_no_process(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let mark = long_sleep();
    sandbox.guest.start_detached(StartProcess::new(["sleep", mark.as_str()])).await?;
    if cx.provider.capabilities().programs {
        let script = format!("setsid sleep {mark} & (setsid sleep {mark} &); sleep {mark}");
        let start = StartProcess::new(["sh", "-c", script.as_str()]);
        sandbox.guest.start_detached(start).await?;
        ensure!(eventually(|| async { cx.fixture.alive(&mark).len() >= 4 }).await);
    }
    cx.fixture.crash_guest(sandbox.id).await?;
    cx.none_left(&mark).await
}

async fn a_process_outlives_the_host_process(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let start = StartProcess { stdin: true, ..StartProcess::new(["cat"]) };
    sandbox.guest.start_detached(start.clone()).await?;
    sandbox.guest.input(start.process, b"before ", false).await?;
    sandbox.guest.disconnect().await;
    let other = cx.fixture.reopen()?;
    let guest = guest_of(&other, sandbox.id);
    guest.input(start.process, b"after", true).await?;
    let output = Output::of(guest.attach(attach(start.process, 0)).await?).await?;
    ensure!(output.out() == "before after" && output.status.success(), "{output:?}");
    Ok(())
}

async fn output_is_replayed_whole_after_a_restart_of_the_host(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let script = "i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); sleep 0.02; done";
    let start = StartProcess::new(["sh", "-c", script]);
    let mut process = sandbox.guest.start(start.clone()).await?;
    super::kit::read_until(&mut process, "line 5\n").await?;
    drop(process);
    sandbox.guest.disconnect().await;
    let other = cx.fixture.reopen()?;
    let guest = guest_of(&other, sandbox.id);
    let output = Output::of(guest.attach(attach(start.process, 0)).await?).await?;
    let wanted: String = (0..100).map(|number| format!("line {number}\n")).collect();
    ensure!(output.out() == wanted, "{output:?}");
    let tail = Output::of(guest.attach(attach(start.process, 7)).await?).await?;
    ensure!(tail.out() == wanted[7..], "{tail:?}");
    Ok(())
}

async fn a_wire_cut_in_mid_command_loses_nothing(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let body = pattern(8 << 20);
    sandbox.put("big", &body).await?;
    let faulty = FaultyProvider::new(cx.provider.clone());
    let faults = faulty.faults();
    let provider: Arc<dyn Provider> = Arc::new(faulty);
    faults.cut_after(1_500_000);
    let start = StartProcess { when_full: WhenFull::Block, ..StartProcess::new(["cat", "big"]) };
    let mut process = guest_of(&provider, sandbox.id).start(start).await?;
    let (mut seen, mut reconnects) = (Vec::new(), 0);
    let status = loop {
        match process.next().await? {
            ProcessOutput::Data { bytes, .. } => seen.extend_from_slice(&bytes),
            ProcessOutput::Reconnected => {
                reconnects += 1;
                // The wire that was just made is cut too; the next one holds.
                faults.heal();
            }
            ProcessOutput::End(status) => break status,
            other => bail!("{other:?}"),
        }
    };
    ensure!(reconnects >= 1, "the wire was not cut: this shows nothing");
    ensure!(status.success(), "{status:?}");
    ensure_same(&seen, &body)
}

async fn a_provider_that_fails_for_a_while_is_tried_again(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let faulty = FaultyProvider::new(cx.provider.clone());
    let faults = faulty.faults();
    let provider: Arc<dyn Provider> = Arc::new(faulty);
    faults.fail(Op::Connect, 2, seawall_api::ErrorKind::Unavailable);
    faults.delay(Op::Connect, Duration::from_millis(50));
    guest_of(&provider, sandbox.id).info().await?;
    Ok(())
}

async fn removing_while_commands_run(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let mark = long_sleep();
    let start = || StartProcess::new(["sleep", mark.as_str()]);
    let mut running = Vec::new();
    for _ in 0..5 {
        running.push(tokio::spawn(Output::of(sandbox.guest.start(start()).await?)));
    }
    cx.provider.remove(sandbox.id, Volumes::Delete).await?;
    ensure!(cx.fixture.alive(&mark).is_empty(), "alive after remove returned");
    for reader in running {
        // Either it heard the end, or that the box is gone; it must not wait for ever.
        if let Ok(output) = reader.await? {
            ensure!(output.status.reason != ExitReason::Exited, "{output:?}");
        }
    }
    Ok(())
}

async fn one_whole_life(provider: Arc<dyn Provider>, number: usize) -> Result<()> {
    let id = SandboxId::generate();
    provider.create(id, &SandboxSpec::default(), AccountId::LOCAL).await.context("create")?;
    provider.start(id).await.context("start")?;
    let guest = guest_of(&provider, id);
    let text = number.to_string();
    let process = guest.start(StartProcess::new(["echo", text.as_str()])).await.context("exec")?;
    let output = Output::of(process).await?;
    ensure!(output.out() == format!("{number}\n"), "{output:?}");
    guest.write_all(to("file"), text.as_bytes()).await.context("write")?;
    provider.remove(id, Volumes::Delete).await.context("remove")?;
    Ok(())
}

async fn fifty_at_once(cx: Cx) -> Result<()> {
    let lives = (0..50).map(|number| tokio::spawn(one_whole_life(cx.provider.clone(), number)));
    for (number, life) in join_all(lives).await.into_iter().enumerate() {
        life?.with_context(|| format!("number {number}"))?;
    }
    ensure!(cx.provider.list().await?.is_empty());
    Ok(())
}

/// Nobody is left to do the work: the provider has to.
async fn a_dead_guest_with_a_stopped_keeper_is_removed(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let mark = long_sleep();
    let script = format!("setsid sleep {mark} & kill -STOP $PPID; exec sleep {mark}");
    sandbox.guest.start_detached(StartProcess::new(["sh", "-c", script.as_str()])).await?;
    ensure!(eventually(|| async { cx.fixture.alive(&mark).len() >= 2 }).await);
    cx.fixture.crash_guest(sandbox.id).await?;
    cx.provider.remove(sandbox.id, Volumes::Delete).await?;
    cx.none_left(&mark).await?;
    ensure!(cx.provider.list().await?.is_empty());
    Ok(())
}
