//! How much of the server's memory the requests of a sandbox may take while they are read.

use seawall_api::SandboxId;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The longest request to a model.
pub const LONGEST: u64 = 32 << 20;
/// For each sandbox, in KiB: four of the longest.
const ROOM: usize = 128 << 10;

/// Each sandbox has its own, so that one that takes all waits for itself alone.
#[derive(Debug, Default)]
pub struct Rooms(Mutex<HashMap<SandboxId, Weak<Semaphore>>>);

impl Rooms {
    /// Room for so many bytes, until it is dropped. None: the length is not known, and may be the longest.
    pub async fn take(&self, sandbox: SandboxId, bytes: Option<u64>) -> Option<OwnedSemaphorePermit> {
        let room = self.of(sandbox);
        let kib = bytes.unwrap_or(LONGEST).min(LONGEST).div_ceil(1 << 10).max(1);
        // Fails only where it was closed, which nobody does.
        room.acquire_many_owned(u32::try_from(kib).ok()?).await.ok()
    }

    fn of(&self, sandbox: SandboxId) -> Arc<Semaphore> {
        let mut rooms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(room) = rooms.get(&sandbox).and_then(Weak::upgrade) {
            return room;
        }
        rooms.retain(|_, room| room.strong_count() > 0);
        let room = Arc::new(Semaphore::new(ROOM));
        rooms.insert(sandbox, Arc::downgrade(&room));
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn a_sandbox_that_takes_all_waits_for_itself_alone() {
        let rooms = Rooms::default();
        let (greedy, other) = (SandboxId::generate(), SandboxId::generate());
        let taken: Vec<_> =
            (0..4).map(|_| rooms.take(greedy, None).now_or_never().flatten().unwrap()).collect();
        assert!(rooms.take(greedy, Some(1)).now_or_never().is_none());
        assert!(rooms.take(other, Some(LONGEST)).now_or_never().flatten().is_some());
        drop(taken);
        assert!(rooms.take(greedy, Some(0)).now_or_never().flatten().is_some());
    }

    #[test]
    fn sandboxes_that_ask_no_more_are_forgotten() {
        let rooms = Rooms::default();
        for _ in 0..100 {
            drop(rooms.take(SandboxId::generate(), Some(1)).now_or_never());
        }
        assert_eq!(rooms.0.lock().unwrap().len(), 1);
    }
}
