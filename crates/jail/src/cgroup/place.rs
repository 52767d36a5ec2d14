//! Where our groups can be: found by looking, and by trying.

use super::{BoxGroup, Controller, Limits, at};
use crate::disk::Device;
use rustix::fs::Access;
use std::{
    collections::BTreeSet,
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    time::Duration,
};

/// The group that holds those of all boxes.
const OURS: &str = "seawall";
/// Where processes go that stand in the way of limits below them.
const ASIDE: &str = "seawall-host";
/// The prefix of the names of Seawall's groups that lie directly in the root of a cgroup v1 tree.
const PREFIX: &str = "seawall-";
/// In the names of accounts' groups, and of no other.
const ACCOUNT: &str = "-account-";

/// The groups that this process may make.
#[derive(Debug, Clone, Default)]
pub struct Cgroups {
    pub(super) v2: bool,
    /// For each controller that works, the folder that boxes' groups are made in. It is [`OURS`], but for processor time on
    /// v1, where groups lie in the root: the kernel splits the weight of a group over the processors by where its load is,
    /// so beneath one common group a light account would have next to no weight on every processor but those that a
    /// heavy one keeps busy.
    pub(super) parents: Vec<(Controller, PathBuf)>,
    /// The data disk. None where it is no block device whose IO can be limited.
    disk: Option<Device>,
    why_not: Option<Missing>,
}

/// Why a limit cannot be enforced, and what would help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    pub why: String,
    pub fix: String,
}

impl Cgroups {
    /// Looks for them. Makes our own group where it may.
    pub fn find() -> Cgroups {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let root = rustix::process::geteuid().is_root();
        let v2 = mounts.lines().find_map(|line| mount_point(line, "cgroup2", None));
        if let Some(top) = v2
            && has(&top, Controller::Memory)
        {
            return Cgroups::v2(&top, &own, root);
        }
        Cgroups::v1(&mounts, root)
    }

    fn v2(top: &Path, own: &str, root: bool) -> Cgroups {
        // An ordinary user may use what was delegated to it: the group that it is in.
        let path = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let mut above = if root { top.to_owned() } else { top.join(path) };
        // Put aside by one of us that came before: its groups, and ours, are beside.
        while above.ends_with(ASIDE) {
            above.pop();
        }
        match prepare_v2(&above) {
            Ok(parent) => {
                let parents = Controller::ALL.into_iter().filter(|controller| has(&parent, *controller));
                let parents = parents.filter(|controller| can_throttle(&parent, *controller, "io.max"));
                let parents: Vec<_> = parents.map(|controller| (controller, parent.clone())).collect();
                Cgroups { v2: true, parents, disk: None, why_not: None }
            }
            Err(error) => Cgroups {
                v2: true,
                parents: Vec::new(),
                disk: None,
                why_not: Some(Missing {
                    why: format!("no control groups can be made: {error}"),
                    fix: "run seawall as root, or with a delegated group: \
                          systemd-run --user --scope -p Delegate=yes seawall …"
                        .to_owned(),
                }),
            },
        }
    }

