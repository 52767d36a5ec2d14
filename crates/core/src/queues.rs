//! One after the other, sandbox by sandbox.

use seawall_api::SandboxId;
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
};
use tokio::sync::{Mutex as Queue, OwnedMutexGuard};

/// A place in front of a queue. Others wait while it is held.
pub type Turn = OwnedMutexGuard<()>;

/// A queue for each sandbox that somebody is at. Clones share them.
#[derive(Clone, Default)]
pub struct Queues(Arc<Mutex<HashMap<SandboxId, Weak<Queue<()>>>>>);

impl fmt::Debug for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queues").finish_non_exhaustive()
    }
}

impl Queues {
    /// Waits for those who came before. While it is held, others wait.
    pub async fn wait(&self, id: SandboxId) -> Turn {
        self.queue(id).lock_owned().await
    }

    /// The first place, where nobody stands in the queue.
    pub fn try_take(&self, id: SandboxId) -> Option<Turn> {
        self.queue(id).try_lock_owned().ok()
    }

    fn queue(&self, id: SandboxId) -> Arc<Queue<()>> {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match queues.get(&id).and_then(Weak::upgrade) {
            Some(queue) => queue,
            None => {
                // Those that nobody stands in are forgotten here, so that there are never many.
                queues.retain(|_, queue| queue.strong_count() > 0);
                let queue = Arc::new(Queue::new(()));
                queues.insert(id, Arc::downgrade(&queue));
                queue
            }
        }
    }

    /// Those that somebody stands in.
    pub fn occupied(&self) -> Vec<SandboxId> {
        let queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queues.iter().filter(|(_, queue)| queue.strong_count() > 0).map(|(id, _)| *id).collect()
    }
}
