//! What the kernel has only so many of: one box that takes all it can get must leave some to the host, and to
//! other boxes.

use super::{
    kit::{Said, Yard, host_is_well},
    probe::{
        Arg::{B, N, S, W},
        Facts, call,
    },
    runner::cases,
};
use anyhow::{Context, Result, anyhow, ensure};
use seawall_api::{
    exec::{StartProcess, TtySize},
    sandbox::SandboxSpec,
};
use std::io;

cases!("shared", true;
    watches_are_left;
    timers_are_left;
    message_queues_are_left;
    io_contexts_are_left;
    terminals_are_left_to_other_boxes;
);

/// While a box hoards, root of the host takes one as well.
async fn ensure_left(yard: Yard, facts: Facts, hoard: &str, one: fn() -> io::Result<()>) -> Result<()> {
    one().context("the host has none to begin with")?;
    let cell = yard.cell(&SandboxSpec::default()).await?;
    let (_bomb, said) = cell.start_until_ready(cell.bomb(hoard, &facts)).await?;
    let left = one();
    host_is_well()?;
    cell.remove_in_time().await?;
    one().context("they did not come back with the end of the box")?;
    left.map_err(|error| anyhow!("root of the host gets none any more: {error}; the box has {}", said.trim()))
}

async fn watches_are_left(yard: Yard, facts: Facts) -> Result<()> {
    ensure_left(yard, facts, "hoard_watches", || {
        let fd = call(libc::SYS_inotify_init1, [N(libc::O_CLOEXEC.into())])?;
        call(libc::SYS_close, [N(fd)]).map(drop)
    })
    .await
}

/// A timer needs a place for the signal that it will send.
async fn timers_are_left(yard: Yard, facts: Facts) -> Result<()> {
    ensure_left(yard, facts, "hoard_signals", || {
        let mut timer = [0u8; 8];
        let clock = N(libc::CLOCK_MONOTONIC.into());
        call(libc::SYS_timer_create, [clock, N(0), B(&mut timer)])?;
        let timer = i32::from_ne_bytes([timer[0], timer[1], timer[2], timer[3]]);
        call(libc::SYS_timer_delete, [N(timer.into())]).map(drop)
    })
    .await
}

async fn message_queues_are_left(yard: Yard, facts: Facts) -> Result<()> {
    ensure_left(yard, facts, "hoard_queues", || {
        let (name, flags) = (c"seawall-left", i64::from(libc::O_CREAT | libc::O_RDWR));
        let fd = call(libc::SYS_mq_open, [S(name), N(flags), N(0o600), N(0)])?;
        call(libc::SYS_close, [N(fd)])?;
        call(libc::SYS_mq_unlink, [S(name)]).map(drop)
    })
    .await
}

async fn io_contexts_are_left(yard: Yard, facts: Facts) -> Result<()> {
    ensure_left(yard, facts, "hoard_io_contexts", || {
        let mut context = [0];
        call(libc::SYS_io_setup, [N(128), W(&mut context)])?;
        call(libc::SYS_io_destroy, [N(context[0].cast_signed())]).map(drop)
    })
    .await
}

async fn terminals_are_left_to_other_boxes(yard: Yard, facts: Facts) -> Result<()> {
    let (greedy, other) =
        (yard.cell(&SandboxSpec::default()).await?, yard.cell(&SandboxSpec::default()).await?);
    let (_bomb, said) = greedy.start_until_ready(greedy.bomb("hoard_terminals", &facts)).await?;
    let start = StartProcess { tty: Some(TtySize::default()), ..StartProcess::new(["true"]) };
    let had = match other.guest.start(start).await {
        Ok(process) => Said::all(process).await.map(|said| said.status.success()),
        Err(error) => Err(error.into()),
    };
    host_is_well()?;
    greedy.remove_in_time().await?;
    let had = had.with_context(|| format!("another box gets no terminal; the first has {}", said.trim()))?;
    ensure!(had, "a command in a terminal failed");
    Ok(())
}
