//! What the last scan saw of each path, so that what did not change is not read again.

use crate::tree::{Mtime, Node};
use rustix::fs::Stat;
use seawall_api::files::FileName;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What tells that a file is still the one that was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    pub inode: u64,
    pub size: u64,
    pub mode: u32,
    pub mtime: Mtime,
    pub ctime: Mtime,
}

impl Stamp {
    pub fn of(stat: &Stat) -> Stamp {
        let time = |secs: i64, nanos: u64| Mtime { secs, nanos: u32::try_from(nanos).unwrap_or(0) };
        Stamp {
            inode: stat.st_ino,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mode: stat.st_mode,
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
            ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    /// A rename changes the ctime, and nothing else.
    pub fn same_but_moved(&self, other: &Stamp) -> bool {
        Stamp { ctime: self.ctime, ..*other } == *self
    }
}

#[derive(Debug, Clone)]
pub struct Seen {
    pub stamp: Stamp,
    pub node: Node,
    /// It changed so lately that another change might not show in its times.
    pub racy: bool,
}

/// Sorted by path.
#[derive(Debug, Clone, Default)]
pub struct Index(pub Vec<(FileName, Seen)>);

impl Index {
    pub fn get(&self, path: &[u8]) -> Option<&Seen> {
        let at = self.0.binary_search_by(|(own, _)| own.as_bytes().cmp(path)).ok()?;
        Some(&self.0[at].1)
    }

    /// Changes single entries; for the few that a sync touches.
    pub fn update(&mut self, mut changes: Vec<(FileName, Option<Seen>)>) {
        if changes.is_empty() {
            return;
        }
        // The last word on a path counts.
        changes.reverse();
        changes.sort_by(|a, b| a.0.cmp(&b.0));
        changes.dedup_by(|later, first| later.0 == first.0);
        let mut merged = Vec::with_capacity(self.0.len() + changes.len());
        let mut changes = changes.into_iter().peekable();
        for (path, seen) in self.0.drain(..) {
            while let Some((new, entry)) = changes.next_if(|(new, _)| *new < path) {
                merged.extend(entry.map(|entry| (new, entry)));
            }
            match changes.next_if(|(new, _)| *new == path) {
                Some((_, entry)) => merged.extend(entry.map(|entry| (path, entry))),
                None => merged.push((path, seen)),
            }
        }
        merged.extend(changes.filter_map(|(path, entry)| Some((path, entry?))));
        self.0 = merged;
    }
}

/// How finely the kernel tells times apart: its tick, and what a plain file system can store.
const TICK: Duration = Duration::from_millis(20);
const WHOLE_SECONDS: Duration = Duration::from_secs(2);

/// Whether a file with this time, looked at now, could change again without a newer time. As git has it.
pub fn is_racy(time: Mtime, looked_at: SystemTime) -> bool {
    let grain = if time.nanos == 0 { WHOLE_SECONDS } else { TICK };
    let Ok(since) = (looked_at.checked_sub(grain).unwrap_or(UNIX_EPOCH)).duration_since(UNIX_EPOCH) else {
        return true;
    };
    let safe = Mtime { secs: since.as_secs() as i64, nanos: since.subsec_nanos() };
    time >= safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_changed_just_now_may_change_unseen() {
        let now = UNIX_EPOCH + Duration::from_millis(100_500);
        let at = |secs: i64, millis: u32| Mtime { secs, nanos: millis * 1_000_000 };
        assert!(is_racy(at(100, 495), now));
        assert!(!is_racy(at(100, 470), now));
        assert!(is_racy(at(99, 0), now), "whole seconds say little");
        assert!(!is_racy(at(97, 0), now));
        assert!(is_racy(at(500, 1), now), "the clock was set back");
    }

    #[test]
    fn the_last_change_counts() {
        let seen = |inode| Seen {
            stamp: Stamp { inode, size: 0, mode: 0, mtime: at(), ctime: at() },
            node: Node::Dir { mode: None, mtime: at() },
            racy: false,
        };
        fn at() -> Mtime {
            Mtime::default()
        }
        let name = |text: &str| FileName::from(text);
        let mut index = Index(vec![(name("b"), seen(1)), (name("d"), seen(2))]);
        index.update(vec![
            (name("a"), Some(seen(3))),
            (name("b"), Some(seen(4))),
            (name("b"), None),
            (name("c"), None),
            (name("e"), Some(seen(5))),
        ]);
        let left: Vec<_> = index.0.iter().map(|(path, seen)| (path.to_string(), seen.stamp.inode)).collect();
        assert_eq!(left, [("a".into(), 3), ("d".into(), 2), ("e".into(), 5)]);
    }
}
