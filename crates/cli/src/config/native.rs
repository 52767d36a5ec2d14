//! The section `[native]`. Its values are limits and permissions, so a wrong one is an error: a default in its
//! place could allow more than was meant.

use anyhow::{Context, Result, anyhow, bail};
use seawall_providers::native::{Defaults, Mounts, NativeSettings};
use std::path::PathBuf;
use toml::{Table, Value};

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
    Ok(NativeSettings { defaults, mounts: mounts(file, section.get("mounts"))?, disk_reserve_mb })
}

fn cpus(file: &str, value: Option<&Value>, usual: f64) -> Result<f64> {
    let Some(value) = value else { return Ok(usual) };
    let number = value.as_float().or_else(|| value.as_integer().map(|number| number as f64));
    number
        .filter(|number| number.is_finite() && *number >= 0.01)
        .ok_or_else(|| anyhow!("{file}: `native.cpus` is {value}, not a number of at least 0.01"))
}

fn mounts(file: &str, value: Option<&Value>) -> Result<Mounts> {
    let Some(value) = value else { return Ok(Mounts::new()) };
    let list =
        value.as_array().with_context(|| format!("{file}: `native.mounts` must be a list of folders"))?;
    let mut mounts = Mounts::new();
    for entry in list {
        let path = entry.as_str().map(PathBuf::from).filter(|path| path.is_absolute());
        let Some(path) = path else { bail!("{file}: `native.mounts` has {entry}, not an absolute path") };
        // As it really is: what is asked for is compared with it. One that is missing allows nothing.
        mounts.push(path.canonicalize().unwrap_or(path));
    }
    Ok(mounts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<NativeSettings> {
        settings("f", &toml::from_str(text).unwrap())
    }

    #[test]
    fn values_are_taken_or_refused() {
        let set =
            parse("cpus = 1\nmemory_mb = 64\nmax_processes = 50\nopen_files = 100\nmounts = [\"/nowhere\"]");
        let set = set.unwrap();
        assert_eq!((set.defaults.cpus, set.defaults.memory_mb, set.defaults.open_files), (1.0, 64, 100));
        assert_eq!(set.mounts, [PathBuf::from("/nowhere")]);
        assert_eq!((set.defaults.disk_mb, set.disk_reserve_mb), (None, None));
        let set = parse("disk_mb = 512\ndisk_io_mb_s = 50\ndisk_iops = 900\ndisk_reserve_mb = 0").unwrap();
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
        ] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.contains("native."), "{wrong}: {error}");
        }
    }
}
