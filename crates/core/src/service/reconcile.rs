//! Reconciliation: records, boxes and templates are brought together (P8).

use super::{READY, SandboxService, TEMPLATE_IMAGE, Wanted};
use crate::{
    Result,
    ports::{RecordHead, store::SandboxRow},
    templates::Template,
};
use seawall_api::{
    AccountId, SandboxId,
    http::Reconciliation,
    sandbox::{SandboxSpec, SandboxState},
};
use serde_json::{Value, json};
use std::collections::HashMap;

/// Images that a provider could not prepare for an account in this round, and why: a registry is asked once for all sandboxes.
type Unprepared = HashMap<(String, AccountId, Option<String>), String>;

/// Why the box of a sandbox is not made again yet.
const RUNS: &str = "it runs; its box is made again after it stopped";
const UNSYNCED: &str = "it has work that no bucket has; sync it, and its box is made again";

impl SandboxService {
    /// Sweeps, and makes boxes again whose template names another image now. A dry run changes nothing.
    pub async fn reconcile(&self, dry_run: bool) -> Result<Reconciliation> {
        let sweep = self.sandboxes.sweep_all(dry_run).await;
        let mut found = sweep.found;
        self.renew_all(&mut found).await?;
        match sweep.error {
            // Providers that do not answer are part of the report.
            Some(error) if found.unavailable.is_empty() => Err(error),
            _ => Ok(found),
        }
    }

    async fn renew_all(&self, found: &mut Reconciliation) -> Result<()> {
        let mut unprepared = Unprepared::new();
        let mut after = None;
        loop {
            let page = self.sandboxes.heads(after).await?;
            for head in &page.items {
                if !self.takes_images(head, found)
                    || found.lost.contains(&head.id)
                    || found.finished.contains(&head.id)
                {
                    continue;
                }
                if let Err(error) = self.renew(head.id, found, &mut unprepared).await {
                    tracing::warn!(sandbox = %head.id, error = %error.chain(), "an outdated box is not made again");
                    found.outdated.insert(head.id, error.to_string());
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Whether a sandbox can have an image of its template.
    fn takes_images(&self, head: &RecordHead, found: &Reconciliation) -> bool {
        let provider = self.sandboxes.providers().get(&head.provider);
        head.template.is_some()
            && !found.unavailable.contains(&head.provider)
            && provider.is_ok_and(|provider| provider.capabilities().images)
    }

    async fn renew(
        &self,
        id: SandboxId,
        found: &mut Reconciliation,
        unprepared: &mut Unprepared,
    ) -> Result<()> {
        let Some(row) = self.rows.find(id).await? else { return Ok(()) };
        let Some(image) = self.newer_image(&row) else { return Ok(()) };
        match self.sandboxes.get(id).await?.state {
            SandboxState::Terminated | SandboxState::Stopping | SandboxState::Creating => return Ok(()),
            SandboxState::Running | SandboxState::Paused => {
                found.outdated.insert(id, RUNS.to_owned());
                return Ok(());
            }
            _ if row.unsynced.is_some() => {
                found.outdated.insert(id, UNSYNCED.to_owned());
                return Ok(());
            }
            _ => {}
        }
        if !found.dry_run {
            // Pulling an image takes long, so it is done before the sandbox's queue is held.
            let key = (row.provider.clone(), row.account_id, image.clone());
            if let Some(why) = unprepared.get(&key) {
                found.outdated.insert(id, why.clone());
                return Ok(());
            }
            let spec = SandboxSpec { image: image.clone(), ..row.spec.clone() };
            if let Err(error) = self.sandboxes.prepare(&row.provider, &spec, row.account_id).await {
                unprepared.insert(key, error.to_string());
                return Err(error);
            }
            let permit = self.heavy.starts.enter(row.account_id).await;
            let alone = self.queues.wait(id).await;
            // A use can have started the sandbox while its image was pulled.
            if matches!(self.sandboxes.get(id).await?.state, SandboxState::Running | SandboxState::Paused) {
                found.outdated.insert(id, RUNS.to_owned());
                return Ok(());
            }
            let wanted = self.wanted_of(&row).await?;
            // The next start is a cold one, even if this process dies in the midst of the following.
            self.note(&wanted, READY, Value::Bool(false)).await;
            self.sandboxes.renew(id, image.clone()).await?;
            self.note_image(&wanted, image.as_ref()).await;
            drop((permit, alone));
        }
        found.rebuilt.push(id);
        Ok(())
    }

    /// Makes the box of a sandbox that is about to start again if its template names another image. Returns whether it did; if
    /// it cannot, the old box starts. The caller holds the sandbox's queue.
    pub(super) async fn renew_before_start(
        &self,
        wanted: &Wanted,
        row: &SandboxRow,
        state: SandboxState,
    ) -> bool {
        let rests = matches!(
            state,
            SandboxState::Created | SandboxState::Stopped | SandboxState::Lost | SandboxState::Failed
        );
        let Some(image) = self.newer_image(row).filter(|_| rests && row.unsynced.is_none()) else {
            return false;
        };
        let spec = SandboxSpec { image: image.clone(), ..row.spec.clone() };
        let renewed = async {
            self.sandboxes.prepare(&row.provider, &spec, row.account_id).await?;
            self.note(wanted, READY, Value::Bool(false)).await;
            self.sandboxes.renew(row.id, image.clone()).await
        };
        match renewed.await {
            Ok(()) => {
                self.note_image(wanted, image.as_ref()).await;
                true
            }
            Err(error) => {
                tracing::warn!(sandbox = %row.id, error = %error.chain(), "an outdated box starts as it is");
                false
            }
        }
    }

    /// The image that the template of a sandbox names now, if the sandbox has an earlier one of it.
    fn newer_image(&self, row: &SandboxRow) -> Option<Option<String>> {
        let had = row.metadata.get(TEMPLATE_IMAGE)?.as_str()?;
        let template: &Template = self.templates.get(row.template.as_deref()?).ok()?;
        let image = template.sandbox.image.clone();
        (image.as_deref().unwrap_or_default() != had).then_some(image)
    }

    /// Notes that the image of a sandbox is that of its template, so that it follows the template.
    pub(super) async fn note_image(&self, wanted: &Wanted, image: Option<&String>) {
        self.note(wanted, TEMPLATE_IMAGE, json!(image.map_or("", String::as_str))).await;
    }
}
