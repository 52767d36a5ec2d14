//! A timeout leaves no descendant behind, and disturbs nobody else.

use crate::world::{World, eventually, processes_with, stderr};
use anyhow::Result;
use std::process::Stdio;

/// A duration of sleep that no other process of this machine has.
fn unique(offset: u32) -> String {
    (1_000_000 + std::process::id() * 10 + offset).to_string()
}

#[test]
fn a_timeout_takes_the_background_too() -> Result<()> {
    let world = World::new();
    let id = world.create();
    let mark = unique(1);
    let script = format!("sleep {mark} & exec sleep {mark}");
    let output = world.seawall(["exec", "--timeout", "1s", &id, "--", "sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(124), "{}", stderr(&output));
    // Gone when the command has ended, not some time later.
    assert_eq!(processes_with(&mark), 0);
    Ok(())
}

#[test]
fn a_double_fork_does_not_escape_and_others_run_on() -> Result<()> {
    let world = World::new();
    let id = world.create();
    let (mark, other) = (unique(2), unique(3));
    let bystander = format!("sleep {other} & sleep {other} & wait");
    let bystander = world.ok(["exec", "-d", &id, "--", "sh", "-c", &bystander]);
    eventually("the other command runs", || processes_with(&other) == 2)?;

    let daemon = "import os, sys\n\
        if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        os.execvp('sleep', ['sleep', sys.argv[1]])\n    \
        os._exit(0)\n\
        os.wait()\nos.execvp('sleep', ['sleep', sys.argv[1]])\n";
    let output = world.seawall(["exec", "--timeout", "1s", &id, "--", "python3", "-c", daemon, &mark]);
    assert_eq!(output.status.code(), Some(124), "{}", stderr(&output));
    assert_eq!(processes_with(&mark), 0);

    let shell = format!("setsid setsid sleep {mark} & exec sleep {mark}");
    let output = world.seawall(["exec", "--timeout", "1s", &id, "--", "sh", "-c", &shell]);
    assert_eq!(output.status.code(), Some(124), "{}", stderr(&output));
    assert_eq!(processes_with(&mark), 0);

    assert_eq!(processes_with(&other), 2);
    world.ok(["kill", &id, bystander.trim()]);
    eventually("the other command is gone", || processes_with(&other) == 0)
}

#[test]
fn the_second_interrupt_kills() -> Result<()> {
    let world = World::new();
    let id = world.create();
    let mark = unique(4);
    let script = format!("trap '' INT; sleep {mark}; sleep {mark}");
    let mut child =
        world.command().args(["exec", &id, "--", "sh", "-c", &script]).stdin(Stdio::null()).spawn()?;
    eventually("the command runs", || processes_with(&mark) == 1)?;
    let interrupt = format!("kill -INT {}", child.id());
    for _ in 0..2 {
        std::process::Command::new("sh").args(["-c", &interrupt]).status()?;
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    assert_eq!(child.wait()?.code(), Some(128 + 9));
    eventually("the command is gone", || processes_with(&mark) == 0)
}
