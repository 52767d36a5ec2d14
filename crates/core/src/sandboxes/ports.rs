//! Published ports: ports of a sandbox that are reachable on random ports of this machine's loopback.

use super::Sandboxes;
use crate::{
    Result,
    tunnels::{self, Forward},
};
use seawall_api::{
    SandboxId,
    sandbox::{SandboxInfo, SandboxState},
};
use std::{
    collections::{BTreeMap, HashMap},
    net::{Ipv4Addr, SocketAddr},
};
use tokio::sync::Mutex;

/// The published ports of all sandboxes.
pub(super) type Published = Mutex<HashMap<SandboxId, BTreeMap<u16, Forward>>>;

impl Sandboxes {
    /// Returns the addresses of the ports that a sandbox publishes. The first call for a sandbox that runs makes them
    /// reachable; they stay so until it stops or this process ends.
    pub async fn published(&self, info: &SandboxInfo) -> Result<BTreeMap<u16, SocketAddr>> {
        if info.spec.ports.is_empty() || info.state != SandboxState::Running {
            return Ok(BTreeMap::new());
        }
        let mut published = self.inner.published.lock().await;
        let forwards = published.entry(info.id).or_default();
        for port in &info.spec.ports {
            if !forwards.contains_key(port) {
                let guest = self.client(info.id, &info.provider)?;
                let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                forwards.insert(*port, tunnels::forward(guest, *port, any).await?);
            }
        }
        Ok(forwards.iter().map(|(port, forward)| (*port, forward.local)).collect())
    }

    /// Closes the published ports of a sandbox that stops.
    pub(super) async fn unpublish(&self, id: SandboxId) {
        self.inner.published.lock().await.remove(&id);
    }
}
