//! Our stdin as a stream of chunks.

use bytes::Bytes;
use std::io::{self, IsTerminal, Read};
use tokio::sync::mpsc;

const CHUNK: usize = 64 * 1024;

pub fn is_terminal() -> bool {
    io::stdin().is_terminal()
}

/// Reads on a thread of its own: a read of a terminal cannot be cancelled, and must not keep the
/// program from ending. The channel is short, so a slow taker slows the reading.
pub fn chunks() -> mpsc::Receiver<io::Result<Bytes>> {
    let (sender, receiver) = mpsc::channel(4);
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut buffer = vec![0; CHUNK];
        loop {
            let chunk = match stdin.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => Ok(Bytes::copy_from_slice(&buffer[..count])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let failed = chunk.is_err();
            if sender.blocking_send(chunk).is_err() || failed {
                return;
            }
        }
    });
    receiver
}

/// All of stdin, as text.
pub async fn text() -> anyhow::Result<String> {
    let mut chunks = chunks();
    let mut all = Vec::new();
    while let Some(chunk) = chunks.recv().await {
        all.extend_from_slice(&chunk?);
    }
    let no_text = |error| anyhow::Error::new(error).context("what stdin has is no text: it must be UTF-8");
    String::from_utf8(all).map_err(no_text)
}
