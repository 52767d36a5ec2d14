//! Commands: what they return, what they are given, and how they end.

use super::{
    kit::{Output, attach, ensure_kind, error_of, eventually, long_sleep, read_until},
    suite::{Cx, cases},
};
use anyhow::{Context, Result, ensure};
use futures::future::join_all;
use seawall_api::{
    ErrorKind, ProcessId,
    exec::{ExitReason, StartProcess},
    files::{FileRef, MakeDir},
    sandbox::SandboxSpec,
};
use std::time::{Duration, Instant};

cases!("exec";
    p5_exec_returns_code_stdout_stderr [Programs];
    p5_exec_returns_the_code;
    p5_environment_is_the_sandboxs_and_the_calls [Programs];
    p5_working_directory [Programs];
    a_missing_working_directory_is_an_error;
    stdin_is_read_to_its_end;
    without_stdin_it_is_empty;
    input_comes_from_elsewhere_too;
    a_signal_ends_it;
    a_signal_goes_through_the_attached_stream;
    a_signal_can_be_handled [Programs];
    kill_returns_when_it_is_gone;
    kill_ends_descendants [Programs];
    a_timeout_ends_it;
    a_timeout_ends_descendants_and_nothing_else [Programs];
    what_ignores_the_polite_signal_is_killed [Programs];
    stopping_its_keeper_saves_no_command [Programs];
    a_timeout_ends_what_was_left_behind [Programs];
    a_stop_is_polite_to_what_was_left_behind [Programs];
    long_arguments_do_not_break_the_list [Programs];
    start_twice_is_once;
    start_twice_at_the_same_time_runs_once [Programs];
    processes_are_listed;
    p9_command_not_found;
    p9_an_unknown_process_is_not_found;
    a_background_child_does_not_hold_the_end [Programs];
    a_reader_that_leaves_ends_nothing;
    stop_leaves_no_process;
    twenty_at_once;
    a_command_has_nothing_of_the_one_before [Programs];
    after_a_huge_command_line_a_small_one_runs [Programs];
);

fn sleeping(argument: &str) -> StartProcess {
    StartProcess::new(["sleep", argument])
}

async fn p5_exec_returns_code_stdout_stderr(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let output = sandbox.sh("echo out; echo err >&2; exit 7").await?;
    ensure!(output.status.code == Some(7) && output.status.signal.is_none(), "{output:?}");
    ensure!(output.status.reason == ExitReason::Exited, "{output:?}");
    ensure!((output.out().as_str(), output.err().as_str()) == ("out\n", "err\n"), "{output:?}");
    ensure!(output.status.output_end == 8, "{output:?}");
    Ok(())
}

async fn p5_exec_returns_the_code(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    ensure!(sandbox.run(["true"]).await?.status.success());
    ensure!(sandbox.run(["false"]).await?.status.code == Some(1));
    let echo = sandbox.run(["echo", "a", "b  c"]).await?;
    ensure!(echo.out() == "a b  c\n", "{echo:?}");
    Ok(())
}

