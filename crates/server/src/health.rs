//! Whether the process lives, and whether it can do its work.
//!
//! `/ready` tries what requests need: it writes to the store, gets a blocking thread, asks each provider, and writes to the data
//! disk, which must have more than its reserve free. All of that within a deadline, and at most once a second.

use crate::state::AppState;
use seawall_api::http::{Health, HealthStatus};
use seawall_core::{Error, host_paths::redact};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

/// What takes longer is as good as away.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long an answer is good for those that ask next.
const FRESH: Duration = Duration::from_secs(1);
/// The lease that is written to see whether the store writes.
const LEASE: &str = "ready";
/// The file that is written to see whether the disk takes it.
const PROBE: &str = ".ready";

/// The last answer of `/ready`. While one looks, the others wait for what it finds.
#[derive(Debug, Default)]
pub struct Readiness(Mutex<Option<(Instant, Health)>>);

impl Readiness {
    pub async fn get(&self, state: &AppState) -> Health {
        let mut last = self.0.lock().await;
        match &*last {
            Some((at, health)) if at.elapsed() < FRESH => health.clone(),
            _ => {
                let health = ready(state).await;
                *last = Some((Instant::now(), health.clone()));
                health
            }
        }
    }
}

/// It lives, or nobody would say so.
pub fn alive() -> Health {
    told(BTreeMap::new())
}

/// Part by part, at the same time.
async fn ready(state: &AppState) -> Health {
    let mut wrong = BTreeMap::new();
    if state.shutdown().is_cancelled() {
        wrong.insert("server".to_owned(), "it goes down".to_owned());
    }
    let (store, threads, providers) = tokio::join!(store(state), threads(state), providers(state));
    wrong.extend(store.err().map(|why| ("store".to_owned(), why)));
    wrong.extend(threads.err().map(|(part, why)| (part.to_owned(), why)));
    wrong.extend(providers);
    told(wrong)
}

/// A write that is on the disk when it returns.
async fn store(state: &AppState) -> Result<(), String> {
    let asked = state.services().stores.leases.acquire(LEASE, LEASE, FRESH);
    match timeout(PATIENCE, asked).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => {
            tracing::warn!(error = error.chain(), "the store is not ready");
            Err(redact(&error.to_string()).into_owned())
        }
        Err(_) => Err(late("it did not write")),
    }
}

/// A blocking thread, and on it the data disk.
async fn threads(state: &AppState) -> Result<(), (&'static str, String)> {
    let began = Arc::new(AtomicBool::new(false));
    let (begins, options) = (began.clone(), state.options().clone());
    let work = tokio::task::spawn_blocking(move || {
        begins.store(true, Ordering::Release);
        options.data.as_deref().map_or(Ok(()), |data| disk(data, options.disk_reserve))
    });
    match timeout(PATIENCE, work).await {
        Ok(Ok(done)) => done.map_err(|why| ("disk", why)),
        Ok(Err(error)) => Err(("threads", error.to_string())),
        Err(_) if began.load(Ordering::Acquire) => Err(("disk", late("it did not write"))),
        Err(_) => Err(("threads", late("no blocking thread was free"))),
    }
}

fn disk(data: &Path, reserve: u64) -> Result<(), String> {
    let found = rustix::fs::statvfs(data).map_err(|error| told_by(&error.into()))?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    if free < reserve {
        let mib = |bytes: u64| bytes >> 20;
        return Err(format!("it has {} MiB free, and {} MiB are its reserve", mib(free), mib(reserve)));
    }
    probe(&data.join(PROBE)).map_err(|error| told_by(&error))
}

fn probe(path: &Path) -> io::Result<()> {
    let mut file = File::options().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    file.write_all(&[0; 4096])?;
    file.sync_data()
}

/// Where it lies is the operator's to know.
fn told_by(error: &io::Error) -> String {
    tracing::warn!(%error, "the data disk is not ready");
    format!("it cannot be written: {}", error.kind())
}

/// Each provider that does not answer.
async fn providers(state: &AppState) -> Vec<(String, String)> {
    let all = state.services().sandboxes.boxes().providers().all().cloned();
    let asked = all.map(|provider| async move {
        let why = match timeout(PATIENCE, provider.check()).await {
            Ok(Ok(())) => return None,
            Ok(Err(error)) => unready(provider.name(), &error),
            Err(_) => late("it did not answer"),
        };
        Some((format!("provider {}", provider.name()), why))
    });
    futures::future::join_all(asked).await.into_iter().flatten().collect()
}

fn unready(provider: &str, error: &Error) -> String {
    tracing::warn!(provider, error = error.chain(), "a provider is not ready");
    error.to_string()
}

fn late(what: &str) -> String {
    format!("{what} within {} s", PATIENCE.as_secs())
}

fn told(checks: BTreeMap<String, String>) -> Health {
    let status = if checks.is_empty() { HealthStatus::Ok } else { HealthStatus::Unready };
    Health { status, version: env!("CARGO_PKG_VERSION").to_owned(), checks }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_written_and_has_its_reserve() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(disk(folder.path(), 0), Ok(()));
        assert_eq!(disk(folder.path(), 0), Ok(()), "the file may be there");
        let full = disk(folder.path(), u64::MAX).unwrap_err();
        assert!(full.contains("reserve"), "{full}");
        let gone = disk(&folder.path().join("nowhere"), 0).unwrap_err();
        assert!(!gone.contains("nowhere"), "{gone}");
    }
}
