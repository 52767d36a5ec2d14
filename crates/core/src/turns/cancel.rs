//! The wish for the end of a turn, while its agent runs.
//!
//! A cancellation is the state `cancelling` in the turn's row. The runner polls for it every second, and a
//! cancellation in the same process reaches it at once.

use seawall_api::ProcessId;
use seawall_wire::Guest;
use std::time::Duration;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

/// How long a cancelled agent may take to be gone.
pub(super) const CANCEL: Duration = Duration::from_secs(30);
const KILL_AGAIN: Duration = Duration::from_secs(1);

/// A wish to end the agent, tried until it is ended.
pub(super) struct Cancel {
    wish: watch::Receiver<bool>,
    /// Whether it was wished for.
    pub asked: bool,
    again: Option<Instant>,
}

impl Cancel {
    pub(super) fn new(wish: watch::Receiver<bool>) -> Cancel {
        Cancel { wish, asked: false, again: None }
    }

    /// Ends when the agent is to be killed, the first time or again.
    pub(super) async fn due(&mut self) {
        if !self.asked {
            // Where the sender is gone, nobody can wish it any more.
            if self.wish.wait_for(|wish| *wish).await.is_err() {
                std::future::pending::<()>().await;
            }
            self.asked = true;
            return;
        }
        match self.again {
            Some(again) => tokio::time::sleep_until(again).await,
            None => std::future::pending().await,
        }
    }

    pub(super) async fn kill(&mut self, guest: &Guest, process: ProcessId) {
        let killed = matches!(timeout(CANCEL, guest.kill(process)).await, Ok(Ok(())));
        tracing::info!(%process, killed, "a turn is cancelled");
        self.again = (!killed).then(|| Instant::now() + KILL_AGAIN);
    }
}