async fn p5_environment_is_the_sandboxs_and_the_calls(cx: Cx) -> Result<()> {
    let env = [("COLOUR", "red"), ("SIZE", "small")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    let spec = SandboxSpec { env: env.into(), ..SandboxSpec::default() };
    let sandbox = cx.sandbox_of(&spec).await?;
    let start = StartProcess {
        env: vec![
            ("SIZE".into(), "lost".into()),
            ("SIZE".into(), "large".into()),
            ("NEW".into(), "a=b c".into()),
        ],
        ..StartProcess::new(["sh", "-c", "echo \"$COLOUR $SIZE $NEW\""])
    };
    let output = sandbox.finish(start).await?;
    ensure!(output.out() == "red large a=b c\n", "{output:?}");
    Ok(())
}

async fn p5_working_directory(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let dir = FileRef::new("deep/er");
    sandbox.guest.make_dir(MakeDir { dir, parents: true, permissions: None }).await?;
    sandbox.put("deep/er/file", b"found").await?;
    for cwd in ["deep/er", "/work/deep/er"] {
        let start = StartProcess { cwd: Some(cwd.into()), ..StartProcess::new(["cat", "file"]) };
        let output = sandbox.finish(start).await?;
        ensure!(output.out() == "found", "in {cwd}: {output:?}");
    }
    ensure!(sandbox.sh_ok("cat deep/er/file").await? == "found", "the default is the workspace");
    Ok(())
}

async fn a_missing_working_directory_is_an_error(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let start = StartProcess { cwd: Some("nowhere".into()), ..StartProcess::new(["true"]) };
    let started = sandbox.guest.start(start).await;
    ensure_kind(started, &[ErrorKind::ExecFailed, ErrorKind::NotFound, ErrorKind::Invalid])
}

async fn stdin_is_read_to_its_end(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let start = StartProcess { stdin: true, ..StartProcess::new(["cat"]) };
    let mut process = sandbox.guest.start(start).await?;
    let input = process.input();
    input.write(b"one\n").await?;
    read_until(&mut process, "one\n").await.context("it is echoed while stdin is open")?;
    input.write(b"two\n").await?;
    input.close().await?;
    let output = Output::of(process).await?;
    ensure!(output.out() == "two\n" && output.status.success(), "{output:?}");
    Ok(())
}

async fn without_stdin_it_is_empty(cx: Cx) -> Result<()> {
    let output = cx.sandbox().await?.run(["cat"]).await?;
    ensure!(output.stdout.is_empty() && output.status.success(), "{output:?}");
    Ok(())
}

async fn input_comes_from_elsewhere_too(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let start = StartProcess { stdin: true, ..StartProcess::new(["cat"]) };
    let process = sandbox.guest.start(start).await?;
    sandbox.guest.input(process.id(), b"ab", false).await?;
    sandbox.guest.input(process.id(), b"cd", true).await?;
    let output = Output::of(process).await?;
    ensure!(output.out() == "abcd", "{output:?}");
    Ok(())
}

async fn a_signal_ends_it(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let process = sandbox.guest.start(sleeping(&long_sleep())).await?;
    sandbox.guest.signal(process.id(), 15).await?;
    let status = Output::of(process).await?.status;
    ensure!(status.signal == Some(15) && status.code.is_none(), "{status:?}");
    ensure!(status.shell_code() == 143, "{status:?}");
    Ok(())
}

async fn a_signal_goes_through_the_attached_stream(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let process = sandbox.guest.start(sleeping(&long_sleep())).await?;
    process.input().signal(2).await?;
    let status = Output::of(process).await?.status;
    ensure!(status.signal == Some(2), "{status:?}");
    Ok(())
}

async fn a_signal_can_be_handled(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let script = "trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.05; done";
    let mut process = sandbox.guest.start(StartProcess::new(["sh", "-c", script])).await?;
    read_until(&mut process, "ready").await?;
    sandbox.guest.signal(process.id(), 10).await?;
    let output = Output::of(process).await?;
    ensure!(output.out().contains("caught"), "{output:?}");
    ensure!(output.status.code == Some(3), "{output:?}");
    Ok(())
}

async fn kill_returns_when_it_is_gone(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let mark = long_sleep();
    let process = sandbox.guest.start(sleeping(&mark)).await?;
    let id = process.id();
    sandbox.guest.kill(id).await?;
    ensure!(cx.fixture.alive(&mark).is_empty(), "alive after kill returned");
    let status = Output::of(process).await?.status;
    ensure!(status.reason == ExitReason::Killed, "{status:?}");
    sandbox.guest.kill(id).await.context("killing what is dead")
}

/// A child in the background, one in a session of its own, and one whose parents are gone.
fn family(mark: &str) -> String {
    format!(
        "sleep {mark} & setsid sleep {mark} & (setsid sh -c 'sleep {mark} & sleep {mark}' &) ; exec sleep {mark}"
    )
}

async fn kill_ends_descendants(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let mark = long_sleep();
    let family = family(&mark);
    let process = sandbox.guest.start(StartProcess::new(["sh", "-c", family.as_str()])).await?;
    let all_there = eventually(|| async { cx.fixture.alive(&mark).len() >= 5 }).await;
    ensure!(all_there, "only {:?} started", cx.fixture.alive(&mark));
    sandbox.guest.kill(process.id()).await?;
    let left = cx.fixture.alive(&mark);
    ensure!(left.is_empty(), "alive after kill returned: {left:?}");
    Ok(())
}

async fn a_timeout_ends_it(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let start = StartProcess { timeout_ms: Some(300), ..sleeping(&long_sleep()) };
    let began = Instant::now();
    let status = sandbox.finish(start).await?.status;
    let took = began.elapsed();
    ensure!(status.reason == ExitReason::Timeout && status.shell_code() == 124, "{status:?}");
    ensure!(took >= Duration::from_millis(250) && took < Duration::from_secs(30), "{took:?}");
    let start = StartProcess { timeout_ms: Some(20_000), ..StartProcess::new(["true"]) };
    ensure!(sandbox.finish(start).await?.status.success(), "a timeout that is not reached");
    Ok(())
}

async fn a_timeout_ends_descendants_and_nothing_else(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let (theirs, ours) = (long_sleep(), long_sleep());
    let other = family(&ours);
    let other = sandbox.guest.start(StartProcess::new(["sh", "-c", other.as_str()])).await?;
    ensure!(eventually(|| async { cx.fixture.alive(&ours).len() >= 5 }).await);
    let family = family(&theirs);
    let start = StartProcess {
        timeout_ms: Some(1000),
        grace_ms: Some(500),
        ..StartProcess::new(["sh", "-c", family.as_str()])
    };
    let status = sandbox.finish(start).await?.status;
    ensure!(status.reason == ExitReason::Timeout, "{status:?}");
    cx.none_left(&theirs).await?;
    ensure!(cx.fixture.alive(&ours).len() >= 5, "another command lost its children");
    sandbox.guest.kill(other.id()).await?;
    cx.none_left(&ours).await
}

async fn what_ignores_the_polite_signal_is_killed(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let script = "trap '' TERM; while :; do sleep 0.1; done";
    let start = StartProcess {
        timeout_ms: Some(200),
        grace_ms: Some(300),
        ..StartProcess::new(["sh", "-c", script])
    };
    let began = Instant::now();
    let status = sandbox.finish(start).await?.status;
    ensure!(status.reason == ExitReason::Timeout, "{status:?}");
    ensure!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    Ok(())
}

async fn start_twice_is_once(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let start = StartProcess { stdin: true, ..StartProcess::new(["cat"]) };
    let first = sandbox.guest.start(start.clone()).await?;
    let second = sandbox.guest.start(start).await?;
    ensure!(!first.resumed() && second.resumed());
    ensure!(first.pid() == second.pid());
    sandbox.guest.input(first.id(), b"both see it", true).await?;
    let outputs = (Output::of(first).await?, Output::of(second).await?);
    ensure!(outputs.0.out() == "both see it" && outputs.1.out() == "both see it", "{outputs:?}");
    ensure!(sandbox.guest.processes().await?.len() == 1);
    Ok(())
}

async fn start_twice_at_the_same_time_runs_once(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let start = StartProcess::new(["sh", "-c", "echo ran >> log"]);
    let runs = join_all((0..8).map(|_| sandbox.finish(start.clone()))).await;
    for run in runs {
        ensure!(run?.status.success());
    }
    ensure!(sandbox.take("log").await? == b"ran\n");
    Ok(())
}

async fn processes_are_listed(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let start = StartProcess { tag: Some("nap".into()), ..sleeping(&long_sleep()) };
    let started = sandbox.guest.start_detached(start.clone()).await?;
    let list = sandbox.guest.processes().await?;
    let found = list.iter().find(|info| info.process == start.process).context("it is listed")?;
    ensure!(found.args == start.args && found.tag == start.tag, "{found:?}");
    ensure!(found.pid == started.pid && found.exit.is_none() && !found.tty, "{found:?}");
    ensure!(sandbox.guest.info().await?.processes_running == 1);
    sandbox.guest.kill(start.process).await?;
    let list = sandbox.guest.processes().await?;
    let ended = list.iter().any(|info| info.process == start.process && info.exit.is_some());
    ensure!(ended, "one that ended lately is listed too: {list:?}");
    Ok(())
}

async fn p9_command_not_found(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let missing = sandbox.guest.start(StartProcess::new(["no-such-command-here"])).await;
    let error = error_of(missing)?;
    ensure!(error.kind() == ErrorKind::ExecFailed, "{}: {error}", error.kind());
    ensure!(error.to_string().contains("no-such-command-here"), "{error}");
    ensure!(sandbox.run(["true"]).await?.status.success(), "the guest goes on");
    Ok(())
}

async fn p9_an_unknown_process_is_not_found(cx: Cx) -> Result<()> {
    let guest = cx.sandbox().await?.guest;
    let id = ProcessId::generate();
    let not_found = [ErrorKind::NotFound];
    ensure_kind(guest.attach(attach(id, 0)).await, &not_found)?;
    ensure_kind(guest.kill(id).await, &not_found)?;
    ensure_kind(guest.signal(id, 15).await, &not_found)?;
    ensure_kind(guest.input(id, b"x", false).await, &not_found)
}

async fn a_background_child_does_not_hold_the_end(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let mark = long_sleep();
    let began = Instant::now();
    let output = sandbox.sh(&format!("sleep {mark} & echo done; exit 4")).await?;
    ensure!(output.out() == "done\n" && output.status.code == Some(4), "{output:?}");
    ensure!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    Ok(())
}

async fn a_reader_that_leaves_ends_nothing(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let start = StartProcess { stdin: true, ..StartProcess::new(["cat"]) };
    drop(sandbox.guest.start(start.clone()).await?);
    sandbox.guest.disconnect().await;
    sandbox.guest.input(start.process, b"alive", true).await?;
    let output = Output::of(sandbox.guest.attach(attach(start.process, 0)).await?).await?;
    ensure!(output.out() == "alive" && output.status.success(), "{output:?}");
    Ok(())
}

async fn stop_leaves_no_process(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let mark = long_sleep();
    sandbox.guest.start_detached(sleeping(&mark)).await?;
    if cx.provider.capabilities().programs {
        let family = family(&mark);
        let stubborn = format!("trap '' TERM; {family}");
        let start = StartProcess::new(["sh", "-c", stubborn.as_str()]);
        sandbox.guest.start_detached(start).await?;
        ensure!(eventually(|| async { cx.fixture.alive(&mark).len() >= 6 }).await);
    }
    cx.provider.stop(sandbox.id, Duration::from_millis(500)).await?;
    let left = cx.fixture.alive(&mark);
    ensure!(left.is_empty(), "alive after stop returned: {left:?}");
    Ok(())
}

async fn twenty_at_once(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let run = |number: u32| {
        let sandbox = sandbox.clone();
        tokio::spawn(async move { sandbox.run(["echo", number.to_string().as_str()]).await })
    };
    for (number, output) in join_all((0..20).map(run)).await.into_iter().enumerate() {
        let output = output??;
        ensure!(output.out() == format!("{number}\n") && output.status.success(), "{output:?}");
    }
    Ok(())
}

/// A command may signal whatever runs as its user, its own keeper included.
async fn stopping_its_keeper_saves_no_command(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let mark = long_sleep();
    let script = format!("setsid sleep {mark} & sleep 0.2; kill -STOP $PPID; sleep {mark}");
    let start = StartProcess { timeout_ms: Some(600), ..StartProcess::new(["sh", "-c", script.as_str()]) };
    let began = Instant::now();
    let status = sandbox.finish(start).await?.status;
    ensure!(status.reason == ExitReason::Timeout, "{status:?}");
    ensure!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    cx.none_left(&mark).await
}

/// The command is long gone when its time is up; what it left in the background is not.
async fn a_timeout_ends_what_was_left_behind(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let mark = long_sleep();
    let script = format!("setsid sleep {mark} >/dev/null 2>&1 & exit 3");
    let start = StartProcess { timeout_ms: Some(1500), ..StartProcess::new(["sh", "-c", script.as_str()]) };
    let status = sandbox.finish(start).await?.status;
    ensure!(status.code == Some(3) && status.reason == ExitReason::Exited, "{status:?}");
    ensure!(eventually(|| async { !cx.fixture.alive(&mark).is_empty() }).await, "it has until the deadline");
    cx.none_left(&mark).await
}

async fn a_stop_is_polite_to_what_was_left_behind(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let daemon = "trap 'echo bye > farewell; exit' TERM; touch ready; while :; do sleep 0.05; done";
    let script = format!("setsid sh -c \"{daemon}\" >/dev/null 2>&1 & exit 0");
    sandbox.finish(StartProcess::new(["sh", "-c", script.as_str()])).await?;
    ensure!(eventually(|| async { sandbox.take("ready").await.is_ok() }).await);
    cx.provider.stop(sandbox.id, Duration::from_secs(5)).await?;
    cx.provider.start(sandbox.id).await?;
    ensure!(sandbox.take("farewell").await? == b"bye\n");
    Ok(())
}

async fn long_arguments_do_not_break_the_list(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let long = "ü".repeat(50_000);
    for _ in 0..12 {
        sandbox.finish(StartProcess::new(["true", long.as_str()])).await?;
    }
    let listed = sandbox.guest.processes().await?;
    ensure!(listed.len() == 12 && listed[0].args[0] == "true" && listed[0].args[1].ends_with('…'));
    Ok(())
}

async fn a_command_has_nothing_of_the_one_before(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    // Without `SigQ`, which counts what is queued for all processes of the user.
    let probe =
        "trap; umask; pwd; ls /proc/self/fd | wc -l; env | sort; grep -E '^(Sig[^Q]|Shd)' /proc/self/status";
    let first = sandbox.sh(probe).await?.out();
    // Terminals, other directories, variables, ignored signals and open files, each in a command before.
    for _ in 0..3 {
        let script = "umask 0; trap '' TERM INT; exec 7</dev/null; exit 3";
        let mut rude = StartProcess::new(["sh", "-c", script]);
        rude.env = vec![("LEAK".into(), "yes".into())];
        rude.cwd = Some("/".into());
        ensure!(sandbox.finish(rude).await?.status.code == Some(3));
        let again = sandbox.sh(probe).await?.out();
        ensure!(again == first, "{again}\n--- but at first ---\n{first}");
    }
    Ok(())
}

async fn after_a_huge_command_line_a_small_one_runs(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    for size in [10usize, 90_000, 110_000, 20] {
        let argument = "x".repeat(size);
        let output = sandbox.run(["sh", "-c", "printf %s \"$1\" | wc -c", "sh", argument.as_str()]).await?;
        ensure!(output.out().trim() == size.to_string(), "{size}: {output:?}");
    }
    let many: Vec<String> = ["sh", "-c", "echo $#", "sh"].iter().map(|s| s.to_string()).collect();
    let many = many.into_iter().chain((0..20_000).map(|n| n.to_string()));
    let output = sandbox.finish(StartProcess::new(many)).await?;
    ensure!(output.out().trim() == "20000", "{output:?}");
    ensure!(sandbox.run(["true"]).await?.status.success());
    Ok(())
}