    fn v1(mounts: &str, root: bool) -> Cgroups {
        let mut found = Cgroups::default();
        for controller in Controller::ALL {
            let top = mounts.lines().find_map(|line| mount_point(line, "cgroup", Some(controller)));
            let Some(top) = top else { continue };
            if controller == Controller::Cpu {
                if rustix::fs::access(&top, Access::WRITE_OK).is_ok() {
                    found.parents.push((controller, top));
                }
                continue;
            }
            let parent = top.join(OURS);
            match fs::create_dir(&parent) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::AlreadyExists && root => {}
                Err(_) => continue,
            }
            if can_throttle(&parent, controller, "blkio.throttle.write_bps_device") {
                found.parents.push((controller, parent));
            }
        }
        if found.parents.is_empty() {
            let why = match root {
                true => "there are no control groups here".to_owned(),
                false => "control groups of the first generation belong to root".to_owned(),
            };
            let fix = "run seawall as root, on a host with control groups".to_owned();
            found.why_not = Some(Missing { why, fix });
        }
        found
    }

    /// The same groups, for boxes whose files are on this disk.
    pub fn with_disk(self, disk: Option<Device>) -> Cgroups {
        Cgroups { disk, ..self }
    }

    /// Whether limits of this controller can be enforced.
    pub fn has(&self, controller: Controller) -> bool {
        let device = controller != Controller::Io || self.disk.is_some();
        device && self.parents.iter().any(|(found, _)| *found == controller)
    }

    /// Why a controller cannot be used, and what would help.
    pub fn missing(&self, controller: Controller) -> Option<Missing> {
        if self.has(controller) {
            return None;
        }
        if self.parents.iter().any(|(found, _)| *found == controller) {
            return Some(Missing {
                why: "the data folder is on no disk of this machine whose IO the kernel could limit"
                    .to_owned(),
                fix: "put the data folder on a local disk with ext4 or XFS".to_owned(),
            });
        }
        let name = controller.name(self.v2);
        Some(self.why_not.clone().unwrap_or_else(|| Missing {
            why: format!("the controller `{name}` is not available"),
            fix: format!("enable the controller `{name}` (kernel command line, or delegation)"),
        }))
    }

    /// Whether the limits of disk IO of a group hold for all groups beneath it together: on v1 they do not.
    pub fn adds_up_io(&self) -> bool {
        self.v2
    }

    /// The groups of a box, made where they are missing. Only those that its limits need.
    pub fn make(&self, name: &str, limits: &Limits) -> io::Result<BoxGroup> {
        let group = self.of(name, limits);
        group.make()?;
        group.set(limits)?;
        Ok(group)
    }

    /// Whether a group can get another name: only those of the first generation can.
    pub fn can_rename(&self) -> bool {
        !self.v2
    }

    /// As [`Cgroups::make`], from groups that were made in advance under another name, with the limits `had`. What
    /// is missing of them is made.
    pub fn adopt(&self, spare: &str, had: &Limits, name: &str, limits: &Limits) -> io::Result<BoxGroup> {
        let (from, to) = (self.of(spare, limits), self.of(name, limits));
        let mut whole = had == limits;
        for ((_, from), (_, to)) in from.folders.iter().zip(&to.folders) {
            match fs::rename(from, to) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => whole = false,
                Err(error) => return Err(at(to, error)),
            }
        }
        if whole { Ok(to) } else { self.make(name, limits) }
    }

    /// Groups of this prefix in which nothing lives are removed.
    pub fn clear(&self, prefix: &str) {
        for (_, parent) in &self.parents {
            for name in ours(parent).iter().filter(|name| name.starts_with(prefix)) {
                // One that is in use refuses.
                let _ = fs::remove_dir(group_in(parent, name));
            }
        }
    }

    /// Groups with this in their name that are older, and in which nothing lives, are removed.
    pub fn clear_old(&self, mark: &str, age: Duration) {
        let is_old = |path: &Path| {
            let made = fs::metadata(path).and_then(|found| found.modified());
            made.is_ok_and(|made| made.elapsed().is_ok_and(|passed| passed > age))
        };
        for name in self.names().iter().filter(|name| name.contains(mark)) {
            for folder in
                self.parents.iter().map(|(_, parent)| group_in(parent, name)).filter(|path| is_old(path))
            {
                let _ = fs::remove_dir(folder);
            }
        }
    }

    /// Names of groups that there are. Those in the group of an account are called `account/name`; that group is
    /// named too.
    pub fn names(&self) -> BTreeSet<String> {
        let mut names: BTreeSet<String> = self.parents.iter().flat_map(|(_, parent)| ours(parent)).collect();
        let accounts: Vec<String> = names.iter().filter(|name| name.contains(ACCOUNT)).cloned().collect();
        for account in accounts {
            let inside = self.parents.iter().flat_map(|(_, parent)| folders(&group_in(parent, &account)));
            names.extend(inside.map(|name| format!("{account}/{name}")).collect::<Vec<_>>());
        }
        names
    }

    /// Removes a group in which nothing is. One with processes or groups in it stays.
    pub fn discard(&self, name: &str) {
        for folder in self.all_of(name).each() {
            let _ = fs::remove_dir(folder);
        }
    }

    /// The groups that a box with these limits has.
    pub fn of(&self, name: &str, limits: &Limits) -> BoxGroup {
        let wanted = self.parents.iter().filter(|(controller, _)| limits.needs(*controller));
        self.group(wanted.map(|(controller, parent)| (*controller, group_in(parent, name))).collect())
    }

    /// Every group that a box may have, whatever its limits.
    pub fn all_of(&self, name: &str) -> BoxGroup {
        let folders = self.parents.iter().map(|(controller, parent)| (*controller, group_in(parent, name)));
        self.group(folders.collect())
    }

    pub(super) fn group(&self, folders: Vec<(Controller, PathBuf)>) -> BoxGroup {
        BoxGroup { v2: self.v2, folders, joined: None, disk: self.disk }
    }
}

