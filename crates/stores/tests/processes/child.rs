//! The roles of children. Whatever they print has happened.

use super::kit::{account, begin, conversation, end, open, runtime};
use anyhow::{Result, bail};
use seawall_api::{ConversationId, ErrorKind};
use seawall_core::ports::store::Stores;
use seawall_stores::SqlStore;
use std::{
    io::{BufRead, Write},
    time::Duration,
};

pub fn play(role: &str) {
    let played = runtime().block_on(async {
        let db = open(&std::env::var("SEAWALL_STORE")?).await?;
        let stores = SqlStore::new(db).stores();
        match role {
            "writer" => write(&stores).await,
            "appender" => append(&stores).await,
            "counter" => count(&stores).await,
            "sleeper" => sleep(&stores).await,
            other => bail!("there is no role {other}"),
        }
    });
    if let Err(error) = played {
        say(format!("failed {error:?}"));
        std::process::exit(1);
    }
}

/// In one piece, and before anything else happens.
fn say(line: String) {
    let mut out = std::io::stdout().lock();
    // Whoever reads may have killed us already.
    let _ = out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush());
}

/// Turns in four conversations at once, for ever.
async fn write(stores: &Stores) -> Result<()> {
    let one = async || -> Result<()> {
        let id = ConversationId::generate();
        stores.conversations.ensure(account(), &conversation(id)).await?;
        say(format!("conversation {id}"));
        loop {
            let turn = stores.turns.begin(account(), None, &begin(id)).await?;
            say(format!("begun {}", turn.id));
            for number in 0..3 {
                let event = format!("event {number}").into();
                stores.turns.append_events(account(), None, turn.id, number, &[event], number).await?;
                say(format!("event {} {number}", turn.id));
            }
            stores.turns.end(account(), None, &end(&turn)).await?;
            say(format!("ended {}", turn.id));
        }
    };
    futures::try_join!(one(), one(), one(), one())?;
    Ok(())
}

/// Fifty messages, one after the other.
async fn append(stores: &Stores) -> Result<()> {
    let id = ConversationId::generate();
    for _ in 0..50 {
        let prompt = begin(id).prompt;
        stores.messages.put(account(), &[prompt]).await?;
        say("put".into());
    }
    Ok(())
}

/// Half of 64 tasks, in eight conversations that others use too; each turn ends twice at times.
async fn count(stores: &Stores) -> Result<()> {
    let ids: Vec<ConversationId> =
        std::env::var("SEAWALL_STORE_IDS")?.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let tasks = (0..32).map(|task| {
        let (stores, id) = (stores.clone(), ids[task % ids.len()]);
        async move {
            for round in 0..5 {
                let new = begin(id);
                // One turn at a time.
                let turn = loop {
                    match stores.turns.begin(account(), None, &new).await {
                        Err(error) if error.kind() == ErrorKind::Conflict => {
                            tokio::time::sleep(Duration::from_millis(2)).await;
                        }
                        other => break other?,
                    }
                };
                let ended = end(&turn);
                if round % 2 == 0 {
                    let (one, two) = futures::join!(
                        stores.turns.end(account(), None, &ended),
                        stores.turns.end(account(), None, &ended)
                    );
                    one.and(two)?;
                }
                stores.turns.end(account(), None, &ended).await?;
                say(format!("ended {} {id}", turn.id));
            }
            anyhow::Ok(())
        }
    });
    futures::future::try_join_all(tasks).await?;
    Ok(())
}

/// Holds a lease for a second, begins a turn, and ends it when it is told to, however late.
async fn sleep(stores: &Stores) -> Result<()> {
    let id = ConversationId::generate();
    stores.conversations.ensure(account(), &conversation(id)).await?;
    let lease =
        stores.leases.acquire("turn", "sleeper", Duration::from_secs(1)).await?.expect("nobody has it");
    let turn = stores.turns.begin(account(), Some(&lease.fence()), &begin(id)).await?;
    say(format!("begun {} {id}", turn.id));
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    match stores.turns.end(account(), Some(&lease.fence()), &end(&turn)).await {
        Ok(_) => say("written".into()),
        Err(error) => say(format!("refused {}", error.kind())),
    }
    Ok(())
}
