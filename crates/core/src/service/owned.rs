//! Whose a sandbox is, and how it is come by: every operation of an account begins here.

use super::{Closing, FILES_OF, IN_PART, LAST_PLACE, LIVES, READY, SandboxService, TEMPLATE_IMAGE, Wanted};
use crate::{
    Error, Result,
    ports::store::{ConversationFilter, Page, SandboxRow},
    templates::{DEFAULT, SyncPart, Template},
};
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    conversation::Conversation,
    sandbox::{Sandbox, SandboxInfo, SandboxState},
};
use seawall_wire::{Duplex, Guest};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, sync::Arc};

/// The code of an error: a template that sandboxes were made by is gone.
pub(crate) const NO_TEMPLATE: &str = "no_template";

impl SandboxService {
    /// Another account's is not there (C7).
    pub(super) async fn row(&self, account: AccountId, id: SandboxId) -> Result<SandboxRow> {
        self.rows.get(account, id).await
    }

    /// As [`SandboxService::row`], of what was not ended for good.
    pub(super) async fn live_row(&self, account: AccountId, id: SandboxId) -> Result<SandboxRow> {
        let row = self.row(account, id).await?;
        match row.state {
            SandboxState::Terminated => Err(gone(id)),
            _ => Ok(row),
        }
    }

    /// What has to be known to make it run, of one that is there.
    pub async fn wanted_of(&self, row: &SandboxRow) -> Result<Wanted> {
        let conversation = self.conversation_of(row).await?;
        Ok(Wanted {
            account: row.account_id,
            sandbox: row.id,
            conversation: conversation.as_ref().map(|conversation| conversation.id),
            agent: conversation.and_then(|conversation| conversation.agent_id),
            turn: None,
            cancelled: None,
            moved: false,
            template: self.template_of(row.template.as_deref()).map_err(|error| {
                let message = format!(
                    "sandbox {} was made by a template that is not there any more, and only that says where its files go: \
                     bring its file back, or end the sandbox by force",
                    row.id
                );
                Error::conflict(message).with_code(NO_TEMPLATE).with_source(error)
            })?,
        })
    }

    /// As far as its row tells: without hooks, and with files that go nowhere.
    pub(super) fn bare(&self, row: &SandboxRow) -> Wanted {
        let sync = SyncPart { enabled: false, ..SyncPart::default() };
        let name = row.template.clone().unwrap_or_default();
        Wanted {
            account: row.account_id,
            sandbox: row.id,
            conversation: None,
            agent: None,
            turn: None,
            cancelled: None,
            moved: false,
            template: Arc::new(Template { name, sync, ..Template::default() }),
        }
    }

    pub(super) fn template_of(&self, name: Option<&str>) -> Result<Arc<Template>> {
        Ok(Arc::new(self.templates.get(name.unwrap_or(DEFAULT))?.clone()))
    }

    /// The one that talked in it last.
    async fn conversation_of(&self, row: &SandboxRow) -> Result<Option<Conversation>> {
        let Some(conversations) = &self.conversations else { return Ok(None) };
        let filter = ConversationFilter { sandbox_id: Some(row.id), ..ConversationFilter::default() };
        Ok(conversations.list(row.account_id, &filter, &Page::first(1)).await?.items.pop())
    }

    /// V2: runs when this returns. What ended by idle time, by its lifetime or by a loss is revived.
    pub async fn guest(&self, account: AccountId, id: SandboxId) -> Result<Guest> {
        // What runs is left alone, and mostly it runs.
        match self.guest_if_running(account, id).await {
            Ok(guest) => return Ok(guest),
            Err(error) if matches!(error.kind(), ErrorKind::Gone | ErrorKind::NotFound) => return Err(error),
            Err(error) if error.code() == "ending" => return Err(error),
            Err(_) => {}
        }
        let row = self.live_row(account, id).await?;
        self.ensure_live(&self.wanted_of(&row).await?).await?;
        self.sandboxes.guest(id).await
    }

