//! What a process printed: the last [`KEPT`] bytes, with offsets, and who still wants them.

use bytes::{Buf, Bytes};
use seawall_api::{
    exec::{OutputStream, ProcessEvent, WhenFull},
    frame::DATA_CHUNK,
};
use std::collections::{BTreeMap, VecDeque};

/// How much is kept for replay.
pub(super) const KEPT: u64 = 1 << 20;

#[derive(Debug)]
struct Chunk {
    stream: OutputStream,
    offset: u64,
    bytes: Bytes,
}

/// What comes next for a reader.
pub(super) enum Next {
    /// And where it goes on.
    Gap(ProcessEvent, u64),
    Data(OutputStream, u64, Bytes),
    /// It has seen everything so far.
    Nothing,
}

#[derive(Debug)]
pub(super) struct Output {
    chunks: VecDeque<Chunk>,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) truncated: u64,
    limit: Option<u64>,
    when_full: WhenFull,
    acked: u64,
    /// Where each reader is that the process waits for.
    holders: BTreeMap<u64, u64>,
    last_holder: u64,
}

impl Output {
    pub(super) fn new(when_full: WhenFull, limit: Option<u64>) -> Self {
        Output {
            chunks: VecDeque::new(),
            start: 0,
            end: 0,
            truncated: 0,
            limit,
            when_full,
            acked: 0,
            holders: BTreeMap::new(),
            last_holder: 0,
        }
    }

    /// The part of `bytes` that the limit lets through; the rest is counted.
    pub(super) fn admit(&mut self, mut bytes: Bytes) -> Bytes {
        let Some(limit) = self.limit else { return bytes };
        // Once something was cut off, nothing that follows it may appear.
        let room = if self.truncated > 0 { 0 } else { limit.saturating_sub(self.end) };
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        if bytes.len() > room {
            let cut = char_boundary(&bytes, room);
            self.truncated += (bytes.len() - cut) as u64;
            bytes.truncate(cut);
        }
        bytes
    }

    /// Whether `len` more bytes may be printed now, without loss to anyone who is owed them.
    pub(super) fn has_room(&self, len: usize) -> bool {
        let owed = match self.when_full {
            WhenFull::Block => Some(self.acked),
            WhenFull::DropOldest => None,
        };
        let slowest = self.holders.values().copied().chain(owed).min();
        slowest.is_none_or(|at| self.end + len as u64 <= at.saturating_add(KEPT))
    }

    pub(super) fn push(&mut self, stream: OutputStream, bytes: Bytes) {
        let len = bytes.len() as u64;
        self.chunks.push_back(Chunk { stream, offset: self.end, bytes });
        self.end += len;
        while self.end - self.start > KEPT {
            self.drop_oldest(self.end - self.start - KEPT);
        }
    }

    fn drop_oldest(&mut self, excess: u64) {
        let Some(front) = self.chunks.front_mut() else { return };
        let len = front.bytes.len() as u64;
        let dropped = len.min(excess);
        front.offset += dropped;
        front.bytes.advance(dropped as usize);
        self.start += dropped;
        if dropped == len {
            self.chunks.pop_front();
        }
    }

    pub(super) fn next(&self, position: u64) -> Next {
        if position < self.start {
            let gap = ProcessEvent::Gap { from: position, to: self.start };
            return Next::Gap(gap, self.start);
        }
        let behind = |chunk: &Chunk| chunk.offset + chunk.bytes.len() as u64;
        let index = self.chunks.partition_point(|chunk| behind(chunk) <= position);
        match self.chunks.get(index) {
            Some(chunk) => {
                let bytes = chunk.bytes.slice((position - chunk.offset) as usize..);
                Next::Data(chunk.stream, position, bytes)
            }
            None => Next::Nothing,
        }
    }

    pub(super) fn ack(&mut self, offset: u64) {
        self.acked = self.acked.max(offset.min(self.end));
    }

    pub(super) fn hold(&mut self, position: u64) -> u64 {
        self.last_holder += 1;
        self.holders.insert(self.last_holder, position);
        self.last_holder
    }

    pub(super) fn moved(&mut self, holder: u64, position: u64) {
        if let Some(at) = self.holders.get_mut(&holder) {
            *at = position;
        }
    }

    pub(super) fn release(&mut self, holder: u64) {
        self.holders.remove(&holder);
    }
}

/// Pieces that fit into one frame.
pub(super) fn pieces(mut bytes: Bytes) -> impl Iterator<Item = Bytes> {
    std::iter::from_fn(move || {
        let len = bytes.len().min(DATA_CHUNK);
        (len > 0).then(|| bytes.split_to(len))
    })
}

/// The last place at or before `at` that is not in the middle of a UTF-8 character.
fn char_boundary(bytes: &[u8], at: usize) -> usize {
    let continues = |index: usize| bytes.get(index).is_some_and(|byte| byte & 0xc0 == 0x80);
    // Four continuation bytes in a row are no UTF-8 at all: then any place is as good.
    (at.saturating_sub(3)..=at).rev().find(|index| !continues(*index)).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_bytes_go_and_the_gap_is_told() {
        let mut output = Output::new(WhenFull::DropOldest, None);
        for piece in pieces(Bytes::from(vec![7; KEPT as usize + 10])) {
            output.push(OutputStream::Stdout, piece);
        }
        assert_eq!((output.start, output.end), (10, KEPT + 10));
        let Next::Gap(gap, at) = output.next(0) else { panic!("no gap") };
        assert_eq!((gap, at), (ProcessEvent::Gap { from: 0, to: 10 }, 10));
        let Next::Data(_, 10, bytes) = output.next(10) else { panic!("no data") };
        assert_eq!(bytes.len(), DATA_CHUNK - 10);
        assert!(matches!(output.next(KEPT + 10), Next::Nothing));
    }

    #[test]
    fn a_limit_never_cuts_a_character() {
        let mut output = Output::new(WhenFull::DropOldest, Some(4));
        assert_eq!(&output.admit(Bytes::from("aüü"))[..], "aü".as_bytes());
        assert_eq!(output.truncated, 2);
        assert!(output.admit(Bytes::from("x")).is_empty());
        assert_eq!(output.truncated, 3);
    }

    #[test]
    fn a_holder_and_an_ack_make_it_wait() {
        let mut output = Output::new(WhenFull::Block, None);
        assert!(!output.has_room(KEPT as usize + 1));
        output.push(OutputStream::Stdout, Bytes::from(vec![0; 8]));
        output.ack(8);
        assert!(output.has_room(KEPT as usize));
        let holder = output.hold(0);
        assert!(!output.has_room(KEPT as usize));
        output.release(holder);
        assert!(output.has_room(KEPT as usize));
    }
}
