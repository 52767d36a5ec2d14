//! Measures the server's memory with many listeners: most of them follow silent turns, some follow turns that print.

use super::{
    raw::{Http, Target, Told},
    server::Server,
};
use crate::{
    figures::{Bound, Report},
    measure::{process_status, pss_kib},
};
use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, future::try_join_all, stream};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use seawall_api::{conversation::Turn, event::Event};
use seawall_cli::output;
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

const ACTIVE: usize = 50;
/// Each has a sandbox, so they are few, and have many listeners each.
const SILENT: usize = 10;
const CLIENTS: usize = 2000;
/// Runs for longer than the measurement, which cancels it at the end.
const PRINTS: &str = "while sleep 0.1; do echo a line of an answer that goes on; done";
const SLEEPS: &str = "sleep 3600";
/// Connections that are opened at once.
const AT_ONCE: usize = 64;
/// For all turns to run, and for all of them to end.
const READY: Duration = Duration::from_secs(120);
/// Longer than a silent stream goes without a sign of life (15 s).
const HOLD: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Open files that this process and the server need: one end of each stream, and some for sandboxes and the database.
const FILES: u64 = 8192;
const MIB: f64 = (1 << 20) as f64;

/// For this process, and those that it starts from now on.
pub fn raise_open_files() -> Result<()> {
    let now = getrlimit(Resource::Nofile);
    // `None` means no limit.
    if now.current.is_none_or(|current| current >= FILES) {
        return Ok(());
    }
    let may = now.maximum.is_none_or(|most| most >= FILES);
    ensure!(may, "{FILES} open files are needed, and this user may not have them: see `ulimit -Hn`");
    let wanted = Rlimit { current: Some(FILES), maximum: now.maximum };
    setrlimit(Resource::Nofile, wanted).context("the limit of open files cannot be raised")
}

pub async fn memory(server: &Server, report: &mut Report) -> Result<()> {
    let target = &server.target;
    let before = rss_mib(server)?;
    let (printing, silent) = (begin(target, ACTIVE, PRINTS).await?, begin(target, SILENT, SLEEPS).await?);
    let (mut active, mut idle) = (Crowd::default(), Crowd::default());
    for stream in running(target, &printing, |event| matches!(event, Event::Text { .. })).await? {
        active.add(stream);
    }
    // These streams only wait until the turns are silent. The idle clients connect afterwards.
    running(target, &silent, |event| matches!(event, Event::AgentStarted { .. })).await?;
    let clients = (0..CLIENTS).map(|number| follow(target, &silent[number % SILENT], |_| true));
    let clients: Vec<Http> = stream::iter(clients).buffer_unordered(AT_ONCE).try_collect().await?;
    clients.into_iter().for_each(|client| idle.add(client));
    weigh(server, before, (&active, &idle), report).await?;
    cancel(target, printing.iter().chain(&silent)).await?;
    let ended = timeout(READY, async { tokio::join!(active.ended(), idle.ended()) }).await;
    if ended.is_err() {
        output::note("some streams did not end with their turns");
    }
    Ok(())
}

