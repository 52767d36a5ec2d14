//! The section `[native]`. Its values are limits and permissions, so a wrong one is an error: a default in its
//! place could allow more than was meant.

use super::check_keys;
use anyhow::{Context, Result, anyhow, bail, ensure};
use seawall_api::AccountId;
use seawall_core::mounts::{Grantees, MountGrant, MountGrants, is_plain};
use seawall_providers::native::{Defaults, NativeSettings};
use std::{collections::BTreeSet, path::PathBuf};
use toml::{Table, Value};

/// Of an item of `mounts`.
const MOUNT_KEYS: [&str; 3] = ["path", "accounts", "writable"];
/// Stands for all accounts.
const ALL: &str = "*";
/// The operator's own account, by its name.
const LOCAL: &str = "local";

pub fn settings(file: &str, section: &Table) -> Result<NativeSettings> {
    let usual = Defaults::default();
    let whole = |key: &str, least: u64, usual: u64| -> Result<u64> {
        let Some(value) = section.get(key) else { return Ok(usual) };
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
        number.filter(|number| *number >= least).ok_or_else(|| {
            anyhow!("{file}: `native.{key}` is {value}, not a whole number of at least {least}")
        })
    };
    let some = |key: &str, least: u64| section.get(key).map(|_| whole(key, least, least)).transpose();
    let defaults = Defaults {
        cpus: cpus(file, section.get("cpus"), usual.cpus)?,
        memory_mb: whole("memory_mb", 16, usual.memory_mb)?,
        max_processes: whole("max_processes", 8, usual.max_processes)?,
        open_files: whole("open_files", 64, usual.open_files)?,
        disk_mb: some("disk_mb", 16)?,
        disk_io_mb_s: some("disk_io_mb_s", 1)?,
        disk_iops: some("disk_iops", 10)?,
    };
    let disk_reserve_mb = some("disk_reserve_mb", 0)?;
    Ok(NativeSettings { defaults, disk_reserve_mb, ..NativeSettings::default() })
}

fn cpus(file: &str, value: Option<&Value>, usual: f64) -> Result<f64> {
    let Some(value) = value else { return Ok(usual) };
    let number = value.as_float().or_else(|| value.as_integer().map(|number| number as f64));
    number
        .filter(|number| number.is_finite() && *number >= 0.01)
        .ok_or_else(|| anyhow!("{file}: `native.cpus` is {value}, not a number of at least 0.01"))
}

/// The folders that requests may name, and the accounts that may name them.
pub fn mounts(file: &str, section: &Table) -> Result<MountGrants> {
    let Some(value) = section.get("mounts") else { return Ok(MountGrants::default()) };
    let list =
        value.as_array().with_context(|| format!("{file}: `native.mounts` must be a list of folders"))?;
    let grants = list.iter().map(|entry| match entry {
        Value::Table(table) => from_table(file, table),
        // A name alone allows as little as it can.
        entry => {
            Ok(MountGrant { path: path(file, entry)?, accounts: only([AccountId::LOCAL]), writable: false })
        }
    });
    Ok(MountGrants::new(grants.collect::<Result<_>>()?))
}

fn from_table(file: &str, table: &Table) -> Result<MountGrant> {
    check_keys(file, "native.mounts.", table, &MOUNT_KEYS)?;
    let named =
        table.get("path").with_context(|| format!("{file}: an item of `native.mounts` has no `path`"))?;
    let writable = match table.get("writable") {
        None => false,
        Some(value) => {
            let wrong = || anyhow!("{file}: `native.mounts.writable` is {value}, not true or false");
            value.as_bool().ok_or_else(wrong)?
        }
    };
    let grantees = match table.get("accounts") {
        None => only([AccountId::LOCAL]),
        Some(value) => accounts(value).with_context(|| {
            format!(
                "{file}: `native.mounts.accounts` must be a list of account ids, \"{LOCAL}\" or \"{ALL}\""
            )
        })?,
    };
    Ok(MountGrant { path: path(file, named)?, accounts: grantees, writable })
}

