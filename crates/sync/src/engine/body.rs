//! The body of one large file on its way to the bucket: hashed, bounded, and without its zeros.

use super::{Progress, upload::liar};
use crate::{
    Error, Result,
    bucket::Bodies,
    sparse::Encoder,
    sums::Hasher,
    tree::{File, Sparse},
    workspace::{Piece, Pieces},
};
use bytes::Bytes;
use futures::StreamExt;
use seawall_api::ErrorKind;
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// The bytes that one sync may still store.
#[derive(Debug)]
pub struct Allowance(AtomicU64);

impl Allowance {
    pub fn new(bytes: u64) -> Allowance {
        Allowance(AtomicU64::new(bytes))
    }

    /// False where so many are not left. Then nothing was taken.
    pub fn take(&self, bytes: u64) -> bool {
        let less = |left: u64| left.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    pub fn give_back(&self, bytes: u64) {
        let more = |left: u64| Some(left.saturating_add(bytes));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }
}

/// What came of reading a body.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The bytes that were passed on to be stored.
    pub stored: u64,
    /// How they are stored; none: as they are.
    pub sparse: Option<Sparse>,
    /// Why it was not stored, where the workspace is the reason.
    pub missed: Option<Reason>,
}

/// Why a file is not uploaded now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It is not what the scan saw.
    Changed,
    /// The sync has stored all that it may.
    Beyond,
}

pub type SharedOutcome = Arc<Mutex<Outcome>>;

pub fn lock(outcome: &SharedOutcome) -> MutexGuard<'_, Outcome> {
    outcome.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What [`checked`] needs to know.
pub struct Large {
    pub file: File,
    pub allowance: Arc<Allowance>,
    pub outcome: SharedOutcome,
    pub progress: Arc<dyn Progress>,
}

struct Reading {
    large: Large,
    pieces: Pieces,
    /// None once the body was whole.
    hasher: Option<(Hasher, Encoder)>,
    taken: u64,
    ready: VecDeque<Bytes>,
}

/// What is to be stored of a body. The last part comes only when all of it is what the scan said.
pub fn checked(large: Large, pieces: Pieces) -> Bodies {
    let ready = VecDeque::new();
    let start = Reading { large, pieces, hasher: Some(Default::default()), taken: 0, ready };
    futures::stream::try_unfold(start, |mut reading| async move {
        loop {
            // One part is held back, so that the store never has the whole of a wrong body.
            if reading.ready.len() > 1 {
                return Ok(reading.ready.pop_front().map(|part| (part, reading)));
            }
            match reading.pieces.next().await.transpose()? {
                Some(Piece::Data(_, bytes)) => reading.take(&bytes)?,
                Some(Piece::End(_)) => reading.finish()?,
                Some(Piece::Changed(_)) => return Err(reading.miss(Reason::Changed)),
                None if reading.hasher.is_some() => return Err(liar("half of a body")),
                None => return Ok(reading.ready.pop_front().map(|part| (part, reading))),
            }
        }
    })
    .boxed()
}

impl Reading {
    fn miss(&self, reason: Reason) -> Error {
        lock(&self.large.outcome).missed = Some(reason);
        match reason {
            Reason::Changed => Error::conflict("it changed while it was read"),
            Reason::Beyond => Error::new(ErrorKind::TooLarge, super::BEYOND),
        }
    }

    fn take(&mut self, bytes: &Bytes) -> Result<()> {
        let Some((hasher, encoder)) = &mut self.hasher else { return Err(liar("a body twice")) };
        hasher.update(bytes);
        self.taken += bytes.len() as u64;
        if self.taken > self.large.file.size {
            return Err(self.miss(Reason::Changed));
        }
        self.large.progress.moved(bytes.len() as u64);
        let mut parts = Vec::new();
        encoder.add(bytes, &mut parts);
        self.store(parts)
    }

    fn store(&mut self, parts: Vec<Bytes>) -> Result<()> {
        for part in parts {
            let size = part.len() as u64;
            if !self.large.allowance.take(size) {
                return Err(self.miss(Reason::Beyond));
            }
            lock(&self.large.outcome).stored += size;
            self.ready.push_back(part);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let Some((hasher, encoder)) = self.hasher.take() else { return Err(liar("a body twice")) };
        let file = &self.large.file;
        if hasher.finish() != file.sums || self.taken != file.size {
            return Err(self.miss(Reason::Changed));
        }
        let mut parts = Vec::new();
        let sparse = encoder.finish(&mut parts);
        self.store(parts)?;
        lock(&self.large.outcome).sparse = sparse;
        Ok(())
    }
}
