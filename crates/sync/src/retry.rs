//! Trying again what may pass.

use crate::Result;
use std::time::Duration;

const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Tries what `work` makes until it succeeds, or fails for good.
pub async fn retry<T, F>(step: &'static str, work: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut pause = FIRST_PAUSE;
    for _ in 1..TRIES {
        match work().await {
            Err(error) if error.is_retryable() => {
                tracing::debug!(step, %error, "trying again");
                tokio::time::sleep(jitter(pause)).await;
                pause *= 2;
            }
            other => return other.map_err(|error| error.during(step)),
        }
    }
    work().await.map_err(|error| error.during(step))
}

/// Between half and all of it, so that those who failed together do not come back together.
pub fn jitter(pause: Duration) -> Duration {
    let random = uuid::Uuid::new_v4().as_u128() as u64 % 1000;
    pause / 2 + pause.mul_f64(random as f64 / 2000.0)
}
