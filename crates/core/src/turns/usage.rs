//! What a turn used: the larger of what its agent tells and what passed the gateway.

use super::{answer::plus, run::Runner};
use crate::{Result, ports::gateway::Metered};
use seawall_api::{conversation::Usage, event::Event};
use tokio::sync::watch;

impl Runner {
    /// M3: what passed the gateway and is not stored yet.
    pub(super) fn passed(&self) -> Option<Event> {
        let usage = self.meter.as_ref()?.so_far().usage;
        (usage != self.answer.passed()).then_some(Event::GatewayUsage { usage })
    }

    /// The agent's port is closed: what its last requests used is counted and stored, however they ended.
    pub(super) async fn settle_tokens(&mut self) -> Result<()> {
        let Some(tokens) = self.tokens.take() else { return Ok(()) };
        if let Err(error) = tokens.close().await {
            let (turn, error) = (self.id(), error.chain());
            tracing::error!(%turn, error, "what was reserved for the turn's requests stays charged");
        }
        match self.passed() {
            Some(event) => self.store(vec![event], self.turn.output_offset).await,
            None => Ok(()),
        }
    }

    /// M3: an agent that tells only what its thread used in all is charged what is new: beyond the total that an
    /// earlier turn told, and what turns after that one were charged by the gateway's count, because they were killed.
    pub(super) async fn base(&self) -> Result<Usage> {
        let mut base = Usage::default();
        if self.answer.thread().is_none() {
            return Ok(base);
        }
        let before = self.before().await?;
        for answer in before.iter().filter(|answer| answer.session == self.answer.session) {
            match answer.thread() {
                Some(thread) => return Ok(plus(&thread, &base)),
                None => base = plus(&base, &answer.passed()),
            }
        }
        Ok(base)
    }
}

/// Ends when more has passed the gateway.
pub(super) async fn changed(metered: &mut Option<watch::Receiver<Metered>>) {
    let alive = match metered {
        Some(metered) => metered.changed().await.is_ok(),
        None => false,
    };
    if !alive {
        std::future::pending().await
    }
}