fn accounts(value: &Value) -> Result<Grantees> {
    let list = value.as_array().filter(|list| !list.is_empty()).with_context(|| format!("it is {value}"))?;
    let names: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
    ensure!(names.len() == list.len(), "it is {value}");
    if names.contains(&ALL) {
        ensure!(names.len() == 1, "\"{ALL}\" is all accounts already: leave the others out");
        return Ok(Grantees::All);
    }
    let id = |name: &str| match name {
        LOCAL => Ok(AccountId::LOCAL),
        name => name.parse().with_context(|| format!("{name:?} is no id of an account")),
    };
    Ok(Grantees::Only(names.into_iter().map(id).collect::<Result<_>>()?))
}

fn only<const N: usize>(accounts: [AccountId; N]) -> Grantees {
    Grantees::Only(BTreeSet::from(accounts))
}

fn path(file: &str, value: &Value) -> Result<PathBuf> {
    let path = value.as_str().map(|path| path.trim_end_matches('/')).filter(|path| is_plain(path));
    match path {
        Some(path) => Ok(PathBuf::from(path)),
        None => bail!("{file}: `native.mounts` has {value}, not an absolute path without `.` and `..`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(NativeSettings, MountGrants)> {
        let table = toml::from_str(text).unwrap();
        Ok((settings("f", &table)?, mounts("f", &table)?))
    }

    #[test]
    fn values_are_taken_or_refused() {
        let (set, _) = parse("cpus = 1\nmemory_mb = 64\nmax_processes = 50\nopen_files = 100").unwrap();
        assert_eq!((set.defaults.cpus, set.defaults.memory_mb, set.defaults.open_files), (1.0, 64, 100));
        assert_eq!((set.defaults.disk_mb, set.disk_reserve_mb), (None, None));
        let (set, _) =
            parse("disk_mb = 512\ndisk_io_mb_s = 50\ndisk_iops = 900\ndisk_reserve_mb = 0").unwrap();
        assert_eq!((set.defaults.disk_mb, set.disk_reserve_mb), (Some(512), Some(0)));
        assert_eq!((set.defaults.disk_io_mb_s, set.defaults.disk_iops), (Some(50), Some(900)));
        for wrong in [
            "cpus = 0",
            "cpus = \"many\"",
            "memory_mb = 1",
            "max_processes = -1",
            "disk_mb = 1",
            "disk_io_mb_s = 0",
            "disk_iops = \"all\"",
            "disk_reserve_mb = -1",
            "mounts = \"/a\"",
            "mounts = [\"a\"]",
            "mounts = [\"/\"]",
            "mounts = [\"/a/../b\"]",
            "mounts = [1]",
            "mounts = [{ accounts = [\"*\"] }]",
            "mounts = [{ path = \"/a\", writeable = true }]",
            "mounts = [{ path = \"/a\", writable = \"yes\" }]",
            "mounts = [{ path = \"/a\", accounts = \"*\" }]",
            "mounts = [{ path = \"/a\", accounts = [] }]",
            "mounts = [{ path = \"/a\", accounts = [1] }]",
            "mounts = [{ path = \"/a\", accounts = [\"everybody\"] }]",
            "mounts = [{ path = \"/a\", accounts = [\"*\", \"local\"] }]",
        ] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.contains("native."), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_mount_says_whose_it_is_and_whether_it_may_be_written() {
        let other = AccountId::generate();
        let text = format!(
            "mounts = [\"/a\", {{ path = \"/b/\" }}, {{ path = \"/c\", accounts = [\"*\"], writable = true }}, \
             {{ path = \"/d\", accounts = [\"local\", \"{other}\"] }}]"
        );
        let (_, grants) = parse(&text).unwrap();
        let grant = |path: &str, accounts, writable| MountGrant { path: path.into(), accounts, writable };
        let wanted = [
            grant("/a", only([AccountId::LOCAL]), false),
            grant("/b", only([AccountId::LOCAL]), false),
            grant("/c", Grantees::All, true),
            grant("/d", only([AccountId::LOCAL, other]), false),
        ];
        assert_eq!(grants.iter().cloned().collect::<Vec<_>>(), wanted);
    }
}
