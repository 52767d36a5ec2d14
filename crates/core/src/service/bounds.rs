//! The bounds of one sandbox: what an account may ask for, and what it gets where it asks for nothing (K8).

use super::SandboxService;
use crate::{
    Error, Result,
    accounts::{AccountLimits, Limit},
    ports::Provider,
    sandboxes::{check_spec, counted_disk},
    templates::Template,
};
use seawall_api::{
    AccountId, ErrorKind,
    sandbox::{SandboxSpec, Timeouts},
};

/// The disk of a sandbox whose request and template name none, of every account but `local`.
const DEFAULT_DISK_MB: u64 = 2048;

impl SandboxService {
    /// A spec within the bounds of its account, or an error that names the limit. `kept`: its volume was there before,
    /// and stays as it was made.
    pub(super) async fn bounded(
        &self,
        account: AccountId,
        mut spec: SandboxSpec,
        provider: &dyn Provider,
        kept: bool,
    ) -> Result<SandboxSpec> {
        let Some(catalog) = self.catalog.as_ref().filter(|_| account != AccountId::LOCAL) else {
            return Ok(spec);
        };
        // What makes no sense is told as that, and not as too much.
        check_spec(&spec).map_err(|error| error.with_code("invalid_config"))?;
        let limits = catalog.settings(account).await?.limits;
        self.limit_times(&mut spec, &limits);
        self.limit_disk(&mut spec, provider, kept, &limits)?;
        let usual = provider.default_limits();
        let asked = &mut spec.limits;
        let milli = |cpus: f64| Limit::SandboxCpus.parse(cpus).unwrap_or(u64::MAX);
        bound(&limits, Limit::SandboxCpus, asked.cpus.map(milli), usual.cpus.map(milli), |most| {
            asked.cpus = Some(Limit::SandboxCpus.shown(most));
        })?;
        bound(&limits, Limit::SandboxMemoryMb, asked.memory_mb, usual.memory_mb, |most| {
            asked.memory_mb = Some(most);
        })?;
        bound(&limits, Limit::SandboxProcesses, asked.max_processes, usual.max_processes, |most| {
            asked.max_processes = Some(most);
        })?;
        if provider.sums_limits() {
            // The limit of each sandbox counts towards the account's total, so the total bounds the default too.
            let least = |usual: Option<u64>, total: Limit| {
                let total = limits.get(total)?;
                Some(usual.map_or(total, |usual| usual.min(total)))
            };
            asked.cpus = asked
                .cpus
                .or_else(|| least(usual.cpus.map(milli), Limit::Cpus).map(|most| Limit::Cpus.shown(most)));
            asked.memory_mb = asked.memory_mb.or_else(|| least(usual.memory_mb, Limit::MemoryMb));
            asked.max_processes =
                asked.max_processes.or_else(|| least(usual.max_processes, Limit::Processes));
        }
        bound(&limits, Limit::SandboxDiskMb, asked.disk_mb, None, |most| asked.disk_mb = Some(most))?;
        // Nobody has a default for this: without a word it is as much as the disk has.
        let io = usual.disk_io_mb_s.or(Some(u64::MAX));
        bound(&limits, Limit::SandboxDiskIoMbS, asked.disk_io_mb_s, io, |most| {
            asked.disk_io_mb_s = Some(most);
        })?;
        Ok(spec)
    }

    /// Idle time and lifetime end at the account's bound; where it has none, at the server's.
    fn limit_times(&self, spec: &mut SandboxSpec, limits: &AccountLimits) {
        let [idle, lifetime] = self.time_bounds(limits);
        let least = |asked: Option<u64>, most: Option<u64>| match (asked, most) {
            (Some(asked), Some(most)) if asked == 0 || asked > most => Some(most),
            (None, most) => most,
            (asked, _) => asked,
        };
        let times = &mut spec.timeouts;
        times.idle_seconds = least(times.idle_seconds, idle);
        times.max_lifetime_seconds = least(times.max_lifetime_seconds, lifetime);
    }

