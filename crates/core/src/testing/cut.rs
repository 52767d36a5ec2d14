//! A connection that dies after a number of bytes, as one does whose other end is killed.

use seawall_wire::Duplex;
use std::{
    io,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(super) struct CutAfter {
    /// None once cut: dropping it is how the other end learns.
    inner: Option<Box<dyn Duplex>>,
    left: usize,
    /// A reader that waits when a write spends the last byte must hear of the cut too.
    reader: Option<Waker>,
}

impl CutAfter {
    pub(super) fn new(inner: Box<dyn Duplex>, bytes: usize) -> Self {
        CutAfter { inner: Some(inner), left: bytes, reader: None }
    }

    fn open(&mut self) -> io::Result<Pin<&mut Box<dyn Duplex>>> {
        match &mut self.inner {
            Some(inner) if self.left > 0 => Ok(Pin::new(inner)),
            _ => Err(io::Error::new(io::ErrorKind::ConnectionReset, "cut by a test")),
        }
    }

    fn spend(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
        if self.left == 0 {
            self.inner = None;
            if let Some(reader) = self.reader.take() {
                reader.wake();
            }
        }
    }
}

impl AsyncRead for CutAfter {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = this.open()?.poll_read(cx, buf);
        if polled.is_pending() {
            this.reader = Some(cx.waker().clone());
        }
        ready!(polled)?;
        let read = (buf.filled().len() - before).min(this.left);
        buf.set_filled(before + read);
        this.spend(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CutAfter {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let most = buf.len().min(this.left);
        let written = ready!(this.open()?.poll_write(cx, &buf[..most]))?;
        this.spend(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().open()?.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut().open() {
            Ok(inner) => inner.poll_shutdown(cx),
            Err(_) => Poll::Ready(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn it_dies_at_the_very_byte_for_both_ends() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut cut = CutAfter::new(Box::new(near), 5);
        cut.write_all(b"abc").await.unwrap();
        far.write_all(b"defg").await.unwrap();
        let mut buf = [0; 8];
        assert_eq!(cut.read(&mut buf).await.unwrap(), 2);
        assert!(cut.read(&mut buf).await.is_err());
        assert!(cut.write(b"x").await.is_err());
        assert_eq!(far.read(&mut buf).await.unwrap(), 3);
        assert_eq!(far.read(&mut buf).await.unwrap(), 0);
    }
}
