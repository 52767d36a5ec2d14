//! Which sandbox a turn runs in.

use super::{Choice, MISMATCH, TurnAsk, Turns};
use crate::{Error, Result, service::gone};
use seawall_api::{AccountId, SandboxId, conversation::Conversation, sandbox::SandboxState};

impl Turns {
    /// C2, C3.
    pub(super) async fn choose(
        &self,
        account: AccountId,
        ask: &TurnAsk,
        known: Option<&Conversation>,
    ) -> Result<SandboxId> {
        let linked = known.and_then(|known| known.sandbox_id);
        let chosen = match (ask.sandbox, linked) {
            (Choice::Auto, Some(linked)) => linked,
            (Choice::Auto, None) => SandboxId::generate(),
            (Choice::This(id), Some(linked)) if id != linked => {
                let message = format!(
                    "{MISMATCH}: the conversation is linked to sandbox {linked}; ask for that, or relink"
                );
                return Err(Error::conflict(message).with_code(MISMATCH));
            }
            (Choice::This(id) | Choice::Relink(id), _) => id,
        };
        match self.inner.stores.sandboxes.find(chosen).await? {
            Some(row) if row.account_id != account => {
                Err(Error::not_found(format!("there is no sandbox {chosen}")))
            }
            // What was ended for good is made anew for its own conversation alone.
            Some(row) if row.state == SandboxState::Terminated && linked != Some(chosen) => Err(gone(chosen)),
            _ => {
                if let Some(left) = linked.filter(|linked| *linked != chosen) {
                    self.check_left(left).await?;
                }
                Ok(chosen)
            }
        }
    }

    /// Refuses to leave a sandbox with work that no bucket has: the next one would begin without it.
    async fn check_left(&self, left: SandboxId) -> Result<()> {
        let row = self.inner.stores.sandboxes.find(left).await?;
        match row.is_some_and(|row| row.unsynced.is_some()) {
            true => Err(Error::conflict(format!(
                "sandbox {left} of the conversation has work that no bucket has; sync it, and relink then"
            ))
            .with_code("unsynced")),
            false => Ok(()),
        }
    }
}
