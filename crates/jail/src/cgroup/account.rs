//! The group of an account, which bounds what its boxes use together.
//!
//! On v2 the group's limits hold for all groups beneath it. On v1 so do those of memory and processes. A quota of
//! processor time may not be larger beneath a group than in it, so that boxes get at most the account's. Limits of disk
//! IO do not add up at all on v1: boxes without one of their own are processes of the account's group itself.

use super::{
    BoxGroup, Cgroups, Controller, Limits, MEMORY, MEMORY_AND_SWAP, QUOTA, account_group, at,
    place::{enable, group_in, ours},
    quota, settings, write_settings,
};
use std::{
    fs,
    io::{self, ErrorKind},
    path::Path,
};

/// How often a group is made that others remove meanwhile: an account's group goes with its last box.
const TRIES: u32 = 20;

/// What becomes of limits that are not among the totals.
#[derive(Clone, Copy, PartialEq)]
enum Unset {
    Leave,
    Clear,
}

impl Cgroups {
    /// Makes the group of a box in that of its account, with the limits of both, where they are missing.
    pub fn make_member(
        &self,
        account: &str,
        totals: &Limits,
        name: &str,
        limits: &Limits,
    ) -> io::Result<BoxGroup> {
        let mut tries = 0;
        loop {
            let made = self.make_account(account, totals).and_then(|()| {
                let group = self.member(account, name, limits);
                group.make()?;
                group.set(&self.within(totals, limits))?;
                Ok(group)
            });
            match made {
                Err(error) if error.kind() == ErrorKind::NotFound && tries < TRIES => tries += 1,
                other => return other,
            }
        }
    }

    /// Returns the name of a box's group in that of any account of an installation.
    pub fn find_member(&self, installation: &str, name: &str) -> Option<String> {
        let accounts = account_group(installation, "");
        let (_, parent) = self.parents.first()?;
        let in_account = |account: &String| {
            account.starts_with(&accounts) && group_in(parent, account).join(name).exists()
        };
        ours(parent).into_iter().find(in_account).map(|account| format!("{account}/{name}"))
    }

    /// Whether the quota of processor time of an account bounds those of its boxes.
    pub fn caps_members(&self) -> bool {
        !self.v2
    }

    /// Writes the totals of an account whose group exists. `boxes` are its members, with their own limits.
    pub fn set_totals(&self, account: &str, totals: &Limits, boxes: &[(String, Limits)]) -> io::Result<()> {
        let group = self.all_of(account);
        if !group.exists() {
            return Ok(());
        }
        self.write_totals(&group, totals, Unset::Clear)?;
        for (name, limits) in boxes {
            let member = self.member(account, name, limits);
            // Only processor time of boxes depends on the totals. A box may be gone meanwhile.
            match member.set(&Limits { cpus: self.within(totals, limits).cpus, ..Limits::default() }) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(())
    }

    fn make_account(&self, account: &str, totals: &Limits) -> io::Result<()> {
        let group = self.all_of(account);
        group.make()?;
        if let (true, Some((_, folder))) = (self.v2, group.folders.first()) {
            enable(folder).map_err(|error| at(folder, error))?;
        }
        self.write_totals(&group, totals, Unset::Leave)
    }

    fn write_totals(&self, group: &BoxGroup, totals: &Limits, unset: Unset) -> io::Result<()> {
        for (controller, folder) in &group.folders {
            if unset == Unset::Leave && !totals.needs(*controller) {
                continue;
            }
            if let (Controller::Cpu, false, Some(cpus)) = (controller, self.v2, totals.cpus) {
                lower_quotas(folder, quota(cpus));
            }
            let written = write_settings(folder, &settings(self.v2, *controller, totals, group.disk));
            match written {
                Err(error)
                    if error.kind() == ErrorKind::ResourceBusy && *controller == Controller::Memory =>
                {
                    hold_memory(folder).map_err(|_| error)?;
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// The groups of a box in an account, whatever limits it has: totals may come later.
    fn member(&self, account: &str, name: &str, limits: &Limits) -> BoxGroup {
        let joins = |controller: Controller| {
            !self.v2 && controller == Controller::Io && !limits.needs(Controller::Io)
        };
        let folder = |parent: &Path| group_in(parent, account).join(name);
        let own = self.parents.iter().filter(|(controller, _)| !joins(*controller));
        let mut group = self.group(own.map(|(c, parent)| (*c, folder(parent))).collect());
        let joined = self.parents.iter().find(|(controller, _)| joins(*controller));
        group.joined = joined.map(|(_, parent)| group_in(parent, account));
        group
    }

    /// The limits of a box as its group takes them.
    fn within(&self, totals: &Limits, limits: &Limits) -> Limits {
        let cpus = match (limits.cpus, totals.cpus) {
            (Some(own), Some(total)) if !self.v2 => Some(own.min(total)),
            (own, _) => own,
        };
        Limits { cpus, ..*limits }
    }
}

/// On v1 no group beneath may have more than its parent is about to get.
fn lower_quotas(account: &Path, most: u64) {
    for entry in fs::read_dir(account).into_iter().flatten().flatten() {
        let path = entry.path().join(QUOTA);
        let now = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<i64>().ok());
        if now.is_some_and(|now| now > most.cast_signed()) {
            // Where it fails, writing the account's quota does as well, and says so.
            let _ = fs::write(&path, most.to_string());
        }
    }
}

/// On v1 no limit of memory can be below what is in use: then it becomes that, and nothing is added. The next box of
/// the account tries the real one again.
fn hold_memory(account: &Path) -> io::Result<()> {
    let used = fs::read_to_string(account.join("memory.usage_in_bytes"))?;
    let value = used.trim();
    match fs::write(account.join(MEMORY), value) {
        Err(error) if error.kind() == ErrorKind::ResourceBusy => Ok(()),
        other => other,
    }?;
    match fs::write(account.join(MEMORY_AND_SWAP), value) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ResourceBusy) => Ok(()),
        other => other,
    }
}
