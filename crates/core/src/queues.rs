//! One after the other, sandbox by sandbox.

use crate::Result;
use seawall_api::SandboxId;
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};
use tokio::{
    sync::{Mutex as Queue, OwnedMutexGuard},
    time::sleep,
};

/// How soon, and at the latest, a lock that another process has is tried again.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

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

    /// Takes something that other processes may have too, such as a lock of a file. None of `attempt` means that another
    /// has it. Waiting takes no thread, however long it lasts: within this process those who want the same stand in the
    /// queue, and only the first of them tries, again and again.
    pub async fn acquire<T>(
        &self,
        id: SandboxId,
        mut attempt: impl FnMut() -> Result<Option<T>>,
    ) -> Result<(Turn, T)> {
        let turn = self.wait(id).await;
        let mut pause = FIRST_PAUSE;
        loop {
            if let Some(taken) = attempt()? {
                return Ok((turn, taken));
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Those that somebody stands in.
    pub fn occupied(&self) -> Vec<SandboxId> {
        let queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queues.iter().filter(|(_, queue)| queue.strong_count() > 0).map(|(id, _)| *id).collect()
    }
}
