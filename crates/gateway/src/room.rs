//! Bounds on the memory that bodies of requests to models take, per sandbox, per account and for the server.

use crate::answer::Refusal;
use hyper::StatusCode;
use seawall_api::{AccountId, SandboxId};
use seawall_core::budget::{Budget, Reservation};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The longest request to a model.
pub const LONGEST: u64 = 32 << 20;
/// For each sandbox, in KiB: four of the longest.
const ROOM: usize = 128 << 10;
/// Bytes of the budget are reserved in multiples of this while a body is read.
const STEP: u64 = 64 << 10;

/// Hands out a [`Room`] for each request.
#[derive(Debug, Default)]
pub struct Rooms {
    /// Each sandbox has its own semaphore, so that requests of one sandbox wait only for each other.
    sandboxes: Mutex<HashMap<SandboxId, Weak<Semaphore>>>,
    /// The server's budget for bodies in flight. Empty in processes of the command line, which count nothing.
    budget: OnceLock<Budget>,
}

/// Memory for one request. It is given back when this is dropped.
#[derive(Debug)]
pub struct Room {
    _sandbox: Option<OwnedSemaphorePermit>,
    memory: Option<Reservation>,
}

impl Rooms {
    /// Reserves what requests hold from this budget. The first call counts.
    pub fn count_in(&self, budget: &Budget) {
        let _ = self.budget.set(budget.clone());
    }

    /// Waits until the sandbox's other requests leave room for `bytes`, the announced length. `None` means that the length
    /// is not known, and may be [`LONGEST`]. Nothing of the budget is reserved yet: an announced length costs nothing.
    pub async fn enter(&self, sandbox: SandboxId, account: AccountId, bytes: Option<u64>) -> Room {
        let kib = bytes.unwrap_or(LONGEST).min(LONGEST).div_ceil(1 << 10).max(1);
        let kib = u32::try_from(kib).unwrap_or(u32::MAX);
        // Fails only where the semaphore was closed, which nothing does.
        let permit = self.semaphore(sandbox).acquire_many_owned(kib).await.ok();
        let memory = self.budget.get().map(|budget| budget.open(Some(account)));
        Room { _sandbox: permit, memory }
    }

    fn semaphore(&self, sandbox: SandboxId) -> Arc<Semaphore> {
        let mut sandboxes = self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(semaphore) = sandboxes.get(&sandbox).and_then(Weak::upgrade) {
            return semaphore;
        }
        sandboxes.retain(|_, semaphore| semaphore.strong_count() > 0);
        let semaphore = Arc::new(Semaphore::new(ROOM));
        sandboxes.insert(sandbox, Arc::downgrade(&semaphore));
        semaphore
    }
}

impl Room {
    /// Reserves memory until the request has at least `bytes` of it. Waits a moment where the account or the server has
    /// no more, and then refuses with 503, which clients retry.
    pub async fn grow_to(&mut self, bytes: u64) -> Result<(), Refusal> {
        let Some(memory) = &mut self.memory else { return Ok(()) };
        if bytes <= memory.bytes() {
            return Ok(());
        }
        let more = bytes.next_multiple_of(STEP) - memory.bytes();
        let refused =
            |error: seawall_core::Error| Refusal::passing(StatusCode::SERVICE_UNAVAILABLE, error.to_string());
        memory.grow(more).await.map_err(refused)
    }

    /// Gives back all but `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        if let Some(memory) = &mut self.memory {
            memory.shrink_to(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use seawall_core::budget::BudgetLimits;

    const ME: AccountId = AccountId::LOCAL;

    #[test]
    fn a_sandbox_that_takes_all_waits_for_itself_alone() {
        let rooms = Rooms::default();
        let (greedy, other) = (SandboxId::generate(), SandboxId::generate());
        let taken: Vec<_> = (0..4).map(|_| rooms.enter(greedy, ME, None).now_or_never().unwrap()).collect();
        assert!(rooms.enter(greedy, ME, Some(1)).now_or_never().is_none());
        assert!(rooms.enter(other, ME, Some(LONGEST)).now_or_never().is_some());
        drop(taken);
        assert!(rooms.enter(greedy, ME, Some(0)).now_or_never().is_some());
    }

    #[test]
    fn sandboxes_that_ask_no_more_are_forgotten() {
        let rooms = Rooms::default();
        for _ in 0..100 {
            drop(rooms.enter(SandboxId::generate(), ME, Some(1)).now_or_never());
        }
        assert_eq!(rooms.sandboxes.lock().unwrap().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn k5_bytes_are_reserved_as_they_come_and_not_as_they_are_announced() {
        let budget = Budget::new(BudgetLimits { server: 4 * STEP, account: 2 * STEP });
        let rooms = Rooms::default();
        rooms.count_in(&budget);
        let mut first = rooms.enter(SandboxId::generate(), ME, Some(LONGEST)).await;
        assert_eq!(budget.free(), 4 * STEP);
        first.grow_to(1).await.unwrap();
        assert_eq!(budget.free(), 3 * STEP);
        let mut second = rooms.enter(SandboxId::generate(), ME, None).await;
        second.grow_to(STEP).await.unwrap();
        let refusal = first.grow_to(STEP + 1).await.unwrap_err();
        assert_eq!(refusal.status, StatusCode::SERVICE_UNAVAILABLE);
        let mut others = rooms.enter(SandboxId::generate(), AccountId::generate(), None).await;
        others.grow_to(STEP).await.unwrap();
        second.shrink_to(1);
        assert_eq!(budget.free(), 2 * STEP - 1);
        drop((first, second, others));
        assert_eq!(budget.free(), 4 * STEP);
    }
}
