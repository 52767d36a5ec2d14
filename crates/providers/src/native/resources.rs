//! What a box holds of the machine: its control group, its disks, and its part of its account's totals.

use super::{
    folder::Mounted,
    limits,
    provider::{Inner, NativeProvider},
};
use crate::{off_thread, short_work};
use rustix::fd::OwnedFd;
use seawall_api::{AccountId, SandboxId, sandbox::SandboxSpec};
use seawall_core::{
    Error, Result,
    ports::{AccountTotals, BoxInfo},
    steps::reached,
};
use seawall_jail::{
    cgroup::{self, BoxGroup, Controller},
    disk,
    order::Disks,
};
use std::sync::atomic::Ordering;

/// The controllers of default limits.
const NEEDED: [Controller; 3] = [Controller::Cpu, Controller::Memory, Controller::Pids];

impl Inner {
    /// Keeps the disks of a box mounted that is about to end, so that its end does not wait for what is left to write.
    pub(super) fn pin_disks(&self, id: SandboxId, spec: Option<&SandboxSpec>) -> Vec<OwnedFd> {
        let limited = spec.is_some_and(|spec| self.folders.disks(id, spec) != Disks::None);
        let process = self.folders.process(id).filter(|process| limited && process.is_alive());
        process.map_or_else(Vec::new, |process| disk::pin(process.pid))
    }

    /// The boxes of an account, and the limits of their groups.
    fn boxes_of(&self, account: AccountId) -> Vec<(String, cgroup::Limits)> {
        let ids = self.folders.boxes.ids().unwrap_or_default();
        let intents = ids.into_iter().filter_map(|id| self.folders.boxes.intent(id).ok()?);
        let of_account = intents.filter(|intent| intent.account == account);
        let limits =
            of_account.map(|intent| (intent.id.to_string(), self.bounds.in_force(&intent.spec.limits)));
        limits.filter_map(|(id, limits)| Some((id, limits.ok()?))).collect()
    }

    /// Bounds what the boxes of an account use together. An error names the first total that cannot be enforced.
    pub(super) fn set_totals(&self, account: AccountId, totals: &AccountTotals) -> Result<()> {
        let (limits, refused) = self.bounds.totals(totals);
        let set = self.groups.set_totals(account, limits, || self.boxes_of(account));
        set.map_err(|error| {
            Error::unavailable(format!("the totals of account {account} cannot be set")).with_source(error)
        })?;
        refused
    }
}

impl NativeProvider {
    /// Defaults that cannot hold here are off, and whoever looks at the log knows it. Once.
    pub(super) fn warn_of_missing_limits(&self) {
        let missing = NEEDED.into_iter().find_map(|controller| self.inner.bounds.groups.missing(controller));
        if let Some(missing) = missing
            && !self.inner.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                "default limits are off: {}. {}; `seawall doctor` shows which",
                missing.why,
                missing.fix
            );
        }
    }

    /// Makes the control group of a box with its limits, out of a spare group where there is one. The group of an account has a
    /// lock: this waits while other boxes of the account are made or while its memory limit is changed.
    pub(super) async fn make_group(&self, info: &BoxInfo, account: AccountId) -> Result<BoxGroup> {
        let (inner, id) = (self.inner.clone(), info.id);
        let limits = inner.bounds.in_force(&info.spec.limits)?;
        let make = move || {
            let made = inner.groups.make(id, account, &limits, || inner.folders.spares.group());
            made.map_err(|error| {
                Error::unavailable(format!("the control group of {id} cannot be made")).with_source(error)
            })
        };
        let group = if account == AccountId::LOCAL { make()? } else { short_work(true, make).await? };
        reached("the group is made");
        Ok(group)
    }

    /// The disks of a box, mounted. Where its disk IO is limited, or that of its account, they bypass the page cache of
    /// their images: what is read and written then counts as the box's.
    pub(super) async fn mount_disks(&self, info: &BoxInfo, account: AccountId) -> Result<Mounted> {
        let (inner, id) = (self.inner.clone(), info.id);
        let disks = inner.folders.disks(id, &info.spec);
        if disks == Disks::None {
            return Ok(Mounted { disks, own: None, volume: None });
        }
        let limits = inner.bounds.in_force(&info.spec.limits)?;
        let limits_io = limits.needs(Controller::Io) || inner.groups.limits_io(account);
        let ready = !limits_io && inner.folders.is_mounted(id, &info.spec, disks);
        let (spec, stamp) = (info.spec.clone(), info.created_at.to_string());
        let mount = move || {
            let mounted = inner.folders.mount(id, &spec, disks, &stamp);
            let mounted = mounted.map_err(|error| {
                Error::unavailable(format!("the disk of {id} cannot be mounted")).with_source(error)
            })?;
            if limits_io {
                mounted.bypass_cache().map_err(|error| {
                    let fix = "Put the data folder on ext4 or XFS";
                    limits::unenforceable("disk_io_mb_s", &error.to_string(), fix)
                })?;
            }
            Ok(mounted)
        };
        if ready { mount() } else { off_thread(mount).await }
    }
}
