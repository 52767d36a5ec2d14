//! Output: nothing is lost that was promised, and no more is kept than was allowed.

use super::{
    kit::{Output, attach, ensure_kind, ensure_same, eventually, long_sleep, pattern, to},
    suite::{Cx, cases},
};
use anyhow::{Context, Result, bail, ensure};
use seawall_api::{
    ErrorKind,
    exec::{StartProcess, WhenFull},
    message::Attach,
};
use seawall_wire::{Guest, ProcessOutput};
use std::time::Duration;
use tokio::time::sleep;

const MIB: usize = 1 << 20;

cases!("exec_output";
    p5_big_output_arrives_whole [Programs];
    stdout_and_stderr_of_any_size_are_kept_apart [Programs];
    an_output_limit_counts_the_rest;
    a_large_output_limit_counts_the_rest [Programs];
    p6_reattach_replays_from_an_offset;
    an_offset_behind_the_end_is_an_error;
    without_following_it_leaves_when_all_is_read;
    block_loses_nothing_to_a_slow_reader [Programs];
    an_attached_reader_loses_nothing [Programs];
    block_waits_for_a_reader_who_comes_later [Programs];
    who_looks_on_acknowledges_nothing [Programs];
    drop_oldest_never_waits_and_tells_the_gap [Programs];
);

async fn put_pattern(guest: &Guest, path: &str, len: usize) -> Result<Vec<u8>> {
    let body = pattern(len);
    let mut writer = guest.write_bulk(to(path)).await?;
    writer.write(&body).await?;
    writer.finish().await?;
    Ok(body)
}

async fn p5_big_output_arrives_whole(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let body = put_pattern(&sandbox.guest, "big", 8 * MIB).await?;
    let output = sandbox.run(["cat", "big"]).await?;
    ensure!(output.gaps.is_empty(), "{:?}", output.gaps);
    ensure!(output.status.output_end == body.len() as u64, "{:?}", output.status);
    ensure_same(&output.stdout, &body)
}

async fn stdout_and_stderr_of_any_size_are_kept_apart(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let body = put_pattern(&sandbox.guest, "big", 2 * MIB).await?;
    let output = sandbox.sh("cat big & cat big >&2; wait").await?;
    ensure_same(&output.stdout, &body)?;
    ensure_same(&output.stderr, &body)
}

async fn an_output_limit_counts_the_rest(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    // Five bytes would end within the third character.
    let start = StartProcess { output_limit: Some(5), ..StartProcess::new(["echo", "üüüü"]) };
    let output = sandbox.finish(start).await?;
    ensure!(output.out() == "üü", "{output:?}");
    ensure!(output.status.truncated == 5 && output.status.output_end == 4, "{output:?}");
    ensure!(output.status.success(), "a limit does not end it: {output:?}");
    let start = StartProcess { output_limit: Some(9), ..StartProcess::new(["echo", "üüüü"]) };
    let output = sandbox.finish(start).await?;
    ensure!(output.out() == "üüüü\n" && output.status.truncated == 0, "{output:?}");
    Ok(())
}

async fn a_large_output_limit_counts_the_rest(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    sandbox.put("text", "ü".repeat(2 * MIB).as_bytes()).await?;
    let limit = MIB as u64 + 1;
    let start = StartProcess { output_limit: Some(limit), ..StartProcess::new(["cat", "text"]) };
    let output = sandbox.finish(start).await?;
    ensure!(output.stdout.len() as u64 == limit - 1, "{} bytes", output.stdout.len());
    ensure!(std::str::from_utf8(&output.stdout).is_ok(), "cut in mid-character");
    let all = 4 * MIB as u64;
    ensure!(output.status.truncated == all - (limit - 1), "{:?}", output.status);
    Ok(())
}

async fn p6_reattach_replays_from_an_offset(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let start = StartProcess::new(["echo", "hello world"]);
    let id = start.process;
    let first = sandbox.finish(start).await?;
    for (from, wanted) in [(0, "hello world\n"), (6, "world\n"), (12, "")] {
        let again = Output::of(sandbox.guest.attach(attach(id, from)).await?).await?;
        ensure!(again.out() == wanted, "from {from}: {again:?}");
        ensure!(again.status == first.status, "from {from}: {again:?}");
    }
    Ok(())
}

async fn an_offset_behind_the_end_is_an_error(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let start = StartProcess::new(["echo", "x"]);
    let id = start.process;
    sandbox.finish(start).await?;
    ensure_kind(sandbox.guest.attach(attach(id, 99)).await, &[ErrorKind::Invalid])
}

