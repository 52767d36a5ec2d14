//! What an account may have open at the same time: streams, waiters, previews.
//!
//! Each takes descriptors, and descriptors are the server's: an account has a share of them, so that others can go on.

use crate::{error::ApiResult, listen, options::Options};
use seawall_api::{AccountId, account::LimitUse};
use seawall_core::Error;
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What a connection holds of a request's head.
const HEAD: u64 = listen::BUFFER as u64;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Streams of events, terminals and wires.
    Streams,
    /// Requests that wait for a turn to end (`?wait=`).
    Waiters,
    /// Requests and sockets to ports of sandboxes.
    Previews,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Streams => "streams",
            Kind::Waiters => "waiters",
            Kind::Previews => "previews",
        }
    }
}

/// How many of each kind an account may have open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InFlightLimits {
    pub streams: u64,
    pub waiters: u64,
    pub previews: u64,
}

impl InFlightLimits {
    pub const NONE: InFlightLimits =
        InFlightLimits { streams: u64::MAX, waiters: u64::MAX, previews: u64::MAX };

    /// The default: a sixteenth of the descriptors that the process may have open, for each kind.
    pub fn for_descriptors(descriptors: u64) -> InFlightLimits {
        let each = |most: u64| (descriptors / 16).clamp(8, most);
        InFlightLimits { streams: each(1024), waiters: each(256), previews: each(1024) }
    }

    fn of(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Streams => self.streams,
            Kind::Waiters => self.waiters,
            Kind::Previews => self.previews,
        }
    }
}

/// How many descriptors this process may have open.
pub fn descriptors() -> u64 {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Connections get half of the descriptors, and no more than have room for a head each in as much memory as bodies have;
/// requests of one account get a quarter of the connections: the rest is for sandboxes and for others.
pub fn bound(options: &mut Options, descriptors: u64, memory: u64) {
    let connections = (descriptors / 2).min(memory / HEAD);
    let connections = usize::try_from(connections).unwrap_or(usize::MAX).max(8);
    options.connections = options.connections.min(connections);
    if options.concurrency > 0 {
        options.concurrency = options.concurrency.min((connections / 4).max(4));
    }
}

/// All that is open, by account. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Counts(Arc<Mutex<HashMap<(AccountId, Kind), u64>>>);

impl Counts {
    fn lock(&self) -> MutexGuard<'_, HashMap<(AccountId, Kind), u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an account has open of each kind, and may have.
    pub fn open_now(&self, account: AccountId, limits: &InFlightLimits) -> Vec<LimitUse> {
        let told = |kind: Kind| LimitUse {
            name: kind.name().to_owned(),
            value: Some(limits.of(kind)).filter(|most| *most < u64::MAX).map(|most| most as f64),
            used: Some(self.used(account, kind) as f64),
        };
        [Kind::Streams, Kind::Waiters, Kind::Previews].map(told).into()
    }

    fn used(&self, account: AccountId, kind: Kind) -> u64 {
        self.lock().get(&(account, kind)).copied().unwrap_or(0)
    }

    /// One more. 429 `limit_reached` where the account has as many as it may.
    pub fn enter(&self, account: AccountId, kind: Kind, limits: &InFlightLimits) -> ApiResult<Ticket> {
        let mut counts = self.lock();
        let used = counts.get(&(account, kind)).copied().unwrap_or(0);
        let most = limits.of(kind);
        if used >= most {
            return Err(
                Error::limit_reached(kind.name(), most, used, "close some, or wait until some end").into()
            );
        }
        counts.insert((account, kind), used + 1);
        drop(counts);
        Ok(Ticket { counts: self.clone(), of: (account, kind) })
    }
}

/// One that is open, until this is dropped.
pub struct Ticket {
    counts: Counts,
    of: (AccountId, Kind),
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ticket").field(&self.of).finish()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        match counts.get_mut(&self.of) {
            Some(used) if *used > 1 => *used -= 1,
            _ => drop(counts.remove(&self.of)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k5_each_account_has_its_own_count_of_each_kind() {
        let (counts, limits) = (Counts::default(), InFlightLimits { streams: 2, waiters: 0, previews: 1 });
        let (mine, theirs) = (AccountId::LOCAL, AccountId::generate());
        let open = [(); 2].map(|()| counts.enter(mine, Kind::Streams, &limits).unwrap());
        let refused = counts.enter(mine, Kind::Streams, &limits).unwrap_err();
        assert_eq!((refused.status().as_u16(), refused.code()), (429, "limit_reached"));
        assert_eq!(counts.enter(mine, Kind::Waiters, &limits).unwrap_err().status().as_u16(), 429);
        assert!(counts.enter(theirs, Kind::Streams, &limits).is_ok());
        assert!(counts.enter(mine, Kind::Previews, &limits).is_ok());
        assert_eq!(counts.used(mine, Kind::Streams), 2);
        drop(open);
        assert_eq!(counts.used(mine, Kind::Streams), 0);
        assert!(counts.lock().is_empty(), "what is closed is forgotten");
    }

    #[test]
    fn k5_with_few_descriptors_there_are_few_streams() {
        let few = InFlightLimits::for_descriptors(512);
        assert_eq!((few.streams, few.waiters, few.previews), (32, 32, 32));
        let many = InFlightLimits::for_descriptors(1 << 20);
        assert_eq!((many.streams, many.waiters, many.previews), (1024, 256, 1024));
        let mut options = Options::default();
        bound(&mut options, 512, 1 << 30);
        assert_eq!((options.connections, options.concurrency), (256, 64));
        let mut options = Options { concurrency: 0, ..Options::default() };
        bound(&mut options, 1 << 20, 1 << 30);
        assert_eq!((options.connections, options.concurrency), (Options::default().connections, 0));
        bound(&mut options, 1 << 20, 64 << 20);
        assert_eq!(options.connections, 1024);
    }
}
