//! How fast the databases keep things.

use super::{
    args::StoresArgs,
    figures::{Bound, Report, percentile},
};
use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use jiff::Timestamp;
use seawall_api::{
    AccountId, ConversationId, MessageId,
    conversation::{Message, Role},
};
use seawall_cli::output;
use seawall_core::ports::store::{ConversationFilter, Direction, Page, Stores};
use seawall_stores::{Db, SqlStore, sql::fill};
use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

const TASKS: usize = 16;
const SECONDS: u64 = 3;
/// The length of a message's text, in bytes.
const BODY: usize = 300;
const LONG: usize = 100_000;
const MANY: u64 = 1_000_000;
const LOOKS: usize = 200;

pub async fn all(scratch: &Path, args: &StoresArgs) -> Result<Report> {
    let mut report = Report::default();
    let db = Db::sqlite(&scratch.join("seawall.db")).await?;
    let appends = best_appends(&SqlStore::new(db.clone()).stores(), args.runs).await?;
    let least = Bound::AtLeast(4000.0);
    report.reference("sqlite_appends", "SQLite: durable appends a second, 16 tasks", "/s", appends, least);
    let [last, page] = looks(&db).await?;
    report.reference(
        "sqlite_last_50_ms",
        "  the last 50 of 100,000 messages, p50",
        "ms",
        last,
        Bound::AtMost(2.0),
    );
    report.reference(
        "sqlite_page_ms",
        "  a page of a million conversations, p50",
        "ms",
        page,
        Bound::AtMost(10.0),
    );
    match &args.postgres {
        Some(url) => of_postgres(&mut report, scratch, url, args.runs).await?,
        None => output::note("PostgreSQL is left out: name an empty database with --postgres"),
    }
    Ok(report)
}

async fn of_postgres(report: &mut Report, scratch: &Path, url: &str, runs: u32) -> Result<()> {
    let db = Db::postgres(url).await?;
    let stores = SqlStore::new(db.clone()).stores();
    let (mut ours, mut peer) = (0.0_f64, 0.0_f64);
    // In turns, so that both have the same weather.
    for _ in 0..runs {
        ours = ours.max(appends(&stores).await?);
        peer = peer.max(pgbench(scratch, url)?);
    }
    report.told("postgres_appends", "PostgreSQL: durable appends a second, 16 tasks", "/s", ours);
    report.told("pgbench_appends", "  pgbench, the same row, 16 clients", "/s", peer);
    report.promise("postgres_ratio", "  ours / pgbench", "x", ours / peer, Bound::AtLeast(0.7));
    let [last, page] = looks(&db).await?;
    report.reference(
        "postgres_last_50_ms",
        "  the last 50 of 100,000 messages, p50",
        "ms",
        last,
        Bound::AtMost(2.0),
    );
    report.reference(
        "postgres_page_ms",
        "  a page of a million conversations, p50",
        "ms",
        page,
        Bound::AtMost(10.0),
    );
    Ok(())
}

async fn best_appends(stores: &Stores, runs: u32) -> Result<f64> {
    let mut best = 0.0_f64;
    for _ in 0..runs {
        best = best.max(appends(stores).await?);
    }
    Ok(best)
}

/// Single messages, each durable before the next, from several tasks.
async fn appends(stores: &Stores) -> Result<f64> {
    let began = Instant::now();
    let tasks = (0..TASKS).map(|_| {
        let messages = stores.messages.clone();
        tokio::spawn(async move {
            let (account, conversation, mut count) =
                (AccountId::generate(), ConversationId::generate(), 0_u64);
            while began.elapsed() < Duration::from_secs(SECONDS) {
                messages.put(account, &[message(conversation)]).await?;
                count += 1;
            }
            anyhow::Ok(count)
        })
    });
    let counts = try_join_all(tasks).await?.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(counts.iter().sum::<u64>() as f64 / began.elapsed().as_secs_f64())
}

fn message(conversation: ConversationId) -> Message {
    Message {
        id: MessageId::generate(),
        conversation_id: conversation,
        turn_id: None,
        role: Role::User,
        body: "x".repeat(BODY),
        usage: None,
        tool_calls: Vec::new(),
        created_at: Timestamp::now(),
        revision: 0,
    }
}

/// The last messages of a long conversation, and a page among many conversations: medians in milliseconds.
async fn looks(db: &Db) -> Result<[f64; 2]> {
    let stores = SqlStore::new(db.clone()).stores();
    let (account, long) = (AccountId::generate(), ConversationId::generate());
    for _ in 0..LONG / 1000 {
        let part: Vec<_> = (0..1000).map(|_| message(long)).collect();
        stores.messages.put(account, &part).await?;
    }
    fill::conversations(db, account, MANY).await?;
    let (mut last, mut page) = (Vec::new(), Vec::new());
    let mut next = Page::first(50);
    let filter = ConversationFilter::default();
    for _ in 0..LOOKS {
        let began = Instant::now();
        let found = stores.messages.list(account, long, Direction::NewestFirst, &Page::first(50)).await?;
        last.push(began.elapsed().as_secs_f64() * 1000.0);
        ensure!(found.items.len() == 50, "{} messages came", found.items.len());
        let began = Instant::now();
        let found = stores.conversations.list(account, &filter, &next).await?;
        page.push(began.elapsed().as_secs_f64() * 1000.0);
        ensure!(found.items.len() == 50, "{} conversations came", found.items.len());
        next = next.after(found.next.context("there are more")?);
    }
    Ok([&mut last, &mut page].map(|times| {
        times.sort_by(f64::total_cmp);
        percentile(times, 0.50)
    }))
}

/// The same row by PostgreSQL's own measure, in transactions a second.
fn pgbench(scratch: &Path, url: &str) -> Result<f64> {
    let script = scratch.join("append.sql");
    let content = serde_json::to_string(&message(ConversationId::generate()))?;
    let id = "uuid_send(gen_random_uuid())";
    std::fs::write(
        &script,
        format!(
            "INSERT INTO messages (account_id, conversation_id, created_at, id, revision, content)
            VALUES ({id}, {id}, CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT), {id}, 0, '{content}');\n"
        ),
    )?;
    let program = find_pgbench().context("there is no pgbench; install PostgreSQL's server package")?;
    let (clients, seconds) = (TASKS.to_string(), SECONDS.to_string());
    let ran = Command::new(program)
        .args(["-n", "-M", "prepared", "-c", &clients, "-j", "2", "-T", &seconds, "-f"])
        .arg(&script)
        .arg(url)
        .output()?;
    let said = String::from_utf8_lossy(&ran.stdout);
    ensure!(ran.status.success(), "pgbench: {}", String::from_utf8_lossy(&ran.stderr).trim());
    let line =
        said.lines().find_map(|line| line.strip_prefix("tps = ")).context("pgbench tells no figure")?;
    Ok(line.split(' ').next().unwrap_or_default().parse()?)
}

fn find_pgbench() -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let usual = versions.map(|version| version.path().join("bin"));
    std::env::split_paths(&path).chain(usual).map(|dir| dir.join("pgbench")).find(|file| file.is_file())
}