async fn without_following_it_leaves_when_all_is_read(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let start = StartProcess { stdin: true, ..StartProcess::new(["cat"]) };
    sandbox.guest.start_detached(start.clone()).await?;
    sandbox.guest.input(start.process, b"so far", false).await?;
    let look = Attach { process: start.process, from: 0, hold: false, follow: false };
    let drained = eventually(|| async {
        let Ok(mut process) = sandbox.guest.attach(look).await else { return false };
        let mut seen = Vec::new();
        loop {
            match process.next().await {
                Ok(ProcessOutput::Data { bytes, .. }) => seen.extend_from_slice(&bytes),
                Ok(ProcessOutput::Drained) => return seen == b"so far",
                _ => return false,
            }
        }
    });
    ensure!(drained.await);
    ensure!(sandbox.guest.processes().await?[0].exit.is_none(), "looking ended it");
    Ok(())
}

/// Reads to the end with a long stall at the start and short ones after.
async fn read_slowly(guest: &Guest, start: StartProcess) -> Result<Vec<u8>> {
    let mut process = guest.start(start).await?;
    sleep(Duration::from_secs(1)).await;
    let mut seen = Vec::new();
    let mut next_stall = 4 * MIB;
    loop {
        match process.next().await? {
            ProcessOutput::Data { offset, bytes, .. } => {
                ensure!(offset == seen.len() as u64, "{offset} instead of {}", seen.len());
                seen.extend_from_slice(&bytes);
            }
            ProcessOutput::End(status) => {
                ensure!(status.success(), "{status:?}");
                return Ok(seen);
            }
            other => bail!("{other:?}"),
        }
        if seen.len() >= next_stall {
            next_stall += 4 * MIB;
            sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn block_loses_nothing_to_a_slow_reader(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let body = put_pattern(&sandbox.guest, "big", 32 * MIB).await?;
    let start = StartProcess { when_full: WhenFull::Block, ..StartProcess::new(["cat", "big"]) };
    ensure_same(&read_slowly(&sandbox.guest, start).await?, &body)
}

async fn an_attached_reader_loses_nothing(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let body = put_pattern(&sandbox.guest, "big", 16 * MIB).await?;
    ensure_same(&read_slowly(&sandbox.guest, StartProcess::new(["cat", "big"])).await?, &body)
}

async fn block_waits_for_a_reader_who_comes_later(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let body = put_pattern(&sandbox.guest, "big", 16 * MIB).await?;
    let start = StartProcess { when_full: WhenFull::Block, ..StartProcess::new(["cat", "big"]) };
    sandbox.guest.start_detached(start.clone()).await?;
    sleep(Duration::from_millis(500)).await;
    let listed = sandbox.guest.processes().await?;
    ensure!(listed[0].exit.is_none(), "it did not wait: {listed:?}");
    let output = Output::of(sandbox.guest.attach(attach(start.process, 0)).await?).await?;
    ensure!(output.gaps.is_empty(), "{:?}", output.gaps);
    ensure_same(&output.stdout, &body)
}

async fn drop_oldest_never_waits_and_tells_the_gap(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let body = put_pattern(&sandbox.guest, "big", 16 * MIB).await?;
    let mark = long_sleep();
    let script = format!("cat big; sleep {mark}");
    let start = StartProcess::new(["sh", "-c", script.as_str()]);
    sandbox.guest.start_detached(start.clone()).await?;
    let printed = eventually(|| async {
        let listed = sandbox.guest.processes().await.unwrap_or_default();
        listed.iter().any(|info| info.output_end == body.len() as u64)
    });
    ensure!(printed.await, "it waited though nobody reads");
    sandbox.guest.kill(start.process).await?;
    let output = Output::of(sandbox.guest.attach(attach(start.process, 0)).await?).await?;
    let [(0, kept_from)] = output.gaps[..] else { bail!("gaps {:?}", output.gaps) };
    let kept = body.get(kept_from as usize..).context("a gap beyond the end")?;
    ensure!(!kept.is_empty(), "nothing was kept");
    ensure_same(&output.stdout, kept)
}

/// With `block` only a reader that the process waits for decides what may be forgotten.
async fn who_looks_on_acknowledges_nothing(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let body = put_pattern(&sandbox.guest, "big", 6 * MIB).await?;
    let start = StartProcess { when_full: WhenFull::Block, ..StartProcess::new(["cat", "big"]) };
    sandbox.guest.start_detached(start.clone()).await?;
    let look = Attach { process: start.process, from: 0, hold: false, follow: true };
    let mut observer = sandbox.guest.attach(look).await?;
    while observer.offset() < 2 * MIB as u64 {
        observer.next().await?;
    }
    drop(observer);
    let hold = Attach { hold: true, ..look };
    let output = Output::of(sandbox.guest.attach(hold).await?).await?;
    ensure!(output.gaps.is_empty(), "{:?}", output.gaps);
    ensure_same(&output.stdout, &body)
}
