//! Control groups of boxes and of accounts, and groups made in advance.
//!
//! A box of the operator is in `<installation>-<id>`, one of another account in `<installation>-account-<account>/<id>`.
//! The group of an account is made with its first box that starts, and goes with the last one that is removed.
//!
//! Boxes of an account other than `local` lie in the account's group, whose limits are the account's totals. Its
//! groups are not made in advance, since v1 cannot rename a group into another parent: making one takes 0.2 ms,
//! taking a prepared one 0.03 ms. On v1 a group may have no larger processor quota than its parent, so boxes get at
//! most the account's total; limits of disk IO do not add up, so boxes without their own limit are processes of
//! the account's group of `blkio`. Processor groups on v1 lie in the root of the tree, next to the host's:
//! below one common parent, the kernel gave a light account next to no weight on a processor that a heavy one left
//! (100 ms and more for a command). On v2 all boxes are below the group `seawall`, which an operator may limit.
//! Processor quotas are counted over 20 ms, so a box that used its quota delays others for no longer than that.

use super::{limits::Bounds, spares::MakeGroup};
use seawall_api::{AccountId, SandboxId, sandbox::Limits};
use seawall_core::ports::AccountUse;
use seawall_jail::cgroup::{self, BoxGroup, Cgroups, Controller, account_group};
use std::{
    collections::{BTreeSet, HashMap},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The groups of one installation.
pub struct Groups {
    pub all: Cgroups,
    /// What tells the groups of this installation from those of others on the machine.
    installation: String,
    /// The totals of accounts. Whoever makes or removes a group in that of an account holds its lock.
    totals: Mutex<HashMap<AccountId, Arc<Mutex<cgroup::Limits>>>>,
}

impl Groups {
    pub fn new(all: Cgroups, installation: String) -> Groups {
        Groups { all, installation, totals: Mutex::default() }
    }

    fn account(&self, account: AccountId) -> String {
        account_group(&self.installation, &account.to_string())
    }

    fn name(&self, id: SandboxId, account: AccountId) -> String {
        match account {
            AccountId::LOCAL => format!("{}-{id}", self.installation),
            account => format!("{}/{id}", self.account(account)),
        }
    }

    /// The group of a box of an account.
    pub fn of(&self, id: SandboxId, account: AccountId) -> BoxGroup {
        self.all.all_of(&self.name(id, account))
    }

    /// The group of a box, wherever it is.
    pub fn of_box(&self, id: SandboxId) -> BoxGroup {
        let flat = self.all.all_of(&self.name(id, AccountId::LOCAL));
        if flat.exists() {
            return flat;
        }
        let member = self.all.find_member(&self.installation, &id.to_string());
        member.map_or(flat, |name| self.all.all_of(&name))
    }

    fn totals_of(&self, account: AccountId) -> Arc<Mutex<cgroup::Limits>> {
        lock(&self.totals).entry(account).or_default().clone()
    }

    /// What all boxes of an account use together. The operator's have no group of their own.
    pub fn used_by(&self, account: AccountId) -> AccountUse {
        if account == AccountId::LOCAL {
            return AccountUse::default();
        }
        let group = self.all.all_of(&account_group(&self.installation, &account.to_string()));
        AccountUse { memory_bytes: group.used().0, processes: group.processes() }
    }

    /// Whether the account has a total of disk IO.
    pub fn limits_io(&self, account: AccountId) -> bool {
        lock(&self.totals_of(account)).needs(Controller::Io)
    }

    /// Makes the group of a box with its limits, out of `spare` where that is given.
    pub fn make(
        &self,
        id: SandboxId,
        account: AccountId,
        limits: &cgroup::Limits,
        spare: impl FnOnce() -> Option<(String, cgroup::Limits)>,
    ) -> io::Result<BoxGroup> {
        let name = self.name(id, account);
        if account != AccountId::LOCAL {
            let totals = self.totals_of(account);
            let totals = lock(&totals);
            return self.all.make_member(&self.account(account), &totals, &id.to_string(), limits);
        }
        // One of a former life is taken again: nothing can be renamed to it.
        let there = self.all.all_of(&name).exists();
        match (!there).then(spare).flatten() {
            Some((spare, had)) => self.all.adopt(&spare, &had, &name, limits),
            None => self.all.make(&name, limits),
        }
    }

    /// Remembers the totals of an account, and writes them where it has a group. `boxes` tells its boxes and their
    /// limits.
    pub fn set_totals(
        &self,
        account: AccountId,
        limits: cgroup::Limits,
        boxes: impl FnOnce() -> Vec<(String, cgroup::Limits)>,
    ) -> io::Result<()> {
        let totals = self.totals_of(account);
        let mut totals = lock(&totals);
        if *totals == limits {
            return Ok(());
        }
        let (name, cpus) = (self.account(account), totals.cpus != limits.cpus);
        *totals = limits;
        if !self.all.all_of(&name).exists() {
            return Ok(());
        }
        let boxes = if cpus && self.all.caps_members() { boxes() } else { Vec::new() };
        self.all.set_totals(&name, &limits, &boxes)
    }

    /// Removes the groups of a box that is to go. `account`: whose it is, where its folder says so. `known`: it has
    /// a folder here.
    pub fn remove(&self, id: SandboxId, account: Option<AccountId>, known: bool) -> io::Result<()> {
        let group =
            account.map_or_else(|| self.of_box(id), |account| self.all.all_of(&self.name(id, account)));
        if known && !group.exists() {
            // A data folder that was moved has them under another name. Where anything lives it is another's.
            let ends = [format!("-{id}"), format!("/{id}")];
            for name in self.all.names().iter().filter(|name| ends.iter().any(|end| name.ends_with(end))) {
                self.all.discard(name);
                if let Some((account, _)) = name.split_once('/') {
                    self.all.discard(account);
                }
            }
        }
        group.remove()?;
        match account {
            Some(AccountId::LOCAL) => {}
            Some(account) => self.leave(account),
            None => self.clear_accounts(&self.all.names()),
        }
        Ok(())
    }

    /// Removes the group of an account that has no boxes.
    fn leave(&self, account: AccountId) {
        let totals = self.totals_of(account);
        let _alone = lock(&totals);
        self.all.discard(&self.account(account));
    }

    /// The boxes of this installation that have groups.
    pub fn boxes(&self) -> Vec<(SandboxId, BoxGroup)> {
        let names = self.all.names();
        self.clear_accounts(&names);
        let accounts = account_group(&self.installation, "");
        let id = |name: &str| match name.strip_prefix(&accounts) {
            Some(rest) => rest.split_once('/')?.1.parse::<SandboxId>().ok(),
            None => name.strip_prefix(&self.installation)?.strip_prefix('-')?.parse().ok(),
        };
        names.iter().filter_map(|name| Some((id(name)?, self.all.all_of(name)))).collect()
    }

    /// Removes the groups of accounts without boxes, which a crash left.
    fn clear_accounts(&self, names: &BTreeSet<String>) {
        let accounts = account_group(&self.installation, "");
        for name in names.iter().filter(|name| !name.contains('/')) {
            let inside = format!("{name}/");
            let Some(account) = name.strip_prefix(&accounts).and_then(|account| account.parse().ok()) else {
                continue;
            };
            if !names.range(inside.clone()..).next().is_some_and(|next| next.starts_with(&inside)) {
                self.leave(account);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn spare_group(installation: &str, name: &str) -> String {
    format!("{installation}-spare-{name}")
}

/// Groups in advance, with the default limits: then those are only checked.
struct InAdvance {
    bounds: Bounds,
    installation: String,
}

impl MakeGroup for InAdvance {
    fn make(&self) -> Option<(String, cgroup::Limits)> {
        let limits = self.bounds.in_force(&Limits::default()).ok()?;
        let name = spare_group(&self.installation, &SandboxId::generate().to_string());
        self.bounds.groups.make(&name, &limits).ok().map(|_| (name, limits))
    }

    fn remove(&self, name: &str) {
        // Whoever opens the folder next clears away what is left.
        let _ = self.bounds.groups.all_of(name).remove();
    }
}

/// None where groups cannot be renamed, or there are none.
pub fn group_maker(bounds: &Bounds, installation: &str) -> Option<Box<dyn MakeGroup>> {
    let groups = &bounds.groups;
    let some = Controller::ALL.into_iter().any(|controller| groups.has(controller));
    let in_advance = || InAdvance { bounds: bounds.clone(), installation: installation.to_owned() };
    (groups.can_rename() && some).then(|| Box::new(in_advance()) as Box<dyn MakeGroup>)
}
