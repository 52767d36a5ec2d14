//! The limits of an account: names, units, ranges and defaults.

use crate::Error;
use seawall_api::{ErrorKind, account::LimitUse};
use std::fmt;

/// A limit of an account. Its name is the key in the account's settings and in `[accounts]` of seawall.toml.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Limit {
    /// Sandboxes that were not ended, running or not.
    Sandboxes,
    /// Sandboxes that run at the same time.
    RunningSandboxes,
    Conversations,
    /// Bytes of all versions of all workspaces in the bucket, in MiB.
    StoredMb,
    /// Specs and metadata of sandboxes that were ended, in MiB. See `accounts/ledger/ended.rs`.
    EndedRecordsMb,
    /// Processors that all sandboxes of the account use together, in thousandths.
    Cpus,
    /// Memory that all sandboxes of the account use together.
    MemoryMb,
    /// The sum of the disk limits of all sandboxes of the account.
    DiskMb,
    /// Processes of all sandboxes of the account together.
    Processes,
    /// Bandwidth of the data disk for all sandboxes of the account together.
    DiskIoMbS,
    SandboxCpus,
    SandboxMemoryMb,
    SandboxDiskMb,
    SandboxProcesses,
    SandboxDiskIoMbS,
    /// The longest idle time that a sandbox may ask for.
    IdleSeconds,
    /// The longest lifetime that a sandbox may ask for.
    LifetimeSeconds,
    /// Streams, terminals and wires that are open at the same time.
    Streams,
    /// Requests that wait for a turn to end (`?wait=`).
    Waiters,
    /// Requests to ports of sandboxes that are in flight.
    Previews,
    TokensPerDay,
    TokensPerMonth,
}

/// How many limits there are.
const COUNT: usize = Limit::ALL.len();
/// Thousandths of a processor in one.
const MILLI: f64 = 1000.0;
/// The largest value that a limit can have: beyond it JavaScript and f64 lose precision.
const MOST: u64 = 1 << 53;

impl Limit {
    pub const ALL: [Limit; 22] = [
        Limit::Sandboxes,
        Limit::RunningSandboxes,
        Limit::Conversations,
        Limit::StoredMb,
        Limit::EndedRecordsMb,
        Limit::Cpus,
        Limit::MemoryMb,
        Limit::DiskMb,
        Limit::Processes,
        Limit::DiskIoMbS,
        Limit::SandboxCpus,
        Limit::SandboxMemoryMb,
        Limit::SandboxDiskMb,
        Limit::SandboxProcesses,
        Limit::SandboxDiskIoMbS,
        Limit::IdleSeconds,
        Limit::LifetimeSeconds,
        Limit::Streams,
        Limit::Waiters,
        Limit::Previews,
        Limit::TokensPerDay,
        Limit::TokensPerMonth,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Limit::Sandboxes => "sandboxes",
            Limit::RunningSandboxes => "running_sandboxes",
            Limit::Conversations => "conversations",
            Limit::StoredMb => "stored_mb",
            Limit::EndedRecordsMb => "ended_records_mb",
            Limit::Cpus => "cpus",
            Limit::MemoryMb => "memory_mb",
            Limit::DiskMb => "disk_mb",
            Limit::Processes => "processes",
            Limit::DiskIoMbS => "disk_io_mb_s",
            Limit::SandboxCpus => "sandbox_cpus",
            Limit::SandboxMemoryMb => "sandbox_memory_mb",
            Limit::SandboxDiskMb => "sandbox_disk_mb",
            Limit::SandboxProcesses => "sandbox_processes",
            Limit::SandboxDiskIoMbS => "sandbox_disk_io_mb_s",
            Limit::IdleSeconds => "idle_seconds",
            Limit::LifetimeSeconds => "lifetime_seconds",
            Limit::Streams => "streams",
            Limit::Waiters => "waiters",
            Limit::Previews => "previews",
            Limit::TokensPerDay => "tokens_per_day",
            Limit::TokensPerMonth => "tokens_per_month",
        }
    }

    pub fn from_name(name: &str) -> Option<Limit> {
        Limit::ALL.into_iter().find(|limit| limit.name() == name)
    }

    /// Whether the limit counts processors, which may be fractions.
    fn is_fraction(self) -> bool {
        matches!(self, Limit::Cpus | Limit::SandboxCpus)
    }

    /// Reads a value as people write it. `None` where it is not a number that this limit can have.
    pub fn parse(self, number: f64) -> Option<u64> {
        let least = if matches!(self, Limit::IdleSeconds | Limit::LifetimeSeconds) { 1.0 } else { 0.0 };
        if !number.is_finite() || number < least {
            return None;
        }
        let scaled = if self.is_fraction() { number * MILLI } else { number };
        let whole = scaled.round();
        let fits = whole <= MOST as f64 && (self.is_fraction() || whole == number);
        fits.then_some(whole as u64)
    }

    /// Returns this limit with its value and with what an account uses of it. `used` is `None` where nothing counts that.
    pub fn in_use(self, limits: &AccountLimits, used: Option<u64>) -> LimitUse {
        let value = limits.get(self).map(|value| self.shown(value));
        LimitUse { name: self.name().to_owned(), value, used: used.map(|used| self.shown(used)) }
    }

    /// The value as people read it.
    pub fn shown(self, value: u64) -> f64 {
        if self.is_fraction() { value as f64 / MILLI } else { value as f64 }
    }

    /// The error of a request that an account at this limit makes. It may succeed once something was ended.
    pub fn reached(self, value: u64, used: u64, what: &str) -> Error {
        self.error(ErrorKind::Denied, "limit_reached", value, used, what)
    }

    /// The error of a request that asks for more than the limit will ever allow.
    pub fn exceeded(self, value: u64, asked: u64, what: &str) -> Error {
        self.error(ErrorKind::Denied, "over_limit", value, asked, what)
    }

    fn error(self, kind: ErrorKind, code: &'static str, value: u64, used: u64, what: &str) -> Error {
        let (value, used) = (self.shown(value), self.shown(used));
        let verb = if code == "over_limit" { "asked for" } else { "in use" };
        let message = format!("{what}: the account's limit `{self}` is {value}, {verb}: {used}");
        let limit = LimitUse { name: self.name().to_owned(), value: Some(value), used: Some(used) };
        Error::new(kind, message).with_code(code).with_limit(limit)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A value for each limit. `None` means that there is no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccountLimits([Option<u64>; COUNT]);

/// What the machine has: the most that one account may use by default follows from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    pub cpus: f64,
    pub memory_mb: u64,
    /// The size of the file system with the data folder.
    pub disk_mb: u64,
    /// Descriptors that the server may have open.
    pub open_files: u64,
}

