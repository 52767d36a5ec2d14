//! `run`: one command, its output, its exit code, and nothing left.

use crate::world::{World, eventually, processes_with, stderr, stdout};
use anyhow::Result;
use std::{io::Write, process::Stdio};

#[test]
fn run_prints_42() {
    let world = World::new();
    let output = world.seawall(["run", "--", "python3", "-c", "print(6*7)"]);
    assert_eq!(stdout(&output), "42\n", "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(0));
    assert!(world.is_empty());
}

#[test]
fn exit_codes_mean_something() {
    let world = World::new();
    let code = |args: &[&str]| {
        let output = world.seawall([&["run"][..], args].concat());
        (output.status.code(), stderr(&output))
    };
    assert_eq!(code(&["--", "sh", "-c", "exit 3"]).0, Some(3));
    let (not_found, message) = code(&["--", "no-such-program-here"]);
    assert_eq!(not_found, Some(127), "{message}");
    assert!(message.contains("no-such-program-here"), "{message}");
    let (not_executable, message) = code(&["--", "/etc/passwd"]);
    assert_eq!(not_executable, Some(126), "{message}");
    assert_eq!(code(&["--timeout", "300ms", "--", "sleep", "1000"]).0, Some(124));
    assert_eq!(code(&["--", "sh", "-c", "kill -TERM $$"]).0, Some(128 + 15));
    assert_eq!(code(&[]).0, Some(2));
    assert_eq!(code(&["--no-such-flag"]).0, Some(2));
    assert!(world.is_empty());
}

#[test]
fn seawalls_own_failure_is_125() {
    let world = World::new();
    let output = world.seawall(["run", "--provider", "nowhere", "--", "true"]);
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert!(stderr(&output).contains("nowhere"), "{}", stderr(&output));
}

#[test]
fn stdin_environment_and_both_outputs() {
    let world = World::new();
    let script = "cat; echo \"$GREETING\" >&2; pwd >/dev/null";
    let mut child = world
        .command()
        .args(["run", "-e", "GREETING=a=b", "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let body = "line\n".repeat(100_000);
    let mut stdin = child.stdin.take().unwrap();
    let sent = body.clone();
    let writer = std::thread::spawn(move || stdin.write_all(sent.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert_eq!(stdout(&output), body);
    assert!(stderr(&output).ends_with("a=b\n"), "{}", stderr(&output));
}

#[test]
fn a_reader_that_goes_ends_it() {
    let world = World::new();
    let script = format!("{} run -- yes | head -n 1", env!("CARGO_BIN_EXE_seawall"));
    let output = world.command_of("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(stdout(&output), "y\n");
    assert!(world.is_empty());
}

#[test]
fn a_signal_still_removes_the_sandbox() -> Result<()> {
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let world = World::new();
        let unique = format!("{}", 500_000 + std::process::id() + code as u32 * 10_000_000);
        let mut child = world.command().args(["run", "--", "sleep", &unique]).spawn()?;
        // Two carry the argument: the sleep, and the `seawall run` that asked for it.
        eventually("the command runs", || processes_with(&unique) == 2)?;
        let kill = format!("kill -{signal} {}", child.id());
        assert!(std::process::Command::new("sh").args(["-c", &kill]).status()?.success());
        assert_eq!(child.wait()?.code(), Some(code), "after SIG{signal}");
        eventually("the command is gone", || processes_with(&unique) == 0)?;
        assert!(world.is_empty());
    }
    Ok(())
}

#[test]
fn output_beyond_the_limit_is_told() {
    let world = World::new();
    let output = world.seawall(["run", "--output-limit", "10", "--", "sh", "-c", "echo 0123456789abcdef"]);
    assert!(output.stdout.len() <= 10);
    assert!(stderr(&output).contains("beyond the limit"), "{}", stderr(&output));
}

#[test]
fn it_ends_though_stdin_stays_open() {
    let world = World::new();
    let mut child = world.command().args(["run", "--", "true"]).stdin(Stdio::piped()).spawn().unwrap();
    let held = child.stdin.take();
    let ended = eventually("it ended", || child.try_wait().unwrap().is_some());
    drop(held);
    assert!(child.wait().unwrap().success());
    ended.unwrap();
}

#[test]
fn a_terminal_without_anybody_at_it_ends() {
    let world = World::new();
    let id = world.create();
    let shell = world.command().args(["shell", &id]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(shell.status.code(), Some(0), "{}", stderr(&shell));
    // A line without an end takes the key twice.
    let mut child = world
        .command()
        .args(["exec", "-t", &id, "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"no newline").unwrap();
    let cat = child.wait_with_output().unwrap();
    assert_eq!(cat.status.code(), Some(0));
    assert!(stdout(&cat).contains("no newline"));
}

#[test]
fn p4_local_runs_plain_processes_and_warns_that_nothing_isolates_them() {
    let world = World::new();
    let marker = world.data().join("of-the-host");
    std::fs::write(&marker, "seen").unwrap();
    let output = world.seawall(["run", "--provider", "local", "--", "cat", &marker.display().to_string()]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "seen");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("isolat"), "{said}");
    assert!(world.is_empty());
}
