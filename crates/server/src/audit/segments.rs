//! The files of the audit: the one that is written to, and those that were put aside, as `audit.log.20261116T120000.123456Z`.
//!
//! A file is put aside when it has its share of all the bytes that are kept, or when its first line is a day old. Of those put
//! aside the oldest go first: when they are too old, and when all together are too large.

use super::AuditEntry;
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use seawall_core::{Error, Result};
use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// A file is put aside when its first line is so old.
const SPAN: SignedDuration = SignedDuration::from_hours(24);
/// Of all that is kept, a file has at most this part, and at most so many bytes.
const PARTS: u64 = 16;
const MOST: u64 = 64 << 20;
/// Of the first line of a file.
const LONGEST_LINE: u64 = 64 << 10;
const NAMED: &str = "%Y%m%dT%H%M%S.%6fZ";

/// How much of the audit is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeepAudit {
    /// `None`: however old.
    pub age: Option<Duration>,
    /// Of all files together.
    pub bytes: u64,
}

impl Default for KeepAudit {
    fn default() -> KeepAudit {
        KeepAudit { age: Some(Duration::from_secs(90 * 86_400)), bytes: 1 << 30 }
    }
}

/// Puts the audit file aside where it is due, and removes what is kept long enough.
pub async fn tidy(path: PathBuf, keep: KeepAudit) -> Result<()> {
    let segments = Segments { path, keep };
    let done = tokio::task::spawn_blocking(move || segments.tidy(Timestamp::now())).await;
    let done = done.map_err(io::Error::other).flatten();
    done.map_err(|error| Error::internal("the audit file could not be put aside").with_source(error))
}

#[derive(Debug)]
pub(super) struct Segments {
    pub path: PathBuf,
    pub keep: KeepAudit,
}

impl Segments {
    /// Whether a file of this size is put aside before the next line.
    pub fn is_full(&self, bytes: u64) -> bool {
        bytes >= self.share()
    }

    pub fn tidy(&self, now: Timestamp) -> io::Result<()> {
        let size = match fs::metadata(&self.path) {
            Ok(found) => found.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        if size > 0 && (self.is_full(size) || self.is_old(now)) {
            fs::rename(&self.path, self.aside(now))?;
        }
        self.prune()
    }

    fn is_old(&self, now: Timestamp) -> bool {
        first_time(&self.path).is_some_and(|first| now.duration_since(first) >= SPAN)
    }

    /// A name that sorts by time. Of two at once the second gets the next microsecond.
    fn aside(&self, now: Timestamp) -> PathBuf {
        let name = |time: Timestamp| {
            let mut name = self.path.as_os_str().to_owned();
            name.push(format!(".{}", time.to_zoned(TimeZone::UTC).strftime(NAMED)));
            PathBuf::from(name)
        };
        let times = (0..1_000_000).map(|micros| now + SignedDuration::from_micros(micros));
        times.map(name).find(|path| !path.exists()).unwrap_or_else(|| name(now))
    }

    fn prune(&self) -> io::Result<()> {
        let mut left = self.keep.bytes;
        for (number, path) in self.newest_first()?.into_iter().enumerate() {
            let found = match fs::metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => found?,
            };
            // There is room for one more file that is full.
            let room = left.checked_sub(found.len()).filter(|left| *left >= self.share());
            let is_current = number == 0 && path == self.path;
            if is_current || (room.is_some() && !self.is_over(found.modified()?)) {
                left = left.saturating_sub(found.len());
                continue;
            }
            // All that are older go too.
            left = 0;
            tracing::info!(path = %path.display(), "a part of the audit is kept no longer");
            fs::remove_file(&path)?;
        }
        Ok(())
    }

    fn share(&self) -> u64 {
        (self.keep.bytes / PARTS).clamp(1, MOST)
    }

    /// By the last line, which is what changed the file last.
    fn is_over(&self, written: SystemTime) -> bool {
        let age = SystemTime::now().duration_since(written).unwrap_or_default();
        self.keep.age.is_some_and(|most| age > most)
    }

