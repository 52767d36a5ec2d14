//! How much of the audit log one account may write in an hour.
//!
//! All accounts write to the same files, and of those the oldest go first when they are too large. So an account that makes very many
//! calls would remove the lines of the others, and those of what it did before. Beyond its share of an hour the calls of an account are
//! counted only: the first of them is written with `left_out: 1`, and when the hour is over the last with the number of all of
//! them. Calls that were refused have a share of their own, so that they do not crowd out those that did something. The
//! operator's own account has no such bound.

use super::AuditEntry;
use seawall_api::AccountId;
use std::{
    collections::HashMap,
    io,
    time::{Duration, Instant},
};

const HOUR: Duration = Duration::from_secs(3600);
/// The part of all bytes that are kept which one account may write in an hour. Alone, with calls that are done and refused, it needs ten days for all of them.
const PART: u64 = 512;
/// An account may write this much in any case.
const LEAST: u64 = 4 << 10;

/// What one account wrote in this hour.
#[derive(Debug, Default)]
struct Written {
    bytes: u64,
    /// The last call that was left out, and how many there were with it.
    left_out: Option<(AuditEntry, u64)>,
}

/// What each account wrote in this hour. The thread that writes has it alone.
#[derive(Debug)]
pub(super) struct HourlyShares {
    each: u64,
    began: Instant,
    /// By account, and whether the calls were refused.
    accounts: HashMap<(AccountId, bool), Written>,
}

impl HourlyShares {
    /// `kept` is the number of bytes that all files may have together.
    pub fn new(kept: u64, now: Instant) -> HourlyShares {
        HourlyShares { each: (kept / PART).max(LEAST), began: now, accounts: HashMap::new() }
    }

    /// Appends the line of a call to what is written next, or counts it.
    pub fn add(&mut self, entry: &AuditEntry, now: Instant, text: &mut Vec<u8>) -> io::Result<()> {
        if now.duration_since(self.began) >= HOUR {
            self.close(text)?;
            self.began = now;
        }
        let before = text.len();
        append(entry, text)?;
        if entry.account == AccountId::LOCAL || entry.by_operator {
            return Ok(());
        }
        let written = self.accounts.entry((entry.account, entry.status >= 400)).or_default();
        let bytes = (text.len() - before) as u64;
        if written.left_out.is_none() && written.bytes + bytes <= self.each {
            written.bytes += bytes;
            return Ok(());
        }
        text.truncate(before);
        if written.left_out.is_none() {
            append(&AuditEntry { left_out: Some(1), ..entry.clone() }, text)?;
            tracing::warn!(account = %entry.account, "calls of an account are left out of the audit log for an hour: there are too many");
        }
        let number = written.left_out.take().map_or(0, |(_, number)| number);
        written.left_out = Some((entry.clone(), number + 1));
        Ok(())
    }

    /// Appends what was left out, for each account in one line, and begins anew.
    pub fn close(&mut self, text: &mut Vec<u8>) -> io::Result<()> {
        for (last, number) in self.accounts.drain().filter_map(|(_, written)| written.left_out) {
            append(&AuditEntry { left_out: Some(number), ..last }, text)?;
        }
        Ok(())
    }
}

fn append(entry: &AuditEntry, text: &mut Vec<u8>) -> io::Result<()> {
    serde_json::to_writer(&mut *text, entry)?;
    text.push(b'\n');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::tests::entry;

    fn read(text: &[u8]) -> Vec<AuditEntry> {
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    #[test]
    fn k11_beyond_its_share_of_an_hour_calls_of_an_account_are_counted() {
        let (mine, other, now) = (AccountId::generate(), AccountId::generate(), Instant::now());
        let mut shares = HourlyShares::new(1 << 20, now);
        let mut text = Vec::new();
        let call = |status| AuditEntry { status, ..entry(0, mine) };
        for _ in 0..1000 {
            shares.add(&call(404), now, &mut text).unwrap();
        }
        assert!(text.len() as u64 <= LEAST + 300, "{} bytes", text.len());
        let written = read(&text);
        assert!(written.len() > 5);
        assert_eq!(written.last().unwrap().left_out, Some(1), "from here on they are counted");
        // Refusals crowd out nothing that was done.
        text.clear();
        shares.add(&call(201), now, &mut text).unwrap();
        assert_eq!(read(&text).len(), 1);
        let left_out = 1001 - written.len() as u64;
        // Others, and the operator, write on.
        text.clear();
        shares.add(&entry(1, other), now, &mut text).unwrap();
        for number in 0..100 {
            shares.add(&entry(number, AccountId::LOCAL), now, &mut text).unwrap();
        }
        assert_eq!(read(&text).len(), 101);
        // With the first line of the next hour all is told, and the account has its share again.
        text.clear();
        shares.add(&entry(7, mine), now + HOUR, &mut text).unwrap();
        let next = read(&text);
        assert_eq!((next.len(), next[0].left_out, next[0].status), (2, Some(left_out), 404));
        assert_eq!((next[1].left_out, next[1].status), (None, 7));
        text.clear();
        shares.close(&mut text).unwrap();
        assert!(text.is_empty());
    }
}
