//! PostgreSQL restarted under load.

use super::kit::{account, begin, conversation, end, ensure_whole, open, runtime, usage_of};
use anyhow::{Context, Result, bail, ensure};
use seawall_api::{ConversationId, TurnId, conversation::TurnState};
use seawall_core::ports::store::Stores;
use seawall_stores::SqlStore;
use std::{
    path::Path,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// A server of its own: others need theirs.
struct Server {
    folder: tempfile::TempDir,
}

impl Server {
    fn run(&self, what: &str) -> Result<String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/postgres");
        let ran = Command::new(script).arg(what).arg(self.folder.path().join("server")).output()?;
        ensure!(ran.status.success(), "{what}: {}", String::from_utf8_lossy(&ran.stderr));
        Ok(String::from_utf8(ran.stdout)?.trim().to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.run("kill");
    }
}

pub fn under_load() -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let server = Arc::new(Server { folder });
    let address = server.run("start")?;
    runtime().block_on(async {
        let db = open(&address).await?;
        let stores = SqlStore::new(db.clone()).stores();
        let (over, ended) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        let tasks = futures::future::try_join_all((0..8).map(|_| work(&stores, &over, &ended)));
        let restarts = async {
            for how in ["kill", "stop", "kill"] {
                some_end(&ended).await?;
                let server = server.clone();
                tokio::task::spawn_blocking(move || {
                    server.run(how)?;
                    std::thread::sleep(Duration::from_millis(200));
                    server.run("start")
                })
                .await??;
            }
            some_end(&ended).await?;
            over.store(true, Ordering::Relaxed);
            anyhow::Ok(())
        };
        futures::try_join!(tasks, restarts)?;
        let ended: Vec<TurnId> = ended.lock().unwrap().clone();
        ensure!(ended.len() > 50, "only {} turns ended", ended.len());
        for id in &ended {
            let turn = stores.turns.get(account(), *id).await?;
            ensure!((turn.state, turn.usage) == (TurnState::Completed, Some(usage_of(*id))), "{turn:?}");
            stores.messages.get(account(), turn.conversation_id, turn.answer_id).await?;
        }
        ensure_whole(&db).await
    })
}

/// Waits until some turns have ended that had not before.
async fn some_end(ended: &Mutex<Vec<TurnId>>) -> Result<()> {
    let before = ended.lock().unwrap().len();
    for _ in 0..6000 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if ended.lock().unwrap().len() > before + 20 {
            return Ok(());
        }
    }
    bail!("for a minute no turns ended")
}

/// Turns until it is over. Each call succeeds, or fails in a way that says to try again.
async fn work(stores: &Stores, over: &AtomicBool, ended: &Mutex<Vec<TurnId>>) -> Result<()> {
    let id = ConversationId::generate();
    again(async || stores.conversations.ensure(account(), &conversation(id)).await).await?;
    while !over.load(Ordering::Relaxed) {
        let new = begin(id);
        let turn = again(async || stores.turns.begin(account(), None, &new).await).await.context("begin")?;
        let event = [bytes::Bytes::from_static(b"event")];
        again(async || stores.turns.append_events(account(), None, turn.id, 0, &event, 1).await).await?;
        let done = end(&turn);
        again(async || stores.turns.end(account(), None, &done).await).await.context("end")?;
        ended.lock().unwrap().push(turn.id);
    }
    Ok(())
}

async fn again<T>(mut call: impl AsyncFnMut() -> seawall_core::Result<T>) -> Result<T> {
    loop {
        match call().await {
            Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_millis(50)).await,
            other => return Ok(other?),
        }
    }
}
