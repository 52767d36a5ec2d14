//! What a server does again and again, each at its own pace.

use super::staged::Staged;
use crate::config::Settings;
use seawall_core::{Sandboxes, Services, reaper::Reaper, retention::Retention};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::{sync::Mutex, time::sleep};
use tokio_util::sync::CancellationToken;

/// Between rounds of each.
const REAP: Duration = Duration::from_secs(5);
const SWEEP: Duration = Duration::from_secs(60);
const CARRY: Duration = Duration::from_secs(2);
const TAKE_UP: Duration = Duration::from_secs(10);
const RETAIN: Duration = Duration::from_secs(15);
const TIDY: Duration = Duration::from_secs(600);

/// All that rounds need.
pub struct Rounds {
    pub sandboxes: Sandboxes,
    pub services: Services,
    pub settings: Settings,
    /// The audit file.
    pub audit: PathBuf,
}

impl Rounds {
    /// Until the end.
    pub async fn run(self, stop: CancellationToken) {
        let Rounds { sandboxes, services, settings, audit } = self;
        let reaper = Reaper::new(services.sandboxes.clone(), services.turns.clone());
        let turns = services.turns.clone();
        let retention = Retention::new(&services, settings.retention.keep.clone());
        let sweeping = every(SWEEP, "reconcile", &stop, || {
            let service = services.sandboxes.clone();
            async move { service.reconcile(false).await.map(drop) }
        });
        let watcher = reaper.clone();
        let reaping = every(REAP, "reaper", &stop, || {
            let reaper = reaper.clone();
            async move { reaper.round().await.map(drop) }
        });
        let watching = every(REAP, "watch", &stop, || {
            let watcher = watcher.clone();
            async move { watcher.attend().await }
        });
        let carrying = every(CARRY, "courier", &stop, || {
            let courier = services.courier.clone();
            async move { courier.round().await.map(drop) }
        });
        let taking_up = every(TAKE_UP, "turns", &stop, || {
            let turns = turns.clone();
            async move { turns.take_up().await.map(drop) }
        });
        let retaining = every(RETAIN, "retention", &stop, || {
            let retention = retention.clone();
            async move { retention.round().await.map(drop) }
        });
        let staged = Arc::new(Mutex::new(Staged::new(&settings)));
        let tidying = every(TIDY, "files", &stop, || {
            let (staged, audit, keep) = (staged.clone(), audit.clone(), settings.retention.audit.clone());
            async move {
                seawall_server::tidy_audit(audit, keep).await?;
                staged.lock().await.round().await
            }
        });
        let deleting = every(SWEEP, "deletions", &stop, || {
            let services = services.clone();
            async move { services.finish_deletions().await }
        });
        let following = async {
            tokio::select! {
                () = sandboxes.follow() => {}
                () = stop.cancelled() => {}
            }
        };
        tokio::join!(
            following, sweeping, reaping, watching, carrying, taking_up, retaining, tidying, deleting
        );
    }
}

/// Now, and then each time after a pause, until the end. What fails is told, and tried again.
async fn every<F: Future<Output = seawall_core::Result<()>>>(
    pause: Duration,
    what: &str,
    stop: &CancellationToken,
    work: impl Fn() -> F,
) {
    loop {
        let round = async {
            if let Err(error) = work().await {
                tracing::warn!(round = what, error = %error.chain(), "a round failed");
            }
            sleep(pause).await;
        };
        tokio::select! {
            () = round => {}
            () = stop.cancelled() => return,
        }
    }
}