    /// P7: what does not run is not revived.
    pub async fn guest_if_running(&self, account: AccountId, id: SandboxId) -> Result<Guest> {
        let row = self.live_row(account, id).await?;
        self.entrances.enter(id).map_err(|closing| match closing {
            Closing::End => {
                let message = format!("sandbox {id} is just being ended");
                Error::unavailable(message).with_code("ending").without_effect()
            }
            // Who may revive it waits until it is stopped.
            Closing::Stop => waking(id),
        })?;
        if self.sandboxes.is_saving(account, id) {
            return Err(waking(id));
        }
        let half_made = row.template.is_some() && !super::is_ready(&row.metadata);
        match self.sandboxes.guest(id).await {
            // It may have been started since the first look, and not to be used.
            Ok(_) if half_made || self.sandboxes.is_saving(account, id) => Err(waking(id)),
            Ok(guest) => Ok(guest),
            Err(error) if error.kind() == ErrorKind::Unavailable => Err(waking(id).with_source(error)),
            Err(error) if error.kind() == ErrorKind::Stopped => {
                let message = format!("sandbox {id} does not run; start it, or use it");
                Err(Error::new(ErrorKind::Stopped, message).with_code("not_running").without_effect())
            }
            Err(error) => Err(error),
        }
    }

    /// A connection to its guest, for a client of the server that speaks the wire's protocol itself.
    pub async fn connect_raw(&self, account: AccountId, id: SandboxId) -> Result<Box<dyn Duplex>> {
        self.guest(account, id).await?;
        let provider = self.row(account, id).await?.provider;
        self.sandboxes.providers().get(&provider)?.connect(id).await
    }

    /// P7: a connection to a port of one that runs.
    pub async fn port_stream(&self, account: AccountId, id: SandboxId, port: u16) -> Result<Box<dyn Duplex>> {
        let guest = self.guest_if_running(account, id).await?;
        guest.connect_port(port).await.map_err(|error| {
            let error = Error::from(error);
            match error.kind() {
                ErrorKind::Unavailable | ErrorKind::Timeout => error,
                _ => {
                    Error::new(ErrorKind::Protocol, format!("nothing answers at port {port} of sandbox {id}"))
                        .with_code("port_refused")
                        .with_source(error)
                }
            }
        })
    }

    /// P7: what tokens of its ports are for: this life of a sandbox, and none after its end.
    pub async fn this_life(&self, account: AccountId, id: SandboxId) -> Result<SandboxId> {
        let lives =
            self.row(account, id).await?.metadata.get(super::LIVES).and_then(Value::as_u64).unwrap_or(0);
        let marked = uuid_with(id, lives);
        Ok(marked.unwrap_or(id))
    }

    pub(super) fn seen(&self, mut row: SandboxRow, mut info: SandboxInfo) -> Sandbox {
        row.metadata = shown(row.metadata);
        self.mounts.shown(row.account_id, &mut info.spec.mounts);
        Sandbox {
            info,
            template: row.template,
            unsynced: row.unsynced.map(|why| told(row.account_id, why)),
            metadata: row.metadata,
            ports: BTreeMap::new(),
            last_used_at: row.last_used_at,
        }
    }
}

/// Metadata without what the service notes for itself alone.
pub fn shown(mut metadata: Map<String, Value>) -> Map<String, Value> {
    const OWN: [&str; 6] = [READY, LIVES, LAST_PLACE, FILES_OF, IN_PART, TEMPLATE_IMAGE];
    metadata.retain(|key, _| !OWN.contains(&key.as_str()));
    metadata
}

/// Another id for each life. The first has its own.
fn uuid_with(id: SandboxId, lives: u64) -> Option<SandboxId> {
    let number = id.as_uuid().as_u128() ^ u128::from(lives);
    format!("{number:032x}").parse().ok()
}

/// Why files are not in the bucket. Where that bucket is, is the operator's to know.
pub(crate) fn told(account: AccountId, why: String) -> String {
    match account {
        AccountId::LOCAL => why,
        _ if why.contains("`stored_mb`") => {
            "the account's limit `stored_mb` is reached; they stay in the sandbox: delete versions or conversations, and sync again"
                .to_owned()
        }
        _ => "the bucket does not take them now; they stay in the sandbox, and are pushed later".to_owned(),
    }
}

fn waking(id: SandboxId) -> Error {
    Error::unavailable(format!("sandbox {id} is being made ready; try again in a moment"))
        .with_code("waking")
        .without_effect()
}

pub(crate) fn gone(id: SandboxId) -> Error {
    let message = format!("sandbox {id} was ended for good; only a turn of its conversation makes it anew");
    Error::new(ErrorKind::Gone, message)
}