impl Default for AccountLimits {
    fn default() -> Self {
        AccountLimits::NONE
    }
}

impl AccountLimits {
    /// No bound at all: the operator's own account.
    pub const NONE: AccountLimits = AccountLimits([None; COUNT]);

    /// The defaults of every account but `local`.
    pub fn for_machine(machine: &Machine) -> AccountLimits {
        let milli = (machine.cpus * MILLI) as u64;
        let open_files = machine.open_files;
        let mut limits = AccountLimits::NONE;
        for (limit, value) in [
            (Limit::Sandboxes, 1000),
            (Limit::RunningSandboxes, 500),
            (Limit::Conversations, 100_000),
            (Limit::StoredMb, (machine.disk_mb / 4).max(1024)),
            (Limit::EndedRecordsMb, 256),
            // Others' sandboxes and the server itself keep a quarter.
            (Limit::Cpus, (milli * 3 / 4).max(100)),
            (Limit::MemoryMb, (machine.memory_mb / 2).max(64)),
            (Limit::DiskMb, (machine.disk_mb / 2).max(1024)),
            (Limit::Processes, 16_384),
            (Limit::SandboxCpus, milli),
            (Limit::SandboxMemoryMb, machine.memory_mb),
            (Limit::SandboxDiskMb, (machine.disk_mb / 4).max(1024)),
            (Limit::SandboxProcesses, 8192),
            // A sixteenth of the descriptors for each of the three, so that one account leaves room for others.
            (Limit::Streams, (open_files / 16).clamp(8, 1024)),
            (Limit::Waiters, (open_files / 16).clamp(8, 256)),
            (Limit::Previews, (open_files / 16).clamp(8, 1024)),
        ] {
            limits.set(limit, Some(value));
        }
        limits
    }

    pub fn get(&self, limit: Limit) -> Option<u64> {
        self.0[limit as usize]
    }

    pub fn set(&mut self, limit: Limit, value: Option<u64>) {
        self.0[limit as usize] = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_has_its_place_and_its_name() {
        for (place, limit) in Limit::ALL.into_iter().enumerate() {
            assert_eq!(limit as usize, place);
            assert_eq!(Limit::from_name(limit.name()), Some(limit));
        }
    }

    #[test]
    fn only_processors_may_be_fractions() {
        assert_eq!(Limit::Cpus.parse(1.5), Some(1500));
        assert_eq!(Limit::Cpus.shown(1500), 1.5);
        assert_eq!(Limit::Sandboxes.parse(1.5), None);
        for wrong in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(Limit::Sandboxes.parse(wrong), None, "{wrong}");
            assert_eq!(Limit::Cpus.parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn k8_a_refusal_tells_name_value_and_use() {
        let error = Limit::Cpus.reached(1500, 1250, "the sandbox cannot be started");
        let limit = error.limit().unwrap();
        assert_eq!((limit.name.as_str(), limit.value, limit.used), ("cpus", Some(1.5), Some(1.25)));
        assert_eq!(error.code(), "limit_reached");
        for part in ["`cpus`", "1.5", "1.25"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
