//! Terminals: size, keys, the shell that is picked, and coming back.

use super::{
    kit::{Output, attach, long_sleep, read_until},
    suite::{Cx, cases},
};
use anyhow::{Result, ensure};
use seawall_api::{
    exec::{OutputStream, StartProcess, TtySize},
    sandbox::SandboxSpec,
};
use seawall_wire::ProcessOutput;

cases!("terminals";
    p6_a_terminal_has_the_size_asked_for [Terminals];
    p6_a_terminal_is_resized [Terminals];
    p6_ctrl_c_interrupts [Terminals];
    p6_without_a_command_there_is_a_shell [Terminals];
    p6_a_shell_of_bin_false_is_not_taken [Terminals];
    p6_the_sandboxs_shell_is_taken [Terminals];
    p6_reconnect_replays [Terminals];
    p5_a_terminal_is_one_and_pipes_are_none [Terminals];
);

fn tty<S: Into<String>>(args: impl IntoIterator<Item = S>, rows: u16, cols: u16) -> StartProcess {
    StartProcess { tty: Some(TtySize { rows, cols }), stdin: true, ..StartProcess::new(args) }
}

fn sh(script: &str) -> StartProcess {
    tty(["sh", "-c", script], 24, 80)
}

async fn p6_a_terminal_has_the_size_asked_for(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let mut process = sandbox.guest.start(tty(["stty", "size"], 33, 101)).await?;
    let mut seen = Vec::new();
    let status = loop {
        match process.next().await? {
            ProcessOutput::Data { stream, bytes, .. } => {
                ensure!(stream == OutputStream::Tty, "a terminal has one stream, not {stream:?}");
                seen.extend_from_slice(&bytes);
            }
            ProcessOutput::End(status) => break status,
            _ => {}
        }
    };
    let text = String::from_utf8_lossy(&seen);
    ensure!(status.success() && text.trim() == "33 101", "{status}, {text:?}");
    Ok(())
}

async fn p6_a_terminal_is_resized(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let script = "stty size; read a; stty size; read b; stty size";
    let mut process = sandbox.guest.start(sh(script)).await?;
    read_until(&mut process, "24 80").await?;
    let input = process.input();
    input.resize(TtySize { rows: 40, cols: 120 }).await?;
    input.write(b"\n").await?;
    read_until(&mut process, "40 120").await?;
    sandbox.guest.resize(process.id(), TtySize { rows: 10, cols: 20 }).await?;
    input.write(b"\n").await?;
    read_until(&mut process, "10 20").await?;
    Ok(())
}

async fn p6_ctrl_c_interrupts(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let mark = long_sleep();
    let script = format!("echo ready; exec sleep {mark}");
    let mut process = sandbox.guest.start(sh(&script)).await?;
    read_until(&mut process, "ready").await?;
    process.input().write(b"\x03").await?;
    let status = Output::of(process).await?.status;
    ensure!(status.signal == Some(2) || status.code == Some(130), "{status:?}");
    cx.none_left(&mark).await
}

/// Opens the shell of a sandbox with this `SHELL`, and leaves it with a code that only it would give.
async fn shell_named(cx: &Cx, shell: Option<&str>) -> Result<String> {
    let env = shell.map(|shell| ("SHELL".to_owned(), shell.to_owned())).into_iter().collect();
    let sandbox = cx.sandbox_of(&SandboxSpec { env, ..SandboxSpec::default() }).await?;
    let process = sandbox.guest.start(tty(Vec::<String>::new(), 24, 80)).await?;
    process.input().write(b"echo it-is-$((40+2))-$0\nexit 3\n").await?;
    let output = Output::of(process).await?;
    ensure!(output.status.code == Some(3), "{output:?}");
    let text = output.out();
    ensure!(text.contains("it-is-42-"), "{text:?}");
    Ok(text)
}

async fn p6_without_a_command_there_is_a_shell(cx: Cx) -> Result<()> {
    shell_named(&cx, None).await?;
    Ok(())
}

async fn p6_a_shell_of_bin_false_is_not_taken(cx: Cx) -> Result<()> {
    let text = shell_named(&cx, Some("/bin/false")).await?;
    ensure!(text.contains("sh"), "{text:?}");
    Ok(())
}

async fn p6_the_sandboxs_shell_is_taken(cx: Cx) -> Result<()> {
    let text = shell_named(&cx, Some("/bin/sh")).await?;
    let named = text.lines().any(|line| {
        line.trim()
            .rsplit_once("it-is-42-")
            .is_some_and(|(_, name)| name.trim_start_matches('-').trim_start_matches("/bin/") == "sh")
    });
    ensure!(named, "not sh: {text:?}");
    Ok(())
}

async fn p6_reconnect_replays(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let start = sh("echo one; read x; echo two-$x");
    let id = start.process;
    let mut process = sandbox.guest.start(start).await?;
    read_until(&mut process, "one").await?;
    drop(process);
    sandbox.guest.disconnect().await;
    let mut process = sandbox.guest.attach(attach(id, 0)).await?;
    read_until(&mut process, "one").await?;
    process.input().write(b"more\n").await?;
    read_until(&mut process, "two-more").await?;
    ensure!(Output::of(process).await?.status.success());
    Ok(())
}

async fn p5_a_terminal_is_one_and_pipes_are_none(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let script = "test -t 0 && test -t 1 && test -t 2";
    ensure!(sandbox.finish(sh(script)).await?.status.success(), "a terminal");
    let pipes = sandbox.sh("test -t 0 || test -t 1 || test -t 2").await?;
    ensure!(!pipes.status.success(), "pipes");
    let listed = sandbox.guest.processes().await?;
    ensure!(listed.iter().filter(|info| info.tty).count() == 1, "{listed:?}");
    Ok(())
}
