//! How much memory this process may use, and what of it bodies in flight may take.

use seawall_core::budget::BudgetLimits;
use std::{fs, path::Path};

const MIB: u64 = 1 << 20;
/// The most that bodies take where nobody says.
const MOST: u64 = 1024 * MIB;
/// The least part of an account where nobody says.
const LEAST_ACCOUNT: u64 = 32 * MIB;

/// The sizes of the budget: what the settings say, else a quarter of the memory that the process may use, at most 1 GiB, and
/// a quarter of that for an account, at least 32 MiB.
pub fn budget(server: Option<u64>, account: Option<u64>) -> BudgetLimits {
    let server = server.unwrap_or_else(|| (allowed() / 4).clamp(LEAST_ACCOUNT, MOST));
    BudgetLimits { server, account: account.unwrap_or_else(|| (server / 4).max(LEAST_ACCOUNT)) }
}

/// The memory of the machine, or what a control group leaves of it.
fn allowed() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text)).unwrap_or(MOST);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limits(&groups, Path::new("/sys/fs/cgroup")).into_iter().fold(machine, u64::min)
}

/// `MemTotal` of /proc/meminfo, in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The limits of the groups that a process is in and of all above them, in bytes, of both generations.
fn limits(groups: &str, root: &Path) -> Vec<u64> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (base, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            all if all.split(',').any(|one| one == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let folder = base.join(path.trim_start_matches('/'));
        let above = folder.ancestors().take_while(|folder| folder.starts_with(&base));
        // `max` is no number, and no limit.
        found.extend(
            above.filter_map(|folder| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok()),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_follows_from_the_memory_and_from_the_settings() {
        let default = budget(None, None);
        assert!((LEAST_ACCOUNT..=MOST).contains(&default.server), "{default:?}");
        assert_eq!(default.account, (default.server / 4).max(LEAST_ACCOUNT));
        let small = budget(Some(64 * MIB), None);
        assert_eq!((small.server, small.account), (64 * MIB, 32 * MIB));
        assert_eq!(budget(Some(64 * MIB), Some(MIB)).account, MIB);
    }

    #[test]
    fn the_smallest_group_above_counts() {
        assert_eq!(total("MemTotal:       1024 kB\nMemFree: 1 kB\n"), Some(1 << 20));
        assert_eq!(total("nonsense"), None);
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::write(root.path().join("a/memory.max"), "1000\n").unwrap();
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        let old = root.path().join("memory/c");
        fs::create_dir_all(&old).unwrap();
        fs::write(old.join("memory.limit_in_bytes"), "500\n").unwrap();
        assert_eq!(limits("0::/a/b\n", root.path()), [1000]);
        assert_eq!(limits("3:cpu,memory:/c\n2:pids:/d\n0::/\n", root.path()), [500]);
    }
}
