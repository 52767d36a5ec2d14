//! Whose a sandbox is, and how it is come by: every operation of an account begins here.

use super::{SandboxService, Wanted};
use crate::{
    Error, Result,
    ports::store::{ConversationFilter, Page, SandboxRow},
    templates::{DEFAULT, Template},
};
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    conversation::Conversation,
    sandbox::{Sandbox, SandboxInfo, SandboxState},
};
use seawall_wire::{Duplex, Guest};
use serde_json::Value;
use std::sync::{Arc, PoisonError};

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
            template: self.template_of(row.template.as_deref())?,
        })
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
        if self.closing.lock().unwrap_or_else(PoisonError::into_inner).contains(&id) {
            let message = format!("sandbox {id} is just being ended");
            return Err(Error::unavailable(message).with_code("ending"));
        }
        let half_made = row.template.is_some() && !row.metadata.contains_key(super::READY);
        match self.sandboxes.guest(id).await {
            Ok(_) if half_made => Err(waking(id)),
            Ok(guest) => Ok(guest),
            Err(error) if error.kind() == ErrorKind::Unavailable => Err(waking(id).with_source(error)),
            Err(error) if error.kind() == ErrorKind::Stopped => {
                let message = format!("sandbox {id} does not run; start it, or use it");
                Err(Error::new(ErrorKind::Stopped, message).with_code("not_running"))
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

    pub(super) fn seen(&self, mut row: SandboxRow, info: SandboxInfo) -> Sandbox {
        // How far it is with making itself ready is nobody else's business.
        row.metadata.remove(super::READY);
        row.metadata.remove(super::LIVES);
        Sandbox {
            info,
            template: row.template,
            unsynced: row.unsynced.map(|why| told(row.account_id, why)),
            metadata: row.metadata,
            last_used_at: row.last_used_at,
        }
    }
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
        _ => "the bucket does not take them now; they stay in the sandbox, and are pushed later".to_owned(),
    }
}

fn waking(id: SandboxId) -> Error {
    Error::unavailable(format!("sandbox {id} is being made ready; try again in a moment")).with_code("waking")
}

pub(crate) fn gone(id: SandboxId) -> Error {
    let message = format!("sandbox {id} was ended for good; only a turn of its conversation makes it anew");
    Error::new(ErrorKind::Gone, message)
}
