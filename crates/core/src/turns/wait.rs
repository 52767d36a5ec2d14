//! Beginning a turn that has to wait for the one before (C8), and what may be asked at all.

use super::{
    Choice, MISMATCH, Prepared, TurnAsk, Turns,
    lanes::{Lane, Patience, Place, news},
};
use crate::{Error, Result, ports::store::Page};
use seawall_api::{AccountId, ErrorKind, SandboxId, conversation::TurnState};
use tokio::time::Instant;

/// Of an agent's or an organization's name, in bytes.
const MAX_NAME: usize = 200;

impl Turns {
    /// Waits for the turn before, in the lanes of the conversation and of the sandbox. `error`: why it was not begun at once.
    pub(super) async fn begin_after(
        &self,
        account: AccountId,
        ask: &TurnAsk,
        here: bool,
        mut error: Error,
    ) -> Result<Prepared> {
        // A length without an end is as long as it takes.
        let until = Instant::now().checked_add(ask.wait);
        let patience = Patience { until, withdrawn: ask.withdrawn.clone() };
        let lanes = &self.inner.lanes;
        let conversation = match ask.conversation.map(Lane::Conversation) {
            Some(lane) => match lanes.enter(lane, &patience).await {
                Some(place) => Some(place),
                None => return Err(impatient(&patience, error)),
            },
            None => None,
        };
        let mut sandbox: Option<Place> = None;
        loop {
            let lane = self.sandbox_of(account, ask).await?.map(Lane::Sandbox);
            if sandbox.as_ref().map(|place| place.lane) != lane {
                sandbox = None;
                if let Some(lane) = lane {
                    sandbox = match lanes.enter(lane, &patience).await {
                        Some(place) => Some(place),
                        None => return Err(impatient(&patience, error)),
                    };
                }
            }
            let places: Vec<&Place> = conversation.iter().chain(&sandbox).collect();
            match self.try_begin(account, ask, here, &places).await {
                Err(again) if is_passing(&again) => error = again,
                // The turn before may be about to make the sandbox that this one needs too.
                Err(again) if again.limit().is_some() && self.is_busy_talking(account, ask).await? => {
                    error = busy();
                }
                other => return other,
            }
            if !news(&places, &patience).await {
                return Err(impatient(&patience, error));
            }
        }
    }

    /// Begins a turn at once, where nobody is before it. Requests that may wait, and whose sandbox is not made yet, take their
    /// place in the line of their conversation first: else each of them would ask the account's limits for a sandbox of its own.
    pub(super) async fn try_first(&self, account: AccountId, ask: &TurnAsk, here: bool) -> Result<Prepared> {
        let may_wait = !ask.wait.is_zero() && ask.conversation.is_some();
        match may_wait && self.sandbox_of(account, ask).await?.is_none() {
            true => Err(busy()),
            false => self.try_begin(account, ask, here, &[]).await,
        }
    }

    /// Whether a turn of the conversation runs.
    async fn is_busy_talking(&self, account: AccountId, ask: &TurnAsk) -> Result<bool> {
        let Some(conversation) = ask.conversation else { return Ok(false) };
        let newest = self.inner.stores.turns.list(account, conversation, &Page::first(1)).await;
        match newest {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            found => Ok(found?.items.first().is_some_and(|turn| turn.state == TurnState::Running)),
        }
    }

    /// The sandbox that a request waits for, as far as it is known now.
    async fn sandbox_of(&self, account: AccountId, ask: &TurnAsk) -> Result<Option<SandboxId>> {
        match ask.sandbox {
            Choice::This(id) | Choice::Relink(id) => Ok(Some(id)),
            Choice::Auto => Ok(self.known(account, ask).await?.and_then(|known| known.sandbox_id)),
        }
    }
}

/// Whether a turn that was not begun may be begun later.
pub(super) fn is_passing(error: &Error) -> bool {
    error.kind() == ErrorKind::Conflict && error.code() != MISMATCH
}

pub(super) fn busy() -> Error {
    Error::conflict("a turn of this conversation, or with its sandbox, runs: wait for it, or cancel it")
}

/// Why a turn was not waited for any longer.
fn impatient(patience: &Patience, error: Error) -> Error {
    match patience.is_withdrawn() {
        true => Error::new(ErrorKind::Denied, "the key was revoked while its request waited for a turn")
            .with_code("key_revoked"),
        false => error,
    }
}

/// Names that a conversation is kept with. Control characters would show as something else.
pub fn check_name(what: &str, name: Option<&str>) -> Result<()> {
    match name {
        Some(name) if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) => {
            Err(Error::invalid(format!("`{what}` has 1 to {MAX_NAME} bytes, and no control characters")))
        }
        _ => Ok(()),
    }
}

pub(super) fn check_names(ask: &TurnAsk) -> Result<()> {
    check_name("agent_id", ask.agent_id.as_deref())?;
    check_name("organization_id", ask.organization_id.as_deref())
}
