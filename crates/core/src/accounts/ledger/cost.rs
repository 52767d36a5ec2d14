//! The part of an account's totals that a running sandbox can use.
//!
//! A provider that bounds the boxes of an account together lets them share what the account has. Where one of an account's
//! running boxes is of a provider that cannot, all of them count with their own limits, and a start that would bring the sum
//! above a total is refused.

use super::{
    super::limit::{AccountLimits, Limit},
    Book, Entry,
};
use crate::{Providers, Result};
use seawall_api::sandbox::{Limits, SandboxSpec};

/// The limits of one sandbox. One that has no limit can use everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    milli_cpus: u64,
    memory_mb: u64,
    processes: u64,
    /// Whether its provider cannot bound the boxes of an account together.
    sums: bool,
}

impl Cost {
    /// The cost of a sandbox of a provider, whose defaults hold where the specification names no limit.
    pub fn of(providers: &Providers, provider: &str, spec: &SandboxSpec) -> Cost {
        let Ok(provider) = providers.get(provider) else { return Cost::default() };
        let Limits { cpus, memory_mb, max_processes, .. } = spec.limits.or(provider.default_limits());
        Cost {
            milli_cpus: cpus.map_or(u64::MAX, |cpus| (cpus * 1000.0).ceil() as u64),
            memory_mb: memory_mb.unwrap_or(u64::MAX),
            processes: max_processes.unwrap_or(u64::MAX),
            sums: provider.sums_limits(),
        }
    }

    fn get(&self, limit: Limit) -> u64 {
        match limit {
            Limit::Cpus => self.milli_cpus,
            Limit::MemoryMb => self.memory_mb,
            _ => self.processes,
        }
    }
}

impl Book {
    /// Refuses to start a sandbox if the sum of the limits of all running ones would be above a total.
    pub(super) fn check_sums(&self, cost: Cost, before: Option<Entry>, limits: &AccountLimits) -> Result<()> {
        let own = before.filter(|entry| entry.running).map(|entry| entry.cost);
        let running = || self.entries.values().filter(|entry| entry.running).map(|entry| entry.cost);
        if !cost.sums && !running().any(|cost| cost.sums) {
            return Ok(());
        }
        for limit in [Limit::Cpus, Limit::MemoryMb, Limit::Processes] {
            let Some(most) = limits.get(limit) else { continue };
            let all = running().fold(0, |sum: u64, cost| sum.saturating_add(cost.get(limit)));
            let others = all.saturating_sub(own.map_or(0, |cost| cost.get(limit)));
            let more = cost.get(limit);
            if more > most {
                let what = "the sandbox is refused; give it a limit of its own within the account's";
                return Err(limit.exceeded(most, more, what));
            }
            if others.saturating_add(more) > most {
                let what = "the sandbox is refused; stop others first, or give it a smaller limit of its own";
                return Err(limit.reached(most, others, what));
            }
        }
        Ok(())
    }
}
