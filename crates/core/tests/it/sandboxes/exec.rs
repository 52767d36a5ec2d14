//! Commands run to their end: what they get, what they printed, how they ended.

use crate::sandboxes::world::{World, error, eventually, pattern, within};
use bytes::Bytes;
use seawall_api::{
    ErrorKind,
    exec::{ExitReason, TtySize},
    sandbox::{EndReason, SandboxSpec, SandboxState},
};
use seawall_core::{ExecRequest, NewSandbox};
use seawall_providers::mock::{Script, Step};
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;

fn text(step: fn(Bytes) -> Step, body: &'static str) -> Step {
    step(Bytes::from_static(body.as_bytes()))
}

#[tokio::test(start_paused = true)]
async fn p5_exit_code_stdout_and_stderr() {
    let world = World::new();
    let id = world.running().await;
    world.mock.on_command("both", |_| {
        let printed =
            [text(Step::Stdout, "out 1\n"), text(Step::Stderr, "err\n"), text(Step::Stdout, "out 2\n")];
        Script::new(printed.into_iter().chain([Step::Exit(3)]))
    });
    let output = world.exec(id, ["both"]).await;
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out 1\nout 2\n"[..], &b"err\n"[..]));
    assert_eq!((output.status.code, output.status.signal), (Some(3), None));
    assert_eq!((output.status.shell_code(), output.status.success()), (3, false));
    assert_eq!((output.stdout_truncated, output.stderr_truncated), (0, 0));
    assert!(world.exec(id, ["true"]).await.status.success());
    assert_eq!(world.exec(id, ["false"]).await.status.code, Some(1));
}

#[tokio::test(start_paused = true)]
async fn p5_environment_and_directory() {
    let world = World::new();
    let env = BTreeMap::from([("A".to_owned(), "box".to_owned()), ("B".to_owned(), "box".to_owned())]);
    let spec = SandboxSpec { env, ..SandboxSpec::default() };
    let id = world.sandboxes.create(NewSandbox { spec, ..NewSandbox::default() }).await.unwrap().id;
    world.sandboxes.start(id).await.unwrap();
    world.mock.on_command("show", |call| {
        let variable = |name: &str| call.env.get(name).cloned().unwrap_or_default();
        Script::stdout(format!("{} {} {:?}", variable("A"), variable("B"), call.cwd))
    });
    assert_eq!(world.exec(id, ["show"]).await.stdout, b"box box None");
    let mut request = ExecRequest::new(["show"]);
    request.start.env.push(("B".to_owned(), "call".to_owned()));
    request.start.cwd = Some("/tmp".to_owned());
    let output = world.sandboxes.exec(id, request).await.unwrap();
    assert_eq!(output.stdout, b"box call Some(\"/tmp\")");
}

#[tokio::test(start_paused = true)]
async fn p5_stdin_is_given_and_closed() {
    let world = World::new();
    let id = world.running().await;
    let body = pattern(700_000);
    let mut request = ExecRequest::new(["cat"]);
    request.stdin = Some(Bytes::from(body.clone()));
    let output = within(world.sandboxes.exec(id, request)).await.unwrap();
    assert!(output.status.success());
    assert!(output.stdout == body, "{} bytes, and others", output.stdout.len());
    // None is an empty one, not one that never ends.
    assert_eq!(world.exec(id, ["cat"]).await.stdout, b"");
}

#[tokio::test(start_paused = true)]
async fn a_command_need_not_read_its_stdin() {
    let world = World::new();
    let id = world.running().await;
    let mut request = ExecRequest::new(["true"]);
    request.stdin = Some(Bytes::from(pattern(700_000)));
    assert!(within(world.sandboxes.exec(id, request)).await.unwrap().status.success());
}

