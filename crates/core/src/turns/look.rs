//! Whether an account's limits have room for a turn.

use super::Turns;
use crate::{Result, templates::Template};
use seawall_api::{AccountId, SandboxId, sandbox::SandboxState};

impl Turns {
    /// Refuses what the account's limits refuse: a new sandbox with its disk, or one more that runs.
    pub(super) async fn look(
        &self,
        account: AccountId,
        sandbox: SandboxId,
        template: &Template,
    ) -> Result<()> {
        let (service, rows) = (&self.inner.service, &self.inner.stores.sandboxes);
        let there = rows.find(sandbox).await?.is_some_and(|row| row.state != SandboxState::Terminated);
        // That of one that is there is counted.
        let disk_mb = if there { 0 } else { service.disk_of(account, template).await? };
        service.boxes().look(account, sandbox, disk_mb).await
    }
}
