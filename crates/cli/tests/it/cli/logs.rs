//! `logs`: output outlives whoever read it first.

use crate::world::{World, eventually};
use anyhow::{Context, Result};
use std::{io::Read, process::Stdio};

/// 20,000 numbered lines of 8 bytes: slowly at first, so that there is a middle to be killed in.
const COUNT: &str = "i=0; while [ $i -lt 20000 ]; do printf '%07d\\n' $i; i=$((i+1)); \
                     [ $((i % 2000)) -eq 0 ] && sleep 0.1; done; exit 0";

fn expected() -> String {
    (0..20_000).map(|number| format!("{number:07}\n")).collect()
}

#[test]
fn a_killed_reader_loses_nothing() -> Result<()> {
    let world = World::new();
    let id = world.create();
    let mut child = world
        .command()
        .args(["exec", "--block", &id, "--", "sh", "-c", COUNT])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut seen = [0; 4096];
    child.stdout.take().context("piped")?.read_exact(&mut seen)?;
    // SIGKILL: neither the host process nor its wire can say goodbye.
    child.kill()?;
    child.wait()?;

    let processes = world.json(["logs", "--processes", "--json", &id]);
    let process = processes[0]["process"].as_str().context("a process")?.to_owned();
    let all = expected();
    assert_eq!(String::from_utf8_lossy(&seen), all[..4096]);
    let from = 4096.to_string();
    assert_eq!(world.ok(["logs", "-f", "--from", &from, &id, &process]), all[4096..]);
    // It has ended by now, and can be read again.
    assert_eq!(world.ok(["logs", "--from", "159992", &id, &process]), all[159_992..]);
    Ok(())
}

#[test]
fn a_detached_process_is_found_by_id_tag_and_default() -> Result<()> {
    let world = World::new();
    let id = world.create();
    let process = world.ok(["exec", "-d", "--tag", "hello", &id, "--", "sh", "-c", "echo out; echo err >&2"]);
    assert_eq!(world.ok(["logs", "-f", &id, process.trim()]), "out\n");
    assert_eq!(world.ok(["logs", &id, "hello"]), "out\n");
    assert_eq!(world.ok(["logs", &id]), "out\n");
    let table = world.ok(["logs", "--processes", &id]);
    assert!(table.contains(process.trim()) && table.contains("exited with 0"), "{table}");
    let unknown = world.seawall(["logs", &id, "nobody"]);
    assert_eq!(unknown.status.code(), Some(1));
    Ok(())
}

#[test]
fn signals_have_names() -> Result<()> {
    let world = World::new();
    let id = world.create();
    let script = "trap 'echo got it; exit 0' USR1; echo ready; while :; do sleep 0.05; done";
    let process = world.ok(["exec", "-d", &id, "--", "sh", "-c", script]);
    let process = process.trim();
    eventually("it is ready", || world.ok(["logs", &id, process]) == "ready\n")?;
    world.ok(["kill", "-s", "USR1", &id, process]);
    assert_eq!(world.ok(["logs", "-f", &id, process]), "ready\ngot it\n");
    Ok(())
}