#[tokio::test(start_paused = true)]
async fn output_of_any_size_is_gathered_whole() {
    let world = World::new();
    let id = world.running().await;
    let body = pattern(3 << 20);
    world.prints("big", &body);
    let output = world.exec(id, ["big"]).await;
    assert!(output.stdout == body, "{} bytes, and others", output.stdout.len());
    assert_eq!((output.status.output_end, output.stdout_truncated), (3 << 20, 0));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_gathered_is_counted_for_each_stream() {
    let world = World::new();
    let id = world.running().await;
    world.mock.on_command("both", |_| {
        Script::new([text(Step::Stdout, "0123456789"), text(Step::Stderr, "abc"), text(Step::Stdout, "0123")])
    });
    let request = ExecRequest { max_output: 4, ..ExecRequest::new(["both"]) };
    let output = world.sandboxes.exec(id, request).await.unwrap();
    assert_eq!((output.stdout.as_slice(), output.stdout_truncated), (&b"0123"[..], 10));
    assert_eq!((output.stderr.as_slice(), output.stderr_truncated), (&b"abc"[..], 0));
    // Nothing was thrown away in the sandbox, and the command is none the wiser.
    assert_eq!((output.status.truncated, output.status.output_end), (0, 17));
    assert!(output.status.success());
}

#[tokio::test(start_paused = true)]
async fn gathered_text_ends_between_characters() {
    let world = World::new();
    let id = world.running().await;
    world.prints("euro", "ab€cd".as_bytes());
    let request = ExecRequest { max_output: 4, ..ExecRequest::new(["euro"]) };
    let output = world.sandboxes.exec(id, request).await.unwrap();
    assert_eq!((output.stdout.as_slice(), output.stdout_truncated), (&b"ab"[..], 5));
}

#[tokio::test(start_paused = true)]
async fn output_beyond_the_limit_of_the_process_is_counted() {
    let world = World::new();
    let id = world.running().await;
    world.prints("ten", b"0123456789");
    let mut request = ExecRequest::new(["ten"]);
    request.start.output_limit = Some(6);
    let output = world.sandboxes.exec(id, request).await.unwrap();
    assert_eq!((output.stdout.as_slice(), output.stdout_truncated), (&b"012345"[..], 4));
    assert_eq!((output.status.truncated, output.status.code), (4, Some(0)));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_ends_it() {
    let world = World::new();
    let id = world.running().await;
    world.mock.on_command("stuck", |_| Script::new([text(Step::Stdout, "so far"), Step::WaitForSignal]));
    let mut request = ExecRequest::new(["stuck"]);
    request.start.timeout_ms = Some(90_000);
    let begun = Instant::now();
    let output = within(world.sandboxes.exec(id, request)).await.unwrap();
    let took = begun.elapsed();
    assert!((90..95).contains(&took.as_secs()), "{took:?}");
    assert_eq!((output.status.reason, output.status.shell_code()), (ExitReason::Timeout, 124));
    assert_eq!(output.stdout, b"so far");
    assert_eq!(world.mock.running(id), 0);
}

#[tokio::test(start_paused = true)]
async fn p9_a_command_that_cannot_be_started() {
    let world = World::new();
    let id = world.running().await;
    let missing = error(world.sandboxes.exec(id, ExecRequest::new(["no-such-program"])).await);
    assert_eq!(missing.kind(), ErrorKind::ExecFailed);
    assert!(!missing.is_retryable() && missing.to_string().contains("no-such-program"), "{missing}");
    let mut nowhere = ExecRequest::new(["true"]);
    nowhere.start.cwd = Some("/no/such/folder".to_owned());
    let nowhere = error(world.sandboxes.exec(id, nowhere).await);
    assert_eq!(nowhere.kind(), ErrorKind::ExecFailed);
    assert!(nowhere.to_string().contains("/no/such/folder"), "{nowhere}");
    let nothing = error(world.sandboxes.exec(id, ExecRequest::new(Vec::<String>::new())).await);
    assert_eq!(nothing.kind(), ErrorKind::Invalid);
}

#[tokio::test(start_paused = true)]
async fn p9_what_the_provider_lacks_is_unsupported() {
    let world = World::new();
    let id = world.running().await;
    let mut as_user = ExecRequest::new(["true"]);
    as_user.start.user = Some("ann".to_owned());
    let mut on_terminal = ExecRequest::new(["true"]);
    on_terminal.start.tty = Some(TtySize::default());
    for request in [as_user, on_terminal] {
        let refused = error(world.sandboxes.exec(id, request).await);
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn p9_a_guest_that_dies_under_a_command_is_told_as_stopped() {
    let world = World::new();
    let id = world.running().await;
    let sandboxes = world.sandboxes.clone();
    let running = tokio::spawn(async move { sandboxes.exec(id, ExecRequest::new(["sleep", "1000"])).await });
    eventually("the command runs", || world.mock.running(id) == 1).await;
    world.mock.crash(id);
    let broken = error(within(running).await.unwrap());
    assert_eq!(broken.kind(), ErrorKind::Stopped, "{broken}");
    let info = world.sandboxes.get(id).await.unwrap();
    assert_eq!(info.state, SandboxState::Stopped);
    assert_eq!(info.reason, Some(EndReason::Failed("guest_died".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn fifty_at_once_keep_their_output_apart() {
    let world = World::new();
    let id = world.running().await;
    world.mock.on_command("slow", |call| {
        let name = Bytes::from(call.args.join(" "));
        let pause = Step::Sleep(Duration::from_secs(1));
        Script::new([Step::Stdout(name.clone()), pause, Step::Stderr(name)])
    });
    let begun = Instant::now();
    let all = (0..50).map(|number| {
        let request = ExecRequest::new(["slow".to_owned(), number.to_string()]);
        world.sandboxes.exec(id, request)
    });
    let all = within(futures::future::join_all(all)).await;
    for (number, output) in all.into_iter().enumerate() {
        let (output, name) = (output.unwrap(), format!("slow {number}"));
        assert_eq!((output.stdout, output.stderr), (name.clone().into_bytes(), name.into_bytes()));
    }
    // Together, not one after the other.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}
