//! Fewer and larger turns at the socket: small writes wait for the end of the driver's turn, and reads
//! take what is there.
//!
//! Yamux writes the head of a frame and its body apart and flushes after each frame. Left alone, each of
//! these wakes the other side.

use crate::Duplex;
use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What is collected before it is written. Larger pieces go out at once, with what was collected.
const COLLECT: usize = 16 << 10;
/// What is read at once where less was asked for.
const AHEAD: usize = 8 << 10;

/// Says when the driver's turn is over.
#[derive(Clone, Default)]
pub struct Turn(Arc<State>);

#[derive(Default)]
struct State {
    over: AtomicBool,
    held_back: AtomicBool,
}

impl Turn {
    /// From now on small writes are held back.
    pub fn begin(&self) {
        self.0.over.store(false, Ordering::Relaxed);
    }

    /// From now on a flush writes. True when one was put off.
    pub fn end(&self) -> bool {
        self.0.over.store(true, Ordering::Relaxed);
        self.0.held_back.swap(false, Ordering::Relaxed)
    }
}

pub struct Coalesced<T> {
    io: T,
    turn: Turn,
    collected: Vec<u8>,
    /// What of `collected` was written.
    written: usize,
    ahead: Vec<u8>,
    /// What of `ahead` was given out.
    taken: usize,
}

impl<T: Duplex> Coalesced<T> {
    pub fn new(io: T, turn: Turn) -> Self {
        Coalesced { io, turn, collected: Vec::new(), written: 0, ahead: Vec::new(), taken: 0 }
    }

    /// Writes what was collected, then `more`, as far as the socket takes it. Ready with how much of `more`
    /// went out: none only where it is empty.
    fn poll_write_out(&mut self, cx: &mut Context<'_>, more: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let rest = &self.collected[self.written..];
            if rest.is_empty() && more.is_empty() {
                break;
            }
            let parts = [IoSlice::new(rest), IoSlice::new(more)];
            let parts = if rest.is_empty() { &parts[1..] } else { &parts[..] };
            let n = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, parts))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_collected = n.min(rest.len());
            self.written += of_collected;
            if n > of_collected {
                self.forget();
                return Poll::Ready(Ok(n - of_collected));
            }
        }
        self.forget();
        Poll::Ready(Ok(0))
    }

    fn forget(&mut self) {
        self.collected.clear();
        self.written = 0;
    }
}

impl<T: Duplex> AsyncRead for Coalesced<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.taken == this.ahead.len() {
            if buf.remaining() >= AHEAD {
                return Pin::new(&mut this.io).poll_read(cx, buf);
            }
            this.taken = 0;
            this.ahead.resize(AHEAD, 0);
            let mut room = ReadBuf::new(&mut this.ahead);
            let read = Pin::new(&mut this.io).poll_read(cx, &mut room);
            let n = room.filled().len();
            this.ahead.truncate(n);
            ready!(read)?;
        }
        let n = buf.remaining().min(this.ahead.len() - this.taken);
        buf.put_slice(&this.ahead[this.taken..this.taken + n]);
        this.taken += n;
        Poll::Ready(Ok(()))
    }
}

impl<T: Duplex> AsyncWrite for Coalesced<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.collected.len() + buf.len() > COLLECT {
            return self.poll_write_out(cx, buf);
        }
        self.collected.extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.collected.is_empty() && !self.turn.0.over.load(Ordering::Relaxed) {
            // The driver flushes again at the end of its turn.
            self.turn.0.held_back.store(true, Ordering::Relaxed);
            return Poll::Pending;
        }
        ready!(self.poll_write_out(cx, &[]))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_out(cx, &[]))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::poll_fn;
    use std::collections::VecDeque;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Counts writes, and takes only so much of each.
    #[derive(Default)]
    struct Counting {
        written: Vec<Vec<u8>>,
        at_most: usize,
        to_read: VecDeque<Vec<u8>>,
    }

    impl AsyncRead for Counting {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if let Some(next) = self.to_read.pop_front() {
                buf.put_slice(&next);
            }
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Counting {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            let n = buf.len().min(self.at_most);
            self.written.push(buf[..n].to_vec());
            Poll::Ready(Ok(n))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn coalesced(at_most: usize) -> (Coalesced<Counting>, Turn) {
        let turn = Turn::default();
        (Coalesced::new(Counting { at_most, ..Counting::default() }, turn.clone()), turn)
    }

    #[tokio::test]
    async fn small_writes_of_a_turn_go_out_together() {
        let (mut io, turn) = coalesced(usize::MAX);
        turn.begin();
        for piece in [&b"head"[..], b"body", b"head"] {
            io.write_all(piece).await.unwrap();
            let flushed = poll_fn(|cx| Poll::Ready(Pin::new(&mut io).poll_flush(cx).is_ready())).await;
            assert!(!flushed, "a flush within the turn is put off");
        }
        assert!(turn.end());
        io.flush().await.unwrap();
        assert_eq!(io.io.written, [b"headbodyhead".to_vec()]);
        assert!(!turn.end(), "nothing is held back any more");
    }

    #[tokio::test]
    async fn every_byte_goes_out_once_and_in_order_however_little_is_taken() {
        for at_most in [1, 7, 4096, 100_000] {
            let (mut io, turn) = coalesced(at_most);
            let mut wanted = Vec::new();
            for round in 0..40usize {
                turn.begin();
                let piece = vec![round as u8; [3, 9000, 20_000, 0, 16_384][round % 5]];
                io.write_all(&piece).await.unwrap();
                wanted.extend_from_slice(&piece);
                turn.end();
                if round % 3 == 0 {
                    io.flush().await.unwrap();
                }
            }
            io.shutdown().await.unwrap();
            assert_eq!(io.io.written.concat(), wanted);
        }
    }

    #[tokio::test]
    async fn reads_take_what_is_there_and_give_it_out_in_order() {
        let (mut io, _) = coalesced(1);
        io.io.to_read = [b"abcdef".to_vec(), b"gh".to_vec()].into();
        let mut two = [0; 2];
        let mut all = Vec::new();
        for _ in 0..4 {
            io.read_exact(&mut two).await.unwrap();
            all.extend_from_slice(&two);
        }
        assert_eq!(all, b"abcdefgh");
        assert_eq!(io.read(&mut two).await.unwrap(), 0);
    }
}
