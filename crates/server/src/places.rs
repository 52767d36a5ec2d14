//! Places for connections. Where all are taken, some make room: first those on which nothing is asked, then those
//! whose peer takes nothing of its answer; the oldest before the others.

use std::{
    collections::BTreeMap,
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};
use tokio_util::sync::CancellationToken;

/// Who takes nothing for longer than this may lose its place.
const STALLED: Duration = Duration::from_secs(5);

/// All connections, by their age.
#[derive(Debug)]
pub struct Places {
    limit: usize,
    began: Instant,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    entries: BTreeMap<u64, Arc<Entry>>,
}

#[derive(Debug, Default)]
struct Entry {
    /// Requests in flight.
    busy: AtomicUsize,
    /// Since when the peer takes nothing, in milliseconds of [`Places::now`]. 0: it does.
    stalled: AtomicU64,
    evicted: CancellationToken,
}

impl Places {
    pub fn new(limit: usize) -> Places {
        Places { limit: limit.max(1), began: Instant::now(), open: Mutex::default() }
    }

    /// Open connections, with the sockets that came of them.
    pub fn count(&self) -> usize {
        self.lock().entries.len()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Never 0.
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// A place, if need be another's. None: all are busy.
    pub fn enter(self: &Arc<Places>) -> Option<Arc<Place>> {
        let full = self.lock().entries.len() >= self.limit;
        if full && !self.evict() {
            return None;
        }
        let entry = Arc::new(Entry::default());
        let mut open = self.lock();
        let number = open.next;
        open.next += 1;
        open.entries.insert(number, entry.clone());
        count(&open);
        drop(open);
        Some(Arc::new(Place { places: self.clone(), number, entry }))
    }

    /// Ends a connection that can be spared; false where there is none.
    pub fn evict(&self) -> bool {
        let now = self.now();
        let idle = |entry: &Entry| entry.busy.load(Ordering::Acquire) == 0;
        let stalled = |entry: &Entry| {
            let since = entry.stalled.load(Ordering::Acquire);
            since > 0 && Duration::from_millis(now.saturating_sub(since)) > STALLED
        };
        let mut open = self.lock();
        let Some(number) = open.first(idle).or_else(|| open.first(stalled)) else { return false };
        if let Some(entry) = open.entries.remove(&number) {
            entry.evicted.cancel();
            ::metrics::counter!("http_connections_evicted_total").increment(1);
        }
        count(&open);
        true
    }
}

impl Open {
    fn first(&self, which: impl Fn(&Entry) -> bool) -> Option<u64> {
        self.entries.iter().find(|(_, entry)| which(entry)).map(|(number, _)| *number)
    }
}

fn count(open: &Open) {
    ::metrics::gauge!("http_connections").set(open.entries.len() as f64);
}

/// A connection's place. It lasts as long as the connection, and as a socket that came of it.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    number: u64,
    entry: Arc<Entry>,
}

impl Place {
    /// Cancelled when it has to go.
    pub fn evicted(&self) -> CancellationToken {
        self.entry.evicted.clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.places.lock();
        open.entries.remove(&self.number);
        count(&open);
    }
}

/// A request in flight on a connection. In the request's extensions, so that sockets can keep it.
#[derive(Debug)]
pub struct Busy(Arc<Place>);

impl Busy {
    pub fn new(place: Arc<Place>) -> Busy {
        place.entry.busy.fetch_add(1, Ordering::AcqRel);
        Busy(place)
    }

    /// Ends the connection, with the request that is in flight on it.
    pub fn hang_up(&self) {
        self.0.entry.evicted.cancel();
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.entry.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A connection whose peer has to take what is sent to it.
#[derive(Debug)]
pub struct Watched<I> {
    io: I,
    place: Arc<Place>,
    patience: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl<I> Watched<I> {
    pub fn new(io: I, place: Arc<Place>, patience: Duration) -> Watched<I> {
        Watched { io, place, patience, sleep: None }
    }

    /// What became of a write: an error where it waits for too long.
    fn watch<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let stalled = &self.place.entry.stalled;
        if polled.is_ready() {
            if self.sleep.take().is_some() {
                stalled.store(0, Ordering::Release);
            }
            return polled;
        }
        let patience = self.patience;
        let sleep = self.sleep.get_or_insert_with(|| {
            stalled.store(self.place.places.now(), Ordering::Release);
            Box::pin(tokio::time::sleep(patience))
        });
        sleep
            .as_mut()
            .poll(cx)
            .map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes nothing")))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Watched<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Watched<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, buf);
        self.watch(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.watch(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_flush(cx);
        self.watch(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_shutdown(cx);
        self.watch(cx, polled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[test]
    fn who_says_nothing_makes_room_for_who_does() {
        let places = Arc::new(Places::new(2));
        let (first, second) = (places.enter().unwrap(), places.enter().unwrap());
        let busy = Busy::new(first.clone());
        let third = places.enter().unwrap();
        assert!(!first.evicted().is_cancelled(), "something is asked on it");
        assert!(second.evicted().is_cancelled());
        let also_busy = Busy::new(third);
        assert!(places.enter().is_none(), "all are busy");
        drop(busy);
        let fourth = places.enter().unwrap();
        assert!(first.evicted().is_cancelled());
        drop((first, second, also_busy, fourth));
        assert!(places.lock().entries.is_empty());
    }

    #[test]
    fn a_socket_keeps_the_place_of_its_connection() {
        let places = Arc::new(Places::new(1));
        let place = places.enter().unwrap();
        let socket = Busy::new(place.clone());
        drop(place);
        assert!(places.enter().is_none());
        drop(socket);
        assert!(places.enter().is_some());
    }

    #[tokio::test]
    async fn who_takes_nothing_is_hung_up_on() {
        let places = Arc::new(Places::new(1));
        let (near, far) = tokio::io::duplex(4);
        let mut watched = Watched::new(near, places.enter().unwrap(), Duration::from_millis(50));
        watched.write_all(b"1234").await.unwrap();
        let error = watched.write_all(b"5").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(watched.place.entry.stalled.load(Ordering::Acquire) > 0);
        drop(far);
    }
}
