//! The provider contract: how boxes are made, and how a wire to one is opened.
//!
//! Everything else (exec, terminals, files, tunnels) is the guest's, and the same everywhere. The rules
//! below hold for every provider; `crates/providers/tests/conformance` has a case for each.
//!
//! - `create` is idempotent by sandbox id: twice is once, also at the same time. It starts nothing. A
//!   second create with another spec is a conflict.
//! - `start`, `stop` and `remove` work from any state and may be repeated. Removing what is gone
//!   succeeds. Removing keeps the data volume unless told otherwise; a box made again under its id finds
//!   the volume's files.
//! - Boxes whose spec names a volume share it, also at the same time. Removing a box never deletes such a volume:
//!   `remove_volume` does, where no box has it.
//! - `get` and `list` tell the truth of the substrate, not of memory. A box made by a former run of
//!   the host is found again; boxes of another installation are left alone.
//! - A box that cannot be read is that box's problem: it is listed as [`BoxState::Damaged`], and what runs in it is left
//!   alone until it is removed.
//! - `watch` gives every box as it is now, then [`BoxEvent::Ready`], then each change. A broken
//!   stream yields an error and ends; the caller resubscribes.
//! - `connect` gives a fresh duplex byte stream to the guest, as often as asked.
//! - A box belongs to the account of its first `create`. [`Provider::set_account_totals`] bounds what the running
//!   boxes of one account use together; the account `local` has no totals.
//! - Errors have a stable kind, and `is_retryable` says whether trying again may help. A limit that
//!   cannot be enforced is refused as `limit_unenforceable`, never dropped.

use crate::Result;
use async_trait::async_trait;
use futures::stream::BoxStream;
use jiff::Timestamp;
use seawall_api::{
    AccountId, SandboxId,
    http::VolumeInfo,
    sandbox::{Egress, EndReason, Limits, SandboxSpec},
};
use seawall_wire::{Connector, Duplex};
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc, time::Duration};

/// What a provider can do. The service degrades by these, never by surprise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Processes cannot see or touch the host's files, processes and network.
    pub isolation: bool,
    /// Boxes outlive the host process and are found again.
    pub durable: bool,
    /// Runs the programs of a real machine.
    pub programs: bool,
    pub terminals: bool,
    /// Port tunnels, both ways.
    pub tunnels: bool,
    /// Watches directories for changes.
    pub file_watch: bool,
    /// Modes, links, owners and extended attributes of files.
    pub file_meta: bool,
    /// Takes an image.
    pub images: bool,
    /// Can run processes and touch files as another user.
    pub users: bool,
    pub pause: bool,
    pub snapshot: bool,
    pub fork: bool,
    pub gpu: bool,
    /// Programs that know no proxy reach the network through the wire.
    pub transparent_egress: bool,
    pub limits: LimitKinds,
}

/// The limits that are enforced when asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LimitKinds {
    pub cpus: bool,
    pub memory: bool,
    pub disk: bool,
    pub processes: bool,
    /// Bytes and operations a second on the data disk.
    #[serde(default)]
    pub disk_io: bool,
}

/// What the running boxes of one account may use together. None means no bound.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct AccountTotals {
    /// Cores, fractions allowed.
    pub cpus: Option<f64>,
    pub memory_mb: Option<u64>,
    pub max_processes: Option<u64>,
    /// MiB a second that are read from the data disk, and as many that are written to it.
    pub disk_io_mb_s: Option<u64>,
    /// Reads a second on the data disk, and as many writes.
    pub disk_iops: Option<u64>,
}

/// The state of a box, as the substrate has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoxState {
    /// Made, never started.
    Created,
    Running,
    Paused,
    /// Ran, and does not run.
    Stopped,
    /// What the provider keeps of it cannot be read, so it is neither used nor started, and can only be removed. Its
    /// processes may live.
    Damaged,
}

/// A box as it is now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BoxInfo {
    pub id: SandboxId,
    pub state: BoxState,
    /// Why it does not run, where it ran.
    pub reason: Option<EndReason>,
    pub spec: SandboxSpec,
    pub created_at: Timestamp,
    /// The guest's process on the host, where there is one.
    pub pid: Option<u32>,
    /// The data volume, by the name or path that an operator would look for.
    pub volume: String,
    /// The limits that hold, defaults included. What is not here is not limited.
    pub limits: Limits,
    /// The network that connects the box to other machines.
    #[serde(default)]
    pub egress: Egress,
}

/// What a box uses. None: it cannot be told.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BoxUsage {
    pub memory_bytes: Option<u64>,
    pub cpu_seconds: Option<f64>,
}

/// What all boxes of an account hold together. `None` where that is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AccountUse {
    pub memory_bytes: Option<u64>,
    pub processes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum BoxEvent {
    /// A box that was there when the watch began, or one that changed.
    Is(Box<BoxInfo>),
    /// All that was there has been told.
    Ready,
    Gone(SandboxId),
}

pub type BoxEvents = BoxStream<'static, Result<BoxEvent>>;