async fn weigh(
    server: &Server,
    before: f64,
    (active, idle): (&Crowd, &Crowd),
    report: &mut Report,
) -> Result<()> {
    let (active_before, idle_before) = (active.heard(), idle.heard());
    let begun = Instant::now();
    let mut most = 0.0_f64;
    while begun.elapsed() < HOLD {
        sleep(LOOK_EVERY).await;
        most = most.max(rss_mib(server)?);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let events = active.heard().iter().sum::<u64>() - active_before.iter().sum::<u64>();
    // An event a second at the least: several lines may come as one.
    let advancing = active.alive_and_heard(&active_before, HOLD.as_secs());
    let alive = idle.alive_and_heard(&idle_before, 1);

    let name = "memory with 2,000 idle SSE clients and 50 active turns";
    report.promise("http_rss_mib", name, "MiB", most, Bound::AtMost(150.0));
    match pss_kib(server.pid()) {
        Ok(kib) => report.told("http_pss_mib", "  the same as PSS", "MiB", kib as f64 / 1024.0),
        Err(error) => output::note(format!("PSS is left out: {error:#}")),
    }
    report.told("http_rss_before_mib", "  before they came", "MiB", before);
    let name = "  idle clients that are alive and heard of it";
    report.promise("http_idle_alive", name, "", alive as f64, Bound::AtLeast(CLIENTS as f64));
    let name = "  active streams that go on";
    report.promise("http_active", name, "", advancing as f64, Bound::AtLeast(ACTIVE as f64));
    report.told("http_active_events", "  their events a second", "/s", events as f64 / seconds);
    Ok(())
}

fn rss_mib(server: &Server) -> Result<f64> {
    Ok(process_status(server.pid(), "VmRSS").context("the server is gone")? / MIB)
}

/// Starts turns that need no listener, each in a new sandbox.
async fn begin(target: &Target, count: usize, prompt: &str) -> Result<Vec<Turn>> {
    let mut http = Http::connect(target).await?;
    let ask = json!({ "prompt": prompt });
    let mut turns = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = http.call("POST", "/conversations/new/sandbox/auto?stream=false", Some(&ask)).await?;
        turns.push(serde_json::from_slice(&begun)?);
    }
    Ok(turns)
}

/// A stream of each, read up to this event.
async fn running(target: &Target, turns: &[Turn], until: fn(&Event) -> bool) -> Result<Vec<Http>> {
    let all = try_join_all(turns.iter().map(|turn| follow(target, turn, until)));
    timeout(READY, all).await.context("the turns do not get to work")?
}

async fn follow(target: &Target, turn: &Turn, until: fn(&Event) -> bool) -> Result<Http> {
    let mut http = Http::connect(target).await?;
    http.stream("GET", &format!("{}/events", path(turn)), None).await?;
    loop {
        match http.next().await? {
            Some(Told::Event(event)) if until(&event) => return Ok(http),
            Some(Told::Event(Event::TurnEnded { state, error, .. })) => {
                bail!("a turn ended too soon, as {state}: {error:?}")
            }
            Some(_) => {}
            None => bail!("a stream ended before its turn"),
        }
    }
}

async fn cancel<'a>(target: &Target, turns: impl Iterator<Item = &'a Turn>) -> Result<()> {
    let mut http = Http::connect(target).await?;
    for turn in turns {
        http.call("POST", &format!("{}/cancel", path(turn)), None).await?;
    }
    Ok(())
}

fn path(turn: &Turn) -> String {
    format!("/conversations/{}/turns/{}", turn.conversation_id, turn.id)
}

/// Streams that tasks read to their end, each with a count of its events. Dropping the crowd ends the tasks.
#[derive(Default)]
struct Crowd {
    clients: Vec<Arc<Client>>,
    tasks: JoinSet<()>,
}

#[derive(Default)]
struct Client {
    heard: AtomicU64,
    over: AtomicBool,
}

impl Crowd {
    fn add(&mut self, mut stream: Http) {
        let client = Arc::new(Client::default());
        self.clients.push(client.clone());
        self.tasks.spawn(async move {
            while let Ok(Some(_)) = stream.next().await {
                client.heard.fetch_add(1, Ordering::Relaxed);
            }
            client.over.store(true, Ordering::Relaxed);
        });
    }

    fn heard(&self) -> Vec<u64> {
        self.clients.iter().map(|client| client.heard.load(Ordering::Relaxed)).collect()
    }

    /// How many are connected, and heard so much since then.
    fn alive_and_heard(&self, since: &[u64], least: u64) -> usize {
        let clients = self.clients.iter().zip(since);
        let good = clients.filter(|(client, before)| {
            let heard = client.heard.load(Ordering::Relaxed).saturating_sub(**before);
            !client.over.load(Ordering::Relaxed) && heard >= least
        });
        good.count()
    }

    async fn ended(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}
