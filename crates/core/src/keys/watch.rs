//! What a key has open: streams, sockets and wires, which end with the key.

use crate::ports::{Clock, store::Accounts};
use seawall_api::{AccountId, KeyId};
use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

/// How often the keys with something open are looked up. With the look itself that is less than a second.
const POLL: Duration = Duration::from_millis(500);
/// A store that takes longer for it is asked again.
const PATIENCE: Duration = Duration::from_secs(5);

/// All that is open, by key. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Watched(Arc<Mutex<Open>>);

#[derive(Default)]
struct Open {
    keys: HashMap<KeyId, Entry>,
    /// A task looks the keys up.
    polled: bool,
}

struct Entry {
    account: AccountId,
    over: watch::Sender<bool>,
    watches: usize,
}

/// Tells when its key is not good any more.
pub struct KeyWatch {
    all: Watched,
    key: KeyId,
    over: watch::Receiver<bool>,
}

impl fmt::Debug for KeyWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyWatch").field("key", &self.key).finish_non_exhaustive()
    }
}

impl KeyWatch {
    /// Ends when the key is revoked, has expired, or its account was suspended; at once where that is so already.
    pub fn over(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut over = self.over.clone();
        async move {
            // Without its sender nobody can say so any more.
            if over.wait_for(|over| *over).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl KeyWatch {
    /// Becomes true when the key is not good any more.
    pub fn receiver(&self) -> watch::Receiver<bool> {
        self.over.clone()
    }
}

impl Drop for KeyWatch {
    fn drop(&mut self) {
        let mut open = self.all.open();
        let Some(entry) = open.keys.get_mut(&self.key) else { return };
        // One that is over was replaced by a new entry, if the key is watched again.
        if !is_of(&entry.over, &self.over) {
            return;
        }
        entry.watches -= 1;
        if entry.watches == 0 {
            open.keys.remove(&self.key);
        }
    }
}

fn is_of(sender: &watch::Sender<bool>, receiver: &watch::Receiver<bool>) -> bool {
    sender.subscribe().same_channel(receiver)
}

impl Watched {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn watch(
        &self,
        key: KeyId,
        account: AccountId,
        accounts: &Arc<dyn Accounts>,
        clock: &Arc<dyn Clock>,
        forget: impl Fn(KeyId) + Send + Sync + 'static,
    ) -> KeyWatch {
        let mut open = self.open();
        let fresh = || Entry { account, over: watch::Sender::new(false), watches: 0 };
        let entry = open.keys.entry(key).or_insert_with(fresh);
        entry.watches += 1;
        let over = entry.over.subscribe();
        if !open.polled {
            open.polled = true;
            tokio::spawn(self.clone().poll(accounts.clone(), clock.clone(), forget));
        }
        KeyWatch { all: self.clone(), key, over }
    }

    /// Ends what the chosen keys have open.
    pub(super) fn end(&self, chosen: impl Fn(KeyId, AccountId) -> bool) {
        self.open().keys.retain(|key, entry| {
            let ends = chosen(*key, entry.account);
            if ends {
                tracing::info!(%key, account = %entry.account, open = entry.watches, "what the key has open ends");
                entry.over.send_replace(true);
            }
            !ends
        });
    }

    /// Looks up the keys that have something open, until none has. `forget`: what is believed of a key that is not good.
    async fn poll(
        self,
        accounts: Arc<dyn Accounts>,
        clock: Arc<dyn Clock>,
        forget: impl Fn(KeyId) + Send + Sync + 'static,
    ) {
        loop {
            sleep(POLL).await;
            let keys: Vec<KeyId> = {
                let mut open = self.open();
                if open.keys.is_empty() {
                    open.polled = false;
                    return;
                }
                open.keys.keys().copied().collect()
            };
            match timeout(PATIENCE, accounts.good_keys(&keys, clock.now())).await {
                Ok(Ok(good)) => {
                    let good: HashSet<KeyId> = good.into_iter().collect();
                    let mut over: HashSet<KeyId> = keys.into_iter().collect();
                    over.retain(|key| !good.contains(key));
                    over.iter().for_each(|key| forget(*key));
                    self.end(|key, _| over.contains(&key));
                }
                // What is not known to be revoked goes on: a store that is away must not end everything.
                Ok(Err(error)) => {
                    tracing::warn!(error = %error.chain(), "keys with open streams could not be looked up")
                }
                Err(_) => tracing::warn!("keys with open streams could not be looked up in time"),
            }
        }
    }
}