    /// Refuses times that a request names and that are longer than its account may have. Zero asks for as long as is allowed.
    pub(super) async fn check_times(&self, account: AccountId, asked: &Timeouts) -> Result<()> {
        let Some(catalog) = self.catalog.as_ref().filter(|_| account != AccountId::LOCAL) else {
            return Ok(());
        };
        let [idle, lifetime] = self.time_bounds(&catalog.settings(account).await?.limits);
        let named = [
            (Limit::IdleSeconds, asked.idle_seconds, idle),
            (Limit::LifetimeSeconds, asked.max_lifetime_seconds, lifetime),
        ];
        for (limit, asked, most) in named {
            if let (Some(asked), Some(most)) = (asked, most)
                && asked > most
            {
                return Err(limit.exceeded(most, asked, "the sandbox is refused"));
            }
        }
        Ok(())
    }

    /// The longest idle time and lifetime of an account's sandboxes: its own, else the server's. None: no bound.
    fn time_bounds(&self, limits: &AccountLimits) -> [Option<u64>; 2] {
        let server = self.timeouts;
        // Zero is the value of a setting that cannot be read: as little as there is, and not as much. The server's own
        // zero means that sandboxes do not end by themselves.
        let bound = |limit: Limit, server: Option<u64>| {
            limits.get(limit).map(|most| most.max(1)).or(server.filter(|most| *most > 0))
        };
        [
            bound(Limit::IdleSeconds, server.idle_seconds),
            bound(Limit::LifetimeSeconds, server.max_lifetime_seconds),
        ]
    }

    /// The disk that a sandbox of a template would have, as far as the account's limits count it.
    pub(crate) async fn disk_of(&self, account: AccountId, template: &Template) -> Result<u64> {
        let provider = template.sandbox.provider.as_deref();
        let provider = provider.unwrap_or(self.sandboxes.providers().default_name()).to_owned();
        let provides = self.sandboxes.providers().get(&provider)?;
        let spec = template.spec(provides.capabilities().isolation)?;
        let spec = SandboxSpec { volume: template.sync.volume.clone(), ..spec };
        Ok(counted_disk(&self.bounded(account, spec, &*provides, false).await?))
    }

    /// Every new volume of a tenant has a limit, or the operator said that it need not.
    fn limit_disk(
        &self,
        spec: &mut SandboxSpec,
        provider: &dyn Provider,
        kept: bool,
        limits: &AccountLimits,
    ) -> Result<()> {
        if kept || spec.limits.disk_mb.is_some() || !provider.capabilities().isolation {
            return Ok(());
        }
        if provider.capabilities().limits.disk {
            let most = limits.get(Limit::SandboxDiskMb).unwrap_or(u64::MAX);
            spec.limits.disk_mb = Some(DEFAULT_DISK_MB.min(most));
            return Ok(());
        }
        if self.allow_unlimited_disk {
            return Ok(());
        }
        let message = "disk cannot be limited here, so only the operator's account may have sandboxes: run seawall as \
                       root, or set `allow_unlimited_disk = true` in section [accounts] of seawall.toml";
        Err(Error::new(ErrorKind::LimitUnenforceable, message).with_code("disk_unlimited"))
    }
}

/// Refuses what is beyond the limit, and lowers a default that is.
fn bound(
    limits: &AccountLimits,
    limit: Limit,
    asked: Option<u64>,
    usual: Option<u64>,
    lower: impl FnOnce(u64),
) -> Result<()> {
    let Some(most) = limits.get(limit) else { return Ok(()) };
    match (asked, usual) {
        (Some(asked), _) if asked > most => Err(limit.exceeded(most, asked, "the sandbox is refused")),
        (None, Some(usual)) if usual > most => {
            lower(most);
            Ok(())
        }
        _ => Ok(()),
    }
}