    /// The one that is written to, and those that were put aside.
    pub fn newest_first(&self) -> io::Result<Vec<PathBuf>> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let Some(name) = self.path.file_name().and_then(|name| name.to_str()) else {
            return Ok(vec![self.path.clone()]);
        };
        let is_aside = |other: &str| {
            let time = other.strip_prefix(name).and_then(|rest| rest.strip_prefix('.'));
            time.is_some_and(|time| jiff::fmt::strtime::parse(NAMED, time).is_ok())
        };
        let mut aside = Vec::new();
        for entry in fs::read_dir(folder.unwrap_or(Path::new(".")))? {
            let entry = entry?;
            if entry.file_name().to_str().is_some_and(is_aside) {
                aside.push(entry.path());
            }
        }
        aside.sort_by(|a, b| b.cmp(a));
        Ok(std::iter::once(self.path.clone()).chain(aside).collect())
    }
}

/// None where the first line is no entry.
fn first_time(path: &Path) -> Option<Timestamp> {
    let mut line = Vec::new();
    BufReader::new(File::open(path).ok()?).take(LONGEST_LINE).read_until(b'\n', &mut line).ok()?;
    serde_json::from_slice::<AuditEntry>(&line).ok().map(|entry| entry.time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_api::{AccountId, KeyId};

    fn line(time: Timestamp) -> Vec<u8> {
        let entry = AuditEntry {
            time,
            request_id: "r".to_owned(),
            account: AccountId::LOCAL,
            key: Some(KeyId::generate()),
            peer: None,
            by_operator: false,
            method: "POST".to_owned(),
            route: "/sandboxes".to_owned(),
            path: "/sandboxes".to_owned(),
            status: 201,
            remote: None,
            left_out: None,
        };
        let mut line = serde_json::to_vec(&entry).unwrap();
        line.push(b'\n');
        line
    }

    fn names(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn k11_the_audit_is_put_aside_by_the_day_and_goes_with_its_age() {
        let folder = tempfile::tempdir().unwrap();
        let keep = KeepAudit { age: Some(Duration::from_secs(90 * 86_400)), bytes: 1 << 30 };
        let segments = Segments { path: folder.path().join("audit.log"), keep };
        // What is another's stays, and a file that is not there is no error.
        let beside = folder.path().join("audit.log.old");
        fs::write(&beside, "x").unwrap();
        let now = Timestamp::now();
        segments.tidy(now).unwrap();
        for hours in [30, 20, 1] {
            fs::write(&segments.path, line(now - SignedDuration::from_hours(hours))).unwrap();
            segments.tidy(now).unwrap();
        }
        // The first was a day old, the others were not.
        let found = segments.newest_first().unwrap();
        assert_eq!((found.len(), names(folder.path())), (2, 3), "{found:?}");
        let days = |days: u64| SystemTime::now() - Duration::from_secs(days * 86_400);
        File::options().write(true).open(&found[1]).unwrap().set_modified(days(89)).unwrap();
        segments.tidy(now).unwrap();
        assert_eq!(names(folder.path()), 3);
        File::options().write(true).open(&found[1]).unwrap().set_modified(days(91)).unwrap();
        segments.tidy(now).unwrap();
        assert!(!found[1].exists() && segments.path.exists() && beside.exists());
    }

    #[test]
    fn names_sort_by_time_and_none_is_taken_twice() {
        let folder = tempfile::tempdir().unwrap();
        let segments = Segments { path: folder.path().join("audit.log"), keep: KeepAudit::default() };
        let now = Timestamp::now();
        for time in [now, now, now - SignedDuration::from_hours(1), now + SignedDuration::from_hours(1)] {
            fs::write(segments.aside(time), "x").unwrap();
        }
        let found = segments.newest_first().unwrap();
        assert_eq!(found.len(), 5);
        assert!(found[1..].windows(2).all(|pair| pair[0] > pair[1]), "{found:?}");
    }
}
