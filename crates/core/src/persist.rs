//! Writing to a database that may be down for a while.

use crate::Result;
use std::time::Duration;
use tokio::time::sleep;

/// Between tries to reach a database that is down.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Until it is done, or cannot be done at all. A database that is down is waited for.
pub(crate) async fn persist<T, F: Future<Output = Result<T>>>(write: impl Fn() -> F) -> Result<T> {
    let mut pause = FIRST_PAUSE;
    loop {
        match write().await {
            Err(error) if error.is_retryable() => {
                tracing::warn!(error = %error.chain(), "the database does not take it; tried again");
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            other => return other,
        }
    }
}
