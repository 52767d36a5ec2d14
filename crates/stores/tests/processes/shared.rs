//! Two processes at one database.

use super::kit::{Database, account, child, conversation, end, ensure_whole, open, runtime, usage_of};
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use seawall_api::{
    ConversationId, TurnId,
    conversation::{Stats, TurnState},
};
use seawall_stores::SqlStore;
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    time::Duration,
};

pub fn counted(database: Database) -> Result<()> {
    let runtime = runtime();
    let ids: Vec<_> = (0..8).map(|_| ConversationId::generate()).collect();
    runtime.block_on(async {
        let stores = SqlStore::new(open(&database.address).await?).stores();
        for id in &ids {
            stores.conversations.ensure(account(), &conversation(*id)).await?;
        }
        anyhow::Ok(())
    })?;
    let list = ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let start = || child("counter", &database).env("SEAWALL_STORE_IDS", &list).spawn();
    let children = [start()?, start()?];
    let mut wanted: BTreeMap<ConversationId, Stats> = BTreeMap::new();
    for child in children {
        let output = child.wait_with_output()?;
        let said = String::from_utf8(output.stdout)?;
        ensure!(output.status.success(), "{said}");
        for line in said.lines() {
            let (turn, id) =
                line.strip_prefix("ended ").and_then(|rest| rest.split_once(' ')).context("a line")?;
            let stats = wanted.entry(id.parse()?).or_default();
            *stats = stats.plus(&usage_of(turn.parse::<TurnId>()?));
            stats.messages_exchanged += 2;
        }
    }
    runtime.block_on(async {
        let db = open(&database.address).await?;
        let stores = SqlStore::new(db.clone()).stores();
        let mut turns = 0;
        for id in &ids {
            let found = stores.conversations.get(account(), *id).await?.stats;
            ensure!(Some(&found) == wanted.get(id), "{found:?} is not {:?}", wanted.get(id));
            turns += found.messages_exchanged / 2;
        }
        ensure!(turns == 64 * 5, "{turns} turns");
        ensure_whole(&db).await
    })
}

pub fn sleeper(database: Database) -> Result<()> {
    let mut process = child("sleeper", &database).spawn()?;
    let pid = Pid::from_child(&process);
    let mut lines = BufReader::new(process.stdout.take().context("stdout")?);
    let mut line = String::new();
    lines.read_line(&mut line)?;
    let (turn, id) =
        line.trim().strip_prefix("begun ").and_then(|r| r.split_once(' ')).context(line.clone())?;
    let (turn, id): (TurnId, ConversationId) = (turn.parse()?, id.parse()?);
    kill_process(pid, Signal::STOP)?;
    let finished = runtime().block_on(async {
        let db = open(&database.address).await?;
        let stores = SqlStore::new(db).stores();
        // Until its lease has ended, by the database's clock.
        let lease = loop {
            match stores.leases.acquire("turn", "other", Duration::from_secs(60)).await? {
                Some(lease) => break lease,
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        let begun = stores.turns.get(account(), turn).await?;
        let mut ended = end(&begun);
        ended.state = TurnState::Interrupted;
        stores.turns.end(account(), Some(&lease.fence()), &ended).await?;
        anyhow::Ok(stores.conversations.get(account(), id).await?)
    });
    kill_process(pid, Signal::CONT)?;
    process.stdin.take().context("stdin")?.write_all(b"now\n")?;
    let mut rest = String::new();
    lines.read_to_string(&mut rest)?;
    process.wait()?;
    let finished = finished?;
    ensure!(rest.trim() == "refused conflict", "the sleeper said `{}`", rest.trim());
    runtime().block_on(async {
        let db = open(&database.address).await?;
        let stores = SqlStore::new(db.clone()).stores();
        ensure!(stores.conversations.get(account(), id).await? == finished);
        ensure!(stores.turns.get(account(), turn).await?.state == TurnState::Interrupted);
        ensure_whole(&db).await
    })
}
