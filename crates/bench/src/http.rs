//! Measures the service over HTTP: reads per second, memory with many listeners, and the latency that HTTP adds. The server
//! is a separate process. Its peer runs in this process, on a second data folder and as many threads.

use super::{
    figures::{Bound, Report, percentile},
    product::Product,
};
use anyhow::{Context, Result, ensure};
use peer::Peer;
use raw::{Http, Target, Told};
use seawall_api::{
    ConversationId, SandboxId,
    conversation::{Conversation, TurnState},
    event::Event,
    http::ExecResult,
};
use seawall_cli::{config::Settings, output};
use serde_json::json;
use server::Server;
use std::time::{Duration, Instant};

mod crowd;
mod load;
mod peer;
mod raw;
mod server;

pub use server::settings;

const WARM_UP: usize = 20;
const EXECS: usize = 200;
const TURNS: usize = 100;
/// Lets the work that follows a turn's answer end before the next turn is measured.
const PAUSE: Duration = Duration::from_millis(10);

/// `direct` has the settings and the data folder of the peer, which the server does not use.
pub async fn all(product: &Product, direct: Settings, runs: u32) -> Result<Report> {
    // The server inherits it.
    crowd::raise_open_files()?;
    let server = Server::start(product).await?;
    let mut report = Report::default();
    if let Err(error) = measure(&server, direct, runs, &mut report).await {
        output::note(format!("the end of the server's log:\n{}", server.end_of_log()));
        return Err(error);
    }
    if let Err(error) = server.stop().await {
        output::note(format!("{error:#}"));
    }
    Ok(report)
}

async fn measure(server: &Server, direct: Settings, runs: u32, report: &mut Report) -> Result<()> {
    let target = &server.target;
    let (conversation, sandbox) = conversation(target).await?;
    load::reads(target, &format!("/conversations/{conversation}"), runs, report).await?;
    let peer = Peer::open(direct).await?;
    exec(&peer, target, sandbox, report).await?;
    first_output(&peer, target, conversation, sandbox, report).await?;
    drop(peer);
    // The last, so that memory which the server keeps after other work counts too.
    crowd::memory(server, report).await
}

/// A conversation, with its sandbox.
async fn conversation(target: &Target) -> Result<(ConversationId, SandboxId)> {
    let mut http = Http::connect(target).await?;
    let made = http.call("POST", "/conversations", Some(&json!({}))).await?;
    let made: Conversation = serde_json::from_slice(&made)?;
    let path = format!("/conversations/{}/sandbox/auto", made.id);
    Ok((made.id, turn(&mut http, &path, "echo made").await?.1))
}

/// From sending a prompt to the first output, and in which sandbox. The turn is over when this returns.
async fn turn(http: &mut Http, path: &str, prompt: &str) -> Result<(Duration, SandboxId)> {
    let ask = json!({ "prompt": prompt });
    let begun = Instant::now();
    http.stream("POST", path, Some(&ask)).await?;
    let (mut seen, mut sandbox) = (None, None);
    while let Some(told) = http.next().await? {
        match told {
            Told::Event(Event::Text { .. }) => {
                seen.get_or_insert_with(|| begun.elapsed());
            }
            Told::Event(Event::TurnStarted { sandbox_id, .. }) => sandbox = Some(sandbox_id),
            Told::Event(Event::TurnEnded { state, error, .. }) => {
                ensure!(state == TurnState::Completed, "a turn ended as {state}: {error:?}");
            }
            _ => {}
        }
    }
    Ok((seen.context("a turn without output")?, sandbox.context("a turn without a sandbox")?))
}

/// `true` through the server, and over the wire by the peer: in turns, so that both meet the same load of the machine.
async fn exec(peer: &Peer, target: &Target, sandbox: SandboxId, report: &mut Report) -> Result<()> {
    let mut http = Http::connect(target).await?;
    let (path, ask) = (format!("/sandboxes/{sandbox}/exec"), json!({ "args": ["true"] }));
    let (mut served, mut direct) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + EXECS {
        let begun = Instant::now();
        let answer: ExecResult = serde_json::from_slice(&http.call("POST", &path, Some(&ask)).await?)?;
        let through_server = begun.elapsed();
        ensure!(answer.exit_code == 0, "`true` ended with {}", answer.exit_code);
        let through_wire = peer.exec().await?;
        if round >= WARM_UP {
            served.push(millis(through_server));
            direct.push(millis(through_wire));
        }
    }
    let (served, direct) = (p50(&mut served), p50(&mut direct));
    report.told("http_exec_p50_ms", "exec `true` over HTTP, p50", "ms", served);
    report.told("wire_exec_p50_ms", "  over the wire, p50", "ms", direct);
    let (name, bound) = ("  HTTP adds to exec, p50", Bound::AtMost(1.0));
    report.reference("http_exec_adds_ms", name, "ms", served - direct, bound);
    Ok(())
}

/// From a prompt to the first output on a running sandbox: through the server, and by the service in this process.
async fn first_output(
    peer: &Peer,
    target: &Target,
    conversation: ConversationId,
    sandbox: SandboxId,
    report: &mut Report,
) -> Result<()> {
    let mut http = Http::connect(target).await?;
    let path = format!("/conversations/{conversation}/sandbox/{sandbox}");
    let (mut served, mut direct) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + TURNS {
        tokio::time::sleep(PAUSE).await;
        let (through_server, _) = turn(&mut http, &path, "echo hello").await?;
        tokio::time::sleep(PAUSE).await;
        let in_process = peer.first_output().await?;
        if round >= WARM_UP {
            served.push(millis(through_server));
            direct.push(millis(in_process));
        }
    }
    let (served, direct) = (p50(&mut served), p50(&mut direct));
    report.told("http_first_p50_ms", "prompt to first output over HTTP, p50", "ms", served);
    report.told("here_first_p50_ms", "  in this process, p50", "ms", direct);
    let (name, bound) = ("  HTTP adds to the first event with output, p50", Bound::AtMost(1.0));
    report.reference("http_first_adds_ms", name, "ms", served - direct, bound);
    Ok(())
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn p50(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    percentile(times, 0.50)
}
