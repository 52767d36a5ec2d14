//! Finds the sandbox that a reference means: an id, a name, or the unique beginning of an id.

use super::Session;
use anyhow::{Result, anyhow};
use seawall_api::{
    ErrorKind, SandboxId,
    sandbox::{Sandbox, SandboxState},
};
use seawall_client::{ListSandboxes, Page};
use seawall_core::Error;
use seawall_wire::Guest;

/// The shortest beginning of an id that stands for it.
const SHORTEST: usize = 4;

impl Session {
    /// Returns the guest of a sandbox. The server starts the sandbox if necessary. A complete id needs no look-up.
    pub async fn guest(&self, reference: &str) -> Result<(SandboxId, Guest)> {
        let id = self.find_id(reference).await?;
        Ok((id, self.client.guest(id)))
    }

    /// By id, by name, or by the beginning of an id that only one has.
    pub async fn find(&self, reference: &str) -> Result<Sandbox> {
        if let Ok(id) = reference.parse::<SandboxId>() {
            return self.client.sandbox(id).await.map_err(|error| match error.kind() {
                ErrorKind::NotFound => unknown(reference),
                _ => error.into(),
            });
        }
        let named = ListSandboxes { name: Some(reference.to_owned()), ..ListSandboxes::default() };
        if let Some(found) = self.client.sandboxes(&named).await?.items.into_iter().next() {
            return Ok(found);
        }
        by_beginning(self.all(None).await?, reference)
    }

    /// Like [`Session::find`], but accepts a complete id without a look-up: the sandbox may have ended.
    pub async fn find_id(&self, reference: &str) -> Result<SandboxId> {
        match reference.parse::<SandboxId>() {
            Ok(id) => Ok(id),
            Err(_) => Ok(self.find(reference).await?.info.id),
        }
    }

    /// All in a state, or all that are not terminated, oldest first.
    pub async fn all(&self, state: Option<SandboxState>) -> Result<Vec<Sandbox>> {
        let mut list = ListSandboxes { page: Page::first(1000), state, ..ListSandboxes::default() };
        let mut all = Vec::new();
        loop {
            let found = self.client.sandboxes(&list).await?;
            all.extend(found.items);
            match found.next {
                Some(next) => list.page.after = Some(next),
                None => break,
            }
        }
        all.sort_by_key(|sandbox: &Sandbox| (sandbox.info.created_at, sandbox.info.id));
        Ok(all)
    }
}

fn by_beginning(all: Vec<Sandbox>, reference: &str) -> Result<Sandbox> {
    let wanted = reference.to_ascii_lowercase();
    let mut matching = all.into_iter().filter(|sandbox| sandbox.info.id.to_string().starts_with(&wanted));
    match (matching.next(), matching.next()) {
        (Some(found), None) if wanted.len() >= SHORTEST => Ok(found),
        (Some(_), Some(_)) => Err(anyhow!("several sandboxes begin with `{reference}`; give more of the id")),
        _ => Err(unknown(reference)),
    }
}

fn unknown(reference: &str) -> anyhow::Error {
    let message = format!("there is no sandbox `{reference}`: `seawall ls` shows those there are");
    Error::not_found(message).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use seawall_api::sandbox::{Egress, SandboxInfo, SandboxSpec};

    fn sandbox(id: &str) -> Sandbox {
        Sandbox {
            info: SandboxInfo {
                id: id.parse().unwrap(),
                name: None,
                provider: "native".into(),
                state: SandboxState::Running,
                reason: None,
                spec: SandboxSpec::default(),
                created_at: Timestamp::UNIX_EPOCH,
                started_at: None,
                egress: Egress::None,
            },
            template: None,
            unsynced: None,
            metadata: serde_json::Map::new(),
            ports: Default::default(),
            last_used_at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_beginning_must_be_long_enough_and_one_alone() {
        let (a, b) = ("0190a5d0-7c1e-7b3a-9f00-000000000001", "0190a5d1-7c1e-7b3a-9f00-000000000002");
        let find = |reference: &str| by_beginning(vec![sandbox(a), sandbox(b)], reference);
        assert_eq!(find("0190A5D0").unwrap().info.id.to_string(), a);
        assert!(find("0190a5d").unwrap_err().to_string().contains("several"));
        assert!(find("ffff").unwrap_err().to_string().contains("seawall ls"));
        assert!(by_beginning(vec![sandbox(a)], "019").is_err());
        assert!(by_beginning(vec![sandbox(a)], "").is_err());
    }
}
