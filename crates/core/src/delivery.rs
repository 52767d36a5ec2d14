//! The courier: carries what waits in the outbox to where it belongs, until it has arrived.

use crate::{
    Error, Result,
    ports::{
        gateway::{Secret, WebhookCall, Webhooks},
        store::{Delivery, Messages, Outbox, Task},
    },
};
use seawall_api::ErrorKind;
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, timeout};

/// How many are taken at once.
const ROUND: u32 = 50;
/// How long nobody else tries what was taken.
const TIME: Duration = Duration::from_secs(120);
/// How long one delivery may take. What cannot be begun so long before the time is over is left to whoever comes next.
const CARRY: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// How often a webhook is called before it is given up: for about three days.
const MOST_CALLS: u32 = 900;

/// What one round came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Round {
    pub delivered: usize,
    /// Due again later.
    pub failed: usize,
}

#[derive(Clone)]
pub struct Courier {
    outbox: Arc<dyn Outbox>,
    messages: Arc<dyn Messages>,
    webhooks: Option<Arc<dyn Webhooks>>,
}

impl Courier {
    pub fn new(outbox: Arc<dyn Outbox>, messages: Arc<dyn Messages>) -> Courier {
        Courier { outbox, messages, webhooks: None }
    }

    pub fn with_webhooks(mut self, webhooks: Arc<dyn Webhooks>) -> Courier {
        self.webhooks = Some(webhooks);
        self
    }

    /// Tries whatever is due now, once. Several couriers may do so at the same time.
    pub async fn round(&self) -> Result<Round> {
        let mut round = Round::default();
        let began = Instant::now();
        for delivery in self.outbox.take(ROUND, TIME).await? {
            if began.elapsed() + CARRY > TIME {
                break;
            }
            let carried = timeout(CARRY, self.carry(&delivery.entry.task)).await;
            let late = |_| Err(Error::new(ErrorKind::Timeout, "no answer came in time"));
            match carried.unwrap_or_else(late) {
                Ok(()) => {
                    self.outbox.done(&delivery).await?;
                    round.delivered += 1;
                }
                Err(error) if is_hopeless(&delivery) => {
                    let (id, attempts, text) = (delivery.entry.id, delivery.entry.attempts, error.chain());
                    tracing::error!(outbox = id, attempts, error = %text, "a webhook is given up");
                    self.outbox.done(&delivery).await?;
                    round.failed += 1;
                }
                Err(error) => {
                    let (id, attempts, text) = (delivery.entry.id, delivery.entry.attempts, error.chain());
                    tracing::error!(outbox = id, attempts, error = %text, "a delivery failed, and is tried again");
                    self.outbox.failed(&delivery, &text, pause(&delivery)).await?;
                    round.failed += 1;
                }
            }
        }
        Ok(round)
    }

    async fn carry(&self, task: &Task) -> Result<()> {
        match task {
            Task::PutMessage { account, message } => {
                self.messages.put(*account, std::slice::from_ref(message)).await?;
                let (key, conversation) = (message.id, message.conversation_id);
                tracing::debug!(%key, %conversation, "message brought to its store");
                Ok(())
            }
            Task::DeleteMessages { account, conversation } => {
                self.messages.delete_all(*account, *conversation).await
            }
            Task::CallWebhook { url, secret_env, id, body, .. } => {
                let Some(webhooks) = &self.webhooks else {
                    return Err(Error::unavailable("nobody here calls webhooks"));
                };
                let secret = match secret_env {
                    // An empty key is one that everybody has.
                    Some(name) => match std::env::var(name).ok().filter(|key| !key.is_empty()) {
                        Some(key) => Some(Secret::new(key)),
                        None => {
                            let message = format!("the key of a webhook is missing: set {name}");
                            return Err(Error::unavailable(message));
                        }
                    },
                    None => None,
                };
                let sent_at = jiff::Timestamp::now().as_second();
                let (url, body, id) = (url.clone(), body.clone(), id.clone());
                webhooks.call(&WebhookCall { url, body, secret, id, sent_at }).await
            }
        }
    }
}

/// Messages are carried until they arrive. A webhook that nobody answers for days would wait for ever, with all that follow.
fn is_hopeless(delivery: &Delivery) -> bool {
    matches!(delivery.entry.task, Task::CallWebhook { .. }) && delivery.entry.attempts >= MOST_CALLS
}

/// Twice as long each time.
fn pause(delivery: &Delivery) -> Duration {
    let factor = 1_u32 << delivery.entry.attempts.saturating_sub(1).min(16);
    FIRST_PAUSE.saturating_mul(factor).min(LONGEST_PAUSE)
}

impl std::fmt::Debug for Courier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Courier").finish_non_exhaustive()
    }
}
