//! Control epochs across servers: every server of a data folder begins above all epochs of the servers before it.

use super::Ownership;
use anyhow::{Context, Result};
use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

/// How many epochs one server has. It connects to boxes less often than that.
const OF_ONE_SERVER: u64 = 1 << 24;

/// Reserves the epochs of a new server, durably, and returns the last epoch before them.
pub fn reserve(owned: &Ownership) -> Result<u64> {
    let folder = owned.data().join("records");
    fs::DirBuilder::new().recursive(true).create(&folder).context("cannot make the folder of epochs")?;
    let path = folder.join(".epoch");
    let last = match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().unwrap_or_else(|_| {
            tracing::warn!("{} is damaged: epochs continue from the time of day", path.display());
            milliseconds()
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let next: u64 = last + OF_ONE_SERVER;
    replace(&folder, &path, &next.to_string()).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(last)
}

/// Leaves the new text or the old one, also after a loss of power.
fn replace(folder: &Path, path: &Path, text: &str) -> std::io::Result<()> {
    let beside = folder.join(".new");
    let mut file = File::options().create(true).truncate(true).write(true).mode(0o600).open(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    File::open(folder)?.sync_all()
}

/// Above any count of starts so far.
fn milliseconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_begins_above_the_one_before() {
        let data = tempfile::tempdir().unwrap();
        let owned = Ownership::try_take(data.path()).unwrap().unwrap();
        assert_eq!(reserve(&owned).unwrap(), 0);
        assert_eq!(reserve(&owned).unwrap(), OF_ONE_SERVER);
        std::fs::write(data.path().join("records/.epoch"), "nonsense").unwrap();
        let after = reserve(&owned).unwrap();
        assert!(after > 1_000_000_000_000);
        assert_eq!(reserve(&owned).unwrap(), after + OF_ONE_SERVER);
    }
}
