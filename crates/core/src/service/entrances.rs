//! Who may use a sandbox. One that is being ended or stopped lets nobody in, and the reaper knows of every use since it began to
//! look at a sandbox that it is about to stop.
//!
//! Before a stop, the reaper enters the sandbox's queue, closes the sandbox to new uses, and checks again: the turns,
//! the uses since its first check, the guest. A use that arrives then waits and starts the sandbox again.

use jiff::Timestamp;
use seawall_api::SandboxId;
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Why nobody is let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    /// It is being ended for good.
    End,
    /// It is being stopped, and can be started again when that is done.
    Stop,
}

/// The entrances of all sandboxes. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Entrances(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    closed: HashMap<SandboxId, Closing>,
    /// Boxes whose lifetime was over in the midst of a turn, by when they were started.
    over: HashMap<SandboxId, Option<Timestamp>>,
    watched: HashMap<SandboxId, Watching>,
}

#[derive(Debug, Default)]
struct Watching {
    watchers: usize,
    uses: u64,
}

impl Entrances {
    /// Lets a use in, unless the sandbox is closed.
    pub fn enter(&self, id: SandboxId) -> Result<(), Closing> {
        let mut state = self.state();
        if let Some(closing) = state.closed.get(&id) {
            return Err(*closing);
        }
        state.use_of(id);
        Ok(())
    }

    /// Counts a use by one who stands in the sandbox's queue, and so is not in the way of a stop.
    pub fn note(&self, id: SandboxId) {
        self.state().use_of(id);
    }

    /// Lets nobody in while the guard lives. For one who stands in the sandbox's queue.
    pub fn close(&self, id: SandboxId, closing: Closing) -> Closed {
        self.state().closed.insert(id, closing);
        Closed { entrances: self.clone(), id }
    }

    /// The lifetime of a box is over, and a turn runs in it: it is the last.
    pub fn mark_over(&self, id: SandboxId, started_at: Option<Timestamp>) {
        self.state().over.insert(id, started_at);
    }

    /// Forgets sandboxes that are gone.
    pub fn forget(&self, gone: &HashSet<SandboxId>) {
        self.state().over.retain(|id, _| !gone.contains(id));
    }

    /// Whether the lifetime of this box is over. For one who stands in the sandbox's queue, and starts it anew then.
    pub fn take_over(&self, id: SandboxId, started_at: Option<Timestamp>) -> bool {
        self.state().over.remove(&id).is_some_and(|over| over == started_at)
    }

    /// Counts uses from now on, while the guard lives.
    pub fn watch(&self, id: SandboxId) -> Watched {
        let mut state = self.state();
        let watching = state.watched.entry(id).or_default();
        watching.watchers += 1;
        let since = watching.uses;
        drop(state);
        Watched { entrances: self.clone(), id, since }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn use_of(&mut self, id: SandboxId) {
        if let Some(watching) = self.watched.get_mut(&id) {
            watching.uses += 1;
        }
    }
}

/// Dropping it opens the sandbox again.
#[derive(Debug)]
pub(crate) struct Closed {
    entrances: Entrances,
    id: SandboxId,
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.entrances.state().closed.remove(&self.id);
    }
}

/// A sandbox whose uses are counted.
#[derive(Debug)]
pub(crate) struct Watched {
    entrances: Entrances,
    id: SandboxId,
    since: u64,
}

impl Watched {
    /// Whether a use was let in since the watch began.
    pub fn is_used(&self) -> bool {
        self.entrances.state().watched.get(&self.id).is_some_and(|watching| watching.uses > self.since)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut state = self.entrances.state();
        if let Some(watching) = state.watched.get_mut(&self.id) {
            watching.watchers -= 1;
            if watching.watchers == 0 {
                state.watched.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_counted_while_somebody_watches_and_refused_while_it_is_closed() {
        let (entrances, id) = (Entrances::default(), SandboxId::generate());
        entrances.enter(id).unwrap();
        let first = entrances.watch(id);
        assert!(!first.is_used());
        entrances.enter(id).unwrap();
        let second = entrances.watch(id);
        assert!(first.is_used() && !second.is_used());
        let closed = entrances.close(id, Closing::Stop);
        assert_eq!(entrances.enter(id), Err(Closing::Stop));
        assert!(!second.is_used(), "what is refused is no use");
        entrances.enter(SandboxId::generate()).unwrap();
        drop(closed);
        entrances.note(id);
        assert!(second.is_used() && entrances.enter(id).is_ok());
        drop((first, second));
        let state = entrances.state();
        assert!(state.closed.is_empty() && state.watched.is_empty(), "{state:?}");
    }
}