/// What happens to the data volume when its box is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Volumes {
    Keep,
    Delete,
}

/// The way to one box's guest.
pub struct ToBox {
    pub provider: Arc<dyn Provider>,
    pub id: SandboxId,
}

impl fmt::Debug for ToBox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ToBox({} of {})", self.id, self.provider.name())
    }
}

#[async_trait]
impl Connector for ToBox {
    async fn connect(&self) -> Result<Box<dyn Duplex>, seawall_wire::Error> {
        let connected = self.provider.connect(self.id).await;
        connected
            .map_err(|error| seawall_wire::Error::Unreachable { kind: error.kind(), message: error.chain() })
    }

    fn connects_cheaply(&self) -> bool {
        self.provider.connects_cheaply()
    }
}

#[async_trait]
pub trait Provider: Send + Sync {
    /// The name that users choose it by.
    fn name(&self) -> &'static str;

    fn capabilities(&self) -> Capabilities;

    /// The limits of a box whose spec names none. What is not here is not limited.
    fn default_limits(&self) -> Limits {
        Limits::default()
    }

    /// Fails where no box could be made or started now: what makes them does not answer. For those who watch the server.
    async fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Fails, with the reason and the fix, if no box could be made and started here. Unlike [`Provider::check`] it takes
    /// the time to try it.
    async fn probe(&self) -> Result<()> {
        self.check().await
    }

    /// Whether `create` makes its intent durable before anything else, so that a box is found again by it.
    fn keeps_intent(&self) -> bool {
        false
    }

    /// Fails if a box of this specification could not be made, and does what takes long, such as pulling its image.
    async fn prepare(&self, _spec: &SandboxSpec, _account: AccountId) -> Result<()> {
        Ok(())
    }

    /// Makes the box of a sandbox, which counts towards the totals of `account` whenever it runs.
    async fn create(&self, id: SandboxId, spec: &SandboxSpec, account: AccountId) -> Result<BoxInfo>;

    /// Bounds what the running boxes of an account use together, from now on and until the next call. The provider
    /// remembers the totals as long as this process lives, so a server sets them before it creates or starts boxes
    /// of an account. They are ignored for the account `local`. `limit_unenforceable` names a total that cannot
    /// hold here; the others hold nevertheless.
    async fn set_account_totals(&self, _account: AccountId, _totals: &AccountTotals) -> Result<()> {
        Ok(())
    }

    /// Returns true if this provider cannot bound the running boxes of an account together. The ledger then sums the limits
    /// of the boxes and compares the sum with the account's totals.
    fn sums_limits(&self) -> bool {
        false
    }

    /// Returns when the guest can be connected to.
    async fn start(&self, id: SandboxId) -> Result<BoxInfo>;

    /// Ends every process, politely and after `grace` by force. Returns when none is left.
    async fn stop(&self, id: SandboxId, grace: Duration) -> Result<()>;

    async fn remove(&self, id: SandboxId, volumes: Volumes) -> Result<()>;

    /// `not_found` where there is none.
    async fn get(&self, id: SandboxId) -> Result<BoxInfo>;

    async fn list(&self) -> Result<Vec<BoxInfo>>;

    /// The ids of [`Provider::list`]. For sweeps: what boxes were asked to be is not kept in memory.
    async fn ids(&self) -> Result<Vec<SandboxId>> {
        Ok(self.list().await?.into_iter().map(|found| found.id).collect())
    }

    async fn watch(&self) -> Result<BoxEvents>;

    /// What a box uses now, as far as that can be told.
    async fn usage(&self, _id: SandboxId) -> Result<BoxUsage> {
        Ok(BoxUsage::default())
    }

    /// What all boxes of an account use now, as far as that can be told.
    async fn account_use(&self, _account: AccountId) -> Result<AccountUse> {
        Ok(AccountUse::default())
    }

    /// Every data volume. Those of boxes that are gone are there until somebody removes them.
    async fn volumes(&self) -> Result<Vec<VolumeInfo>> {
        Ok(Vec::new())
    }

    /// Whether there is a volume of this name, with or without a box. Who cannot tell says yes: nothing is deleted.
    async fn has_volume(&self, _name: &str) -> Result<bool> {
        Ok(true)
    }

    /// Removes a volume that no box uses: `conflict` where one does, `not_found` where there is none.
    async fn remove_volume(&self, name: &str) -> Result<()> {
        Err(crate::Error::not_found(format!("there is no volume {name}")))
    }

    /// Removes the caches that the boxes of an account shared. The caller removed its boxes before.
    async fn remove_account(&self, _account: AccountId) -> Result<()> {
        Ok(())
    }

    /// `stopped` where the box does not run, `not_found` where there is none.
    async fn connect(&self, id: SandboxId) -> Result<Box<dyn Duplex>>;

    /// Whether [`Provider::connect`] takes well under a millisecond, so that each body of a file may have a connection.
    fn connects_cheaply(&self) -> bool {
        true
    }
}
