//! How far syncs and restores are, for callers who look while they run.

use seawall_api::{SandboxId, http::SyncProgress};
use seawall_sync::engine::{Phase, Progress};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The syncs and restores that run. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Running(Arc<Mutex<HashMap<SandboxId, SyncProgress>>>);

impl Running {
    fn all(&self) -> MutexGuard<'_, HashMap<SandboxId, SyncProgress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The progress of a sandbox's sync or restore. `None` where none runs.
    pub fn of(&self, id: SandboxId) -> Option<SyncProgress> {
        self.all().get(&id).cloned()
    }

    /// Follows one sync or restore until it is dropped.
    pub fn follow(&self, id: SandboxId) -> Arc<Followed> {
        self.all().insert(id, SyncProgress::default());
        Arc::new(Followed { running: self.clone(), id })
    }
}

/// One sync or restore.
#[derive(Debug)]
pub struct Followed {
    running: Running,
    id: SandboxId,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.running.all().remove(&self.id);
    }
}

impl Progress for Followed {
    fn phase(&self, phase: Phase) {
        let (name, files, bytes) = match phase {
            Phase::Scanning => ("scanning", 0, 0),
            Phase::Looking => ("looking", 0, 0),
            Phase::Uploading { files, bytes } => ("uploading", files, bytes),
            Phase::Committing => ("committing", 0, 0),
            Phase::Downloading { files, bytes } => ("downloading", files, bytes),
            Phase::Agreeing => ("agreeing", 0, 0),
        };
        let now = SyncProgress { phase: Some(name.to_owned()), files, bytes, bytes_done: 0 };
        self.running.all().insert(self.id, now);
    }

    fn moved(&self, bytes: u64) {
        if let Some(now) = self.running.all().get_mut(&self.id) {
            now.bytes_done += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_seen_while_something_runs() {
        let (running, id) = (Running::default(), SandboxId::generate());
        assert_eq!(running.of(id), None);
        let followed = running.follow(id);
        followed.phase(Phase::Uploading { files: 2, bytes: 10 });
        followed.moved(4);
        let seen = running.of(id).unwrap();
        assert_eq!(
            (seen.phase.as_deref(), seen.files, seen.bytes, seen.bytes_done),
            (Some("uploading"), 2, 10, 4)
        );
        drop(followed);
        assert_eq!(running.of(id), None);
    }
}
