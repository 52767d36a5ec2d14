//! The section `[accounts]`: the limits of every account but `local`, unless its own settings say otherwise. Its values
//! are limits, so a wrong one is an error: a default in its place could allow more than was meant.

use super::check_keys;
use anyhow::{Result, anyhow};
use seawall_core::accounts::{AccountLimits, Limit, Machine};
use std::path::Path;
use toml::{Table, Value};

const UNLIMITED_DISK: &str = "allow_unlimited_disk";

#[derive(Debug, Clone, PartialEq, Default)]
pub struct AccountDefaults {
    /// What the file names. `None` for a limit means that it has no bound.
    limits: Vec<(Limit, Option<u64>)>,
    /// Whether accounts other than `local` may have volumes that nothing limits.
    pub allow_unlimited_disk: bool,
}

impl AccountDefaults {
    /// The defaults that follow from the machine, with what the file names in their place.
    pub fn limits(&self, machine: &Machine) -> AccountLimits {
        let mut limits = AccountLimits::for_machine(machine);
        for (limit, value) in &self.limits {
            limits.set(*limit, *value);
        }
        limits
    }
}

pub fn settings(file: &str, section: &Table) -> Result<AccountDefaults> {
    let known: Vec<&str> = Limit::ALL.map(Limit::name).into_iter().chain([UNLIMITED_DISK]).collect();
    check_keys(file, "accounts.", section, &known)?;
    let mut defaults = AccountDefaults::default();
    for (key, value) in section {
        match Limit::from_name(key) {
            Some(limit) => defaults.limits.push((limit, bound(file, limit, value)?)),
            None => {
                let flag = value.as_bool();
                defaults.allow_unlimited_disk =
                    flag.ok_or_else(|| anyhow!("{file}: `accounts.{key}` must be true or false"))?;
            }
        }
    }
    Ok(defaults)
}

fn bound(file: &str, limit: Limit, value: &Value) -> Result<Option<u64>> {
    if value.as_str() == Some("unlimited") {
        return Ok(None);
    }
    let number = value.as_float().or_else(|| value.as_integer().map(|number| number as f64));
    let number = number.and_then(|number| limit.parse(number));
    number.map(Some).ok_or_else(|| {
        anyhow!("{file}: `accounts.{limit}` is {value}, not a number from 0 on or \"unlimited\"")
    })
}

/// What this machine has, as far as it can be told.
pub fn machine(data: &Path) -> Machine {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.trim().trim_end_matches(" kB").trim().parse::<u64>().ok());
    let disk = rustix::fs::statvfs(data).map(|found| (found.f_blocks * found.f_frsize) >> 20);
    Machine {
        cpus: std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64),
        memory_mb: kib.unwrap_or(1 << 20) >> 10,
        disk_mb: disk.unwrap_or(1024),
        open_files: rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<AccountDefaults> {
        settings("f", &toml::from_str(text).unwrap())
    }

    #[test]
    fn k9_values_are_taken_or_refused() {
        let machine = Machine { cpus: 2.0, memory_mb: 4096, disk_mb: 100_000, open_files: 1024 };
        let set = parse("sandboxes = 5\ncpus = 1.5\nmemory_mb = \"unlimited\"\nallow_unlimited_disk = true")
            .unwrap();
        let limits = set.limits(&machine);
        assert_eq!(limits.get(Limit::Sandboxes), Some(5));
        assert_eq!(limits.get(Limit::Cpus), Some(1500));
        assert_eq!(limits.get(Limit::MemoryMb), None);
        assert_eq!(limits.get(Limit::RunningSandboxes), Some(500));
        assert!(set.allow_unlimited_disk);
        for wrong in ["sandboxes = -1", "sandboxes = \"many\"", "sandboxs = 5", "allow_unlimited_disk = 1"] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.contains("accounts."), "{wrong}: {error}");
        }
    }
}
