//! Large bodies in parts. The object appears when all of it is there; whatever ends it early takes its parts along.

use super::{
    failure::About,
    object::{ObjectBucket, PATIENCE, patience},
};
use crate::{Error, Result, bucket::Bodies};
use bytes::Bytes;
use futures::StreamExt;
use object_store::{MultipartUpload, PutMode, PutMultipartOptions, PutPayload};
use seawall_api::ErrorKind;
use std::time::Duration;
use tokio::{runtime::Handle, task::JoinSet, time::timeout};

/// All parts but the last have this size: some stores want them equal, and most at least 5 MiB.
const PART: usize = 8 << 20;
const AT_ONCE: usize = 3;
/// Bytes of a second that a store needs to bring the parts together; a folder writes them to its disk.
const SLOWEST_END: u64 = 4 << 20;

pub async fn upload(bucket: &ObjectBucket, key: &str, body: Bodies) -> Result<()> {
    let mut blocks = Blocks { body, ahead: Bytes::new() };
    let first = blocks.next().await?;
    if !first.is_full() {
        return bucket.put_payload(key, first.into_payload(), PutMode::Overwrite).await;
    }
    let path = bucket.path(key)?;
    let begun = bucket.store.put_multipart_opts(&path, PutMultipartOptions::default());
    let upload = bucket.answer(0, begun).await.map_err(gone)?;
    let mut unfinished = Unfinished { upload: Some(upload), parts: JoinSet::new() };
    match unfinished.send(&bucket.about, first, &mut blocks).await {
        Ok(()) => Ok(()),
        Err(error) => {
            unfinished.give_up().await;
            Err(gone(error))
        }
    }
}

/// An upload that its store does not know is over: perhaps by an end whose reply was lost. Anew, then.
fn gone(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::unavailable("the store forgot the upload").with_source(error),
        _ => error,
    }
}

/// A body in blocks of one size. Only the last is smaller.
struct Blocks {
    body: Bodies,
    /// What came and belongs to the next block.
    ahead: Bytes,
}

#[derive(Default)]
struct Block {
    parts: Vec<Bytes>,
    size: usize,
}

impl Block {
    fn is_full(&self) -> bool {
        self.size == PART
    }

    fn into_payload(self) -> PutPayload {
        self.parts.into_iter().collect()
    }
}

impl Blocks {
    async fn next(&mut self) -> Result<Block> {
        let mut block = Block::default();
        while !block.is_full() {
            if self.ahead.is_empty() {
                let silence = || Error::new(ErrorKind::Timeout, "the body did not come");
                match timeout(PATIENCE, self.body.next()).await.map_err(|_| silence())? {
                    Some(part) => self.ahead = part?,
                    None => break,
                }
            }
            let part = self.ahead.split_to(self.ahead.len().min(PART - block.size));
            block.size += part.len();
            block.parts.push(part);
        }
        Ok(block)
    }
}

type Sent = Result<object_store::Result<()>, tokio::time::error::Elapsed>;

/// An upload that is not complete.
struct Unfinished {
    /// None when it is complete, or given up.
    upload: Option<Box<dyn MultipartUpload>>,
    /// On their way, while the next block is awaited.
    parts: JoinSet<Sent>,
}

impl Unfinished {
    async fn send(&mut self, about: &About, first: Block, blocks: &mut Blocks) -> Result<()> {
        let (mut block, mut total) = (first, 0);
        loop {
            let is_last = !block.is_full();
            total += block.size as u64;
            self.wait(about, AT_ONCE - 1).await?;
            if block.size > 0 {
                self.begin(block);
            }
            if is_last {
                break;
            }
            block = blocks.next().await?;
        }
        self.wait(about, 0).await?;
        self.complete(about, total).await
    }

    fn begin(&mut self, block: Block) {
        let Some(upload) = &mut self.upload else { return };
        let patience = patience(block.size * AT_ONCE);
        self.parts.spawn(timeout(patience, upload.put_part(block.into_payload())));
    }

    /// Until at most so many parts are on their way.
    async fn wait(&mut self, about: &About, most: usize) -> Result<()> {
        while self.parts.len() > most {
            match self.parts.join_next().await {
                Some(Ok(Ok(done))) => done.map_err(|error| about.failure(error))?,
                Some(Ok(Err(_))) => return Err(about.silence(patience(PART * AT_ONCE))),
                Some(Err(error)) => {
                    return Err(Error::new(ErrorKind::Internal, "a part was not sent").with_source(error));
                }
                None => break,
            }
        }
        Ok(())
    }

    async fn complete(&mut self, about: &About, total: u64) -> Result<()> {
        let Some(upload) = &mut self.upload else { return Ok(()) };
        let patience = PATIENCE + Duration::from_secs(total / SLOWEST_END);
        match timeout(patience, upload.complete()).await {
            Ok(done) => done.map_err(|error| about.failure(error))?,
            Err(_) => return Err(about.silence(patience)),
        };
        self.upload = None;
        Ok(())
    }

    /// Nothing of it may stay. What the store has to say to that does not matter: the upload failed already.
    async fn give_up(&mut self) {
        self.parts.shutdown().await;
        let Some(mut upload) = self.upload.take() else { return };
        match timeout(PATIENCE, upload.abort()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "parts of an upload may stay"),
            Err(_) => tracing::debug!("parts of an upload may stay: the store did not answer"),
        }
    }
}

impl Drop for Unfinished {
    /// Whoever waited for it stopped.
    fn drop(&mut self) {
        let Some(mut upload) = self.upload.take() else { return };
        self.parts.abort_all();
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = upload.abort().await {
                    tracing::debug!(%error, "parts of an upload may stay");
                }
            });
        }
    }
}