/// The name of the group of an account. `installation` tells the groups of one data folder from those of others.
pub fn account_group(installation: &str, account: &str) -> String {
    format!("{installation}{ACCOUNT}{account}")
}

/// The folder of a group. In the root of a tree its name says that it is ours.
pub(super) fn group_in(parent: &Path, name: &str) -> PathBuf {
    match parent.ends_with(OURS) {
        true => parent.join(name),
        false => parent.join(format!("{PREFIX}{name}")),
    }
}

/// Names of our groups in a folder that they are made in.
pub(super) fn ours(parent: &Path) -> Vec<String> {
    let all = folders(parent);
    match parent.ends_with(OURS) {
        true => all,
        false => all.iter().filter_map(|name| name.strip_prefix(PREFIX)).map(str::to_owned).collect(),
    }
}

/// Names of the folders in one.
pub(super) fn folders(parent: &Path) -> Vec<String> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Not every kernel that has the controller can limit bytes and operations.
fn can_throttle(group: &Path, controller: Controller, file: &str) -> bool {
    controller != Controller::Io || group.join(file).exists()
}

/// Makes our group beneath `above`, with the controllers that there are.
fn prepare_v2(above: &Path) -> io::Result<PathBuf> {
    let ours = above.join(OURS);
    match fs::create_dir(&ours) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(at(&ours, error)),
        _ => {}
    }
    // Limits hold only below groups without processes: ours may stand in the way, and others may come meanwhile.
    let mut tries = 0;
    while let Err(error) = enable(above) {
        let in_the_way = matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EOPNOTSUPP));
        if !in_the_way || tries == 5 {
            return Err(at(above, error));
        }
        step_aside(above)?;
        tries += 1;
    }
    enable(&ours).map_err(|error| at(&ours, error))?;
    Ok(ours)
}

/// All at once: one after the other, the kernel gives processor time also to a group with processes, makes it one
/// of threads by that, and then refuses memory.
pub(super) fn enable(group: &Path) -> io::Result<()> {
    let there = Controller::ALL.into_iter().filter(|controller| has(group, *controller));
    let wanted: Vec<String> = there.map(|controller| format!("+{}", controller.name(true))).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    fs::write(group.join("cgroup.subtree_control"), wanted.join(" "))?;
    match fs::read_to_string(group.join("cgroup.type")) {
        // Without memory among them it did so all the same.
        Ok(kind) if kind.trim() == "domain threaded" => Err(io::Error::from_raw_os_error(libc::EBUSY)),
        _ => Ok(()),
    }
}

/// Whether a group could give a controller to those below it.
fn has(group: &Path, controller: Controller) -> bool {
    let there = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    there.split_whitespace().any(|name| name == controller.name(true))
}

fn step_aside(group: &Path) -> io::Result<()> {
    // In a group of threads nothing can be put aside; without these it is none. They stay where boxes use them.
    let _ = fs::write(group.join("cgroup.subtree_control"), "-cpu -pids");
    let aside = group.join(ASIDE);
    match fs::create_dir(&aside) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(at(&aside, error)),
        _ => {}
    }
    for pid in fs::read_to_string(group.join("cgroup.procs"))?.lines() {
        // It may have ended.
        let _ = fs::write(aside.join("cgroup.procs"), pid);
    }
    Ok(())
}

/// Where a line of mountinfo mounts that kind of group.
fn mount_point(line: &str, kind: &str, controller: Option<Controller>) -> Option<PathBuf> {
    let (place, what) = line.split_once(" - ")?;
    let mut what = what.split(' ');
    if what.next()? != kind {
        return None;
    }
    if let Some(controller) = controller {
        let options = what.nth(1)?;
        options.split(',').find(|option| *option == controller.name(false))?;
    }
    place.split(' ').nth(4).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found() {
        let v1 = "36 25 0:31 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory";
        assert_eq!(
            mount_point(v1, "cgroup", Some(Controller::Memory)),
            Some(PathBuf::from("/sys/fs/cgroup/memory"))
        );
        assert_eq!(mount_point(v1, "cgroup", Some(Controller::Pids)), None);
        let both = "36 25 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct";
        assert!(mount_point(both, "cgroup", Some(Controller::Cpu)).is_some());
        let v2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(mount_point(v2, "cgroup2", None), Some(PathBuf::from("/sys/fs/cgroup")));
        assert_eq!(mount_point(v2, "cgroup", None), None);
    }
}
