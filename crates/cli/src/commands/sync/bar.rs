//! Shows how far a sync or a restore is: a bar on stderr where that is a terminal, and nothing elsewhere.

use crate::session::Session;
use indicatif::{ProgressBar, ProgressStyle};
use seawall_api::{SandboxId, http::SyncProgress};
use std::{
    io::{IsTerminal, stderr},
    time::Duration,
};
use tokio::time::sleep;

const LINE: &str = "{msg} {bytes} of {total_bytes} {wide_bar} {bytes_per_sec}";
const WAITING: &str = "{msg} {spinner}";
/// The poll interval for the server's progress.
const LOOK: Duration = Duration::from_millis(250);

/// Waits for a call about the files of a sandbox.
pub async fn during<T>(session: &Session, id: SandboxId, call: impl Future<Output = T>) -> T {
    if !stderr().is_terminal() {
        return call.await;
    }
    let bar = ProgressBar::new(0);
    let watching = async {
        loop {
            sleep(LOOK).await;
            // A failed poll does not affect the call.
            if let Ok(now) = session.client.sync_progress(id).await {
                show(&bar, &now);
            }
        }
    };
    let done = tokio::select! {
        done = call => done,
        never = watching => never,
    };
    bar.finish_and_clear();
    done
}

fn show(bar: &ProgressBar, now: &SyncProgress) {
    let message = match now.phase.as_deref() {
        Some("scanning") => "looking at the files".to_owned(),
        Some("looking") => "looking at the bucket".to_owned(),
        Some("committing") => "committing the version".to_owned(),
        Some("agreeing") => "writing the state file".to_owned(),
        Some(phase) => format!("{phase} {} files:", now.files),
        None => "the server works on the files".to_owned(),
    };
    if let Ok(style) = ProgressStyle::with_template(if now.bytes > 0 { LINE } else { WAITING }) {
        bar.set_style(style);
    }
    bar.set_message(message);
    bar.set_length(now.bytes);
    bar.set_position(now.bytes_done);
    bar.tick();
}
