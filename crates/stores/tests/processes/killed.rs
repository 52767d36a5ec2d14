//! kill -9 in the middle of writes.

use super::kit::{Database, account, child, ensure_whole, open, runtime, sqlite, usage_of};
use anyhow::{Result, ensure};
use seawall_api::{ConversationId, TurnId, conversation::TurnState};
use seawall_core::ports::store::Page;
use seawall_stores::{Db, SqlStore};
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// What a child said before it died.
#[derive(Default)]
struct Said {
    conversations: Vec<ConversationId>,
    /// How many events of each turn, and whether it has ended.
    turns: BTreeMap<TurnId, (u64, bool)>,
}

fn understand(text: &str) -> Result<Said> {
    let mut said = Said::default();
    for line in text.lines() {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["conversation", id] => said.conversations.push(id.parse()?),
            ["begun", id] => drop(said.turns.insert(id.parse()?, (0, false))),
            ["event", id, _] => said.turns.entry(id.parse()?).or_default().0 += 1,
            ["ended", id] => said.turns.entry(id.parse()?).or_default().1 = true,
            // The last line may be cut.
            _ if text.ends_with(&format!("{line}\n")) => {}
            _ => anyhow::bail!("the child said `{line}`"),
        }
    }
    Ok(said)
}

pub fn many_times(database: Database, times: u64) -> Result<()> {
    let runtime = runtime();
    let mut acknowledged = 0;
    for round in 0..times {
        let mut process = child("writer", &database).spawn()?;
        let out = BufReader::new(process.stdout.take().unwrap());
        let lines = Arc::new(AtomicU64::new(0));
        let read = lines.clone();
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            for line in out.split(b'\n') {
                text.push_str(&String::from_utf8_lossy(&line?));
                text.push('\n');
                read.fetch_add(1, Ordering::Relaxed);
            }
            std::io::Result::Ok(text)
        });
        // Sometimes while it starts, mostly while it writes.
        let wanted = if round % 8 == 0 { 0 } else { (round * 37) % 60 };
        let give_up = Instant::now() + Duration::from_secs(60);
        while lines.load(Ordering::Relaxed) < wanted && Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis((round * 13) % 17));
        process.kill()?;
        process.wait()?;
        database.left()?;
        let said = understand(&reader.join().unwrap()?)?;
        acknowledged += said.turns.len();
        runtime.block_on(async {
            let db = open(&database.address).await?;
            compare(&db, &said).await?;
            // Everything, now and then and at last.
            if round % 25 == 0 || round + 1 == times {
                ensure_whole(&db).await?;
            }
            anyhow::Ok(())
        })?;
    }
    ensure!(acknowledged > times as usize, "only {acknowledged} turns were written in {times} rounds");
    Ok(())
}

/// That everything which was acknowledged is there, and nothing by halves.
async fn compare(db: &Db, said: &Said) -> Result<()> {
    let stores = SqlStore::new(db.clone()).stores();
    for (id, (events, ended)) in &said.turns {
        let turn = stores.turns.get(account(), *id).await?;
        ensure!(turn.events >= *events, "{} of {events} events are there", turn.events);
        ensure!(!ended || turn.state == TurnState::Completed, "an end that was acknowledged is gone");
        let there = stores.turns.events(account(), *id, 0, 100).await?;
        ensure!(there.len() as u64 == turn.events);
        stores.messages.get(account(), turn.conversation_id, turn.prompt_id).await?;
        let answer = stores.messages.get(account(), turn.conversation_id, turn.answer_id).await;
        ensure!(answer.is_ok() == (turn.state == TurnState::Completed), "half of an end");
        ensure!(turn.usage == (turn.state == TurnState::Completed).then(|| usage_of(*id)));
    }
    for id in &said.conversations {
        let turns = stores.turns.list(account(), *id, &Page::first(1000)).await?.items;
        let stats = stores.conversations.get(account(), *id).await?.stats;
        let input: u64 = turns.iter().filter_map(|turn| turn.usage).map(|usage| usage.input_tokens).sum();
        let answered = turns.iter().filter(|turn| turn.usage.is_some()).count();
        ensure!(stats.total_input_tokens == input, "{} is not {input}", stats.total_input_tokens);
        ensure!(stats.messages_exchanged == (turns.len() + answered) as u64);
        // A turn that was under way is closed, as a server that comes back would.
        for running in stores.turns.running(&Page::first(100)).await?.items {
            let turn = stores.turns.get(running.account_id, running.id).await?;
            stores.turns.end(running.account_id, None, &super::kit::end(&turn)).await?;
        }
    }
    Ok(())
}

/// As the kernel saw it.
pub fn synced() -> Result<()> {
    if Command::new("strace").arg("-V").output().is_err() {
        ensure!(!crate::postgres::is_required(), "there is no strace");
        println!("skipped sqlite::every_acknowledged_batch_is_synced: there is no strace");
        return Ok(());
    }
    let database = sqlite();
    // Made before, so that only the appends are counted.
    runtime().block_on(async { open(&database.address).await.map(drop) })?;
    let plain = child("appender", &database);
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("log");
    let mut traced = Command::new("strace");
    traced.args(["-f", "-e", "trace=fsync,fdatasync,write", "-e", "signal=none", "-o"]).arg(&log);
    traced.arg(plain.get_program());
    traced.envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let ran = traced.output()?;
    ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
    let log = std::fs::read_to_string(log)?;
    // Before each word that something is stored there was a sync.
    let (mut synced, mut acknowledged) = (false, 0);
    for line in log.lines() {
        let is_sync = (line.contains("fsync(") || line.contains("fdatasync")) && line.contains("= 0");
        synced |= is_sync;
        if line.contains("write(1, \"put") {
            ensure!(synced, "acknowledged without a sync: {line}");
            (synced, acknowledged) = (false, acknowledged + 1);
        }
    }
    ensure!(acknowledged == 50, "{acknowledged} of 50 were seen");
    Ok(())
}
