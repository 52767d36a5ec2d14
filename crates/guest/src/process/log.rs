//! What a process printed: a bounded log with offsets, from which readers come and go.
//!
//! Offsets count the bytes of all streams together, in the order in which they were read. Memory is
//! bounded by the capacity: when it is full, bytes go that nobody needs any more, and if every byte is
//! needed the log takes no more until some are not.
//!
//! A log keeps 1 MiB, or 4 MiB with `block`. A full log behaves as its policy demands:
//!
//! | policy | bytes that may be dropped | the process waits for |
//! | --- | --- | --- |
//! | `drop_oldest` | those before the slowest reader that holds the log; all, without such a reader | an attached reader that holds the log |
//! | `block` | those that a holding reader acknowledged | an acknowledgement |
//!
//! A reader that is too late gets an event with the gap. An output limit cuts between UTF-8 characters and counts the
//! dropped bytes. Each piece is charged its overhead, so that a million one-byte writes stay within the bound.

use bytes::{Bytes, BytesMut};
use seawall_api::exec::{OutputStream, WhenFull};
use std::collections::{BTreeMap, VecDeque};

/// Kept for replay.
pub const CAPACITY: usize = 1 << 20;
/// With `block` the unacknowledged bytes fill it, so it is larger.
pub const CAPACITY_BLOCK: usize = 4 << 20;
/// Small pieces are gathered up to this size.
const GATHER: usize = 16 << 10;
/// What a piece costs beside its bytes.
const OVERHEAD: usize = 96;

#[derive(Debug)]
struct Piece {
    stream: OutputStream,
    offset: u64,
    bytes: Bytes,
}

#[derive(Debug)]
pub struct Log {
    pieces: VecDeque<Piece>,
    /// The newest bytes, still growing.
    tail: BytesMut,
    tail_stream: OutputStream,
    start: u64,
    end: u64,
    used: usize,
    capacity: usize,
    when_full: WhenFull,
    acked: u64,
    /// Readers that the process waits for, with what they have read.
    holding: BTreeMap<u64, u64>,
    next_reader: u64,
    limit: Option<u64>,
    truncated: u64,
    /// With a limit: the first bytes of a character whose rest has not come, for each stream.
    begun: [Vec<u8>; 3],
}

#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    Piece {
        stream: OutputStream,
        offset: u64,
        bytes: Bytes,
    },
    /// Bytes up to this offset are gone.
    Gap {
        to: u64,
    },
    /// Nothing yet.
    Nothing,
}

impl Log {
    pub fn new(when_full: WhenFull, limit: Option<u64>) -> Self {
        Log {
            pieces: VecDeque::new(),
            tail: BytesMut::new(),
            tail_stream: OutputStream::Stdout,
            start: 0,
            end: 0,
            used: 0,
            capacity: match when_full {
                WhenFull::DropOldest => CAPACITY,
                WhenFull::Block => CAPACITY_BLOCK,
            },
            when_full,
            acked: 0,
            holding: BTreeMap::new(),
            next_reader: 0,
            limit,
            truncated: 0,
            begun: Default::default(),
        }
    }

    pub fn start(&self) -> u64 {
        self.start
    }

    pub fn end(&self) -> u64 {
        self.end
    }

    pub fn truncated(&self) -> u64 {
        self.truncated
    }

    /// What it costs in memory.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Whether a reader may still want bytes that it would be a loss to forget.
    pub fn has_unacknowledged(&self) -> bool {
        self.when_full == WhenFull::Block && self.acked < self.end
    }

    /// Whether there is room; makes some where it may.
    pub fn has_room(&mut self) -> bool {
        let needed_from = match self.when_full {
            WhenFull::Block => self.acked,
            WhenFull::DropOldest => self.holding.values().copied().min().unwrap_or(u64::MAX),
        };
        while self.used >= self.capacity {
            if !self.drop_first_before(needed_from) {
                return false;
            }
        }
        true
    }

    /// Forgets the oldest piece if all of it lies before `needed_from`.
    fn drop_first_before(&mut self, needed_from: u64) -> bool {
        if self.pieces.is_empty() {
            self.seal();
        }
        let Some(first) = self.pieces.front() else { return false };
        let behind = first.offset + first.bytes.len() as u64;
        if behind > needed_from {
            return false;
        }
        self.used -= first.bytes.len() + OVERHEAD;
        self.start = behind;
        self.pieces.pop_front();
        true
    }

    /// Adds what was read. Beyond the limit it is only counted.
    pub fn push(&mut self, stream: OutputStream, bytes: &[u8]) {
        if self.limit.is_none() {
            return self.push_whole(stream, bytes);
        }
        // A limit must not fall into a character, so one that is not whole yet waits for its rest.
        let mut bytes = [std::mem::take(self.begun_of(stream)), bytes.to_vec()].concat();
        *self.begun_of(stream) = bytes.split_off(bytes.len() - unfinished(&bytes));
        self.push_whole(stream, &bytes);
    }

    /// Nothing more comes: what has begun is all there is.
    pub fn flush(&mut self) {
        for stream in [OutputStream::Stdout, OutputStream::Stderr, OutputStream::Tty] {
            let begun = std::mem::take(self.begun_of(stream));
            self.push_whole(stream, &begun);
        }
    }

    fn begun_of(&mut self, stream: OutputStream) -> &mut Vec<u8> {
        &mut self.begun[usize::from(stream.code() - 1)]
    }

    fn push_whole(&mut self, stream: OutputStream, bytes: &[u8]) {
        let kept = self.within_limit(bytes);
        self.truncated += (bytes.len() - kept) as u64;
        let bytes = &bytes[..kept];
        if bytes.is_empty() {
            return;
        }
        if stream != self.tail_stream || self.tail.len() + bytes.len() > GATHER.max(bytes.len()) {
            self.seal();
        }
        if self.tail.is_empty() {
            self.tail_stream = stream;
            self.used += OVERHEAD;
        }
        self.tail.extend_from_slice(bytes);
        self.used += bytes.len();
        self.end += bytes.len() as u64;
    }

    /// Counts bytes that are thrown away: of what is being ended, nobody waits for the rest.
    pub fn discard(&mut self, bytes: usize) {
        self.truncated += bytes as u64;
    }

    /// As [`Log::push`], without copying what is large.
    pub fn push_owned(&mut self, stream: OutputStream, bytes: Bytes) {
        if bytes.len() < GATHER / 4 || self.limit.is_some() {
            return self.push(stream, &bytes);
        }
        self.seal();
        self.used += OVERHEAD + bytes.len();
        let offset = self.end;
        self.end += bytes.len() as u64;
        self.pieces.push_back(Piece { stream, offset, bytes });
    }

    /// How many of these bytes the limit allows, not cutting a character in two.
    fn within_limit(&mut self, bytes: &[u8]) -> usize {
        let Some(limit) = self.limit else { return bytes.len() };
        if self.truncated > 0 {
            return 0;
        }
        let left = usize::try_from(limit.saturating_sub(self.end)).unwrap_or(usize::MAX);
        match left >= bytes.len() {
            true => bytes.len(),
            false => whole_characters(&bytes[..left], bytes[left]),
        }
    }

    fn seal(&mut self) {
        if self.tail.is_empty() {
            return;
        }
        let bytes = self.tail.split().freeze();
        let offset = self.end - bytes.len() as u64;
        self.pieces.push_back(Piece { stream: self.tail_stream, offset, bytes });
    }

    /// What comes at `from`, at most `most` bytes.
    pub fn read(&mut self, from: u64, most: usize) -> Read {
        if from < self.start {
            return Read::Gap { to: self.start };
        }
        if from >= self.end {
            return Read::Nothing;
        }
        if from >= self.end - self.tail.len() as u64 {
            self.seal();
        }
        let at = self.pieces.partition_point(|p| p.offset + (p.bytes.len() as u64) <= from);
        let Some(piece) = self.pieces.get(at) else { return Read::Nothing };
        // A piece holds at most a pipe's worth of bytes, so the difference fits.
        let skip = (from - piece.offset) as usize;
        let until = piece.bytes.len().min(skip.saturating_add(most));
        Read::Piece { stream: piece.stream, offset: from, bytes: piece.bytes.slice(skip..until) }
    }

    pub fn ack(&mut self, offset: u64) {
        self.acked = self.acked.max(offset.min(self.end));
    }

    /// A reader that the process shall wait for.
    pub fn hold(&mut self, from: u64) -> u64 {
        self.next_reader += 1;
        self.holding.insert(self.next_reader, from);
        self.next_reader
    }

    pub fn advance(&mut self, reader: u64, to: u64) {
        if let Some(position) = self.holding.get_mut(&reader) {
            *position = to;
        }
    }

    pub fn release(&mut self, reader: u64) {
        self.holding.remove(&reader);
    }
}

/// How many bytes at the end are the beginning of a character.
fn unfinished(bytes: &[u8]) -> usize {
    let from = bytes.len().saturating_sub(3);
    for (at, byte) in bytes.iter().enumerate().skip(from).rev() {
        let wanted = match byte {
            0x80..=0xBF => continue,
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            _ => return 0,
        };
        let there = bytes.len() - at;
        return if there < wanted { there } else { 0 };
    }
    0
}

/// The length of `bytes` without a character that `next` shows to be cut.
fn whole_characters(bytes: &[u8], next: u8) -> usize {
    let is_continuation = |b: u8| b & 0xC0 == 0x80;
    if !is_continuation(next) {
        return bytes.len();
    }
    let tail = bytes.iter().rev().take(3).take_while(|b| is_continuation(**b)).count();
    match bytes.len().checked_sub(tail + 1) {
        // Only where what is cut begins like a character; other bytes are no text.
        Some(lead) if bytes[lead] >= 0xC0 => lead,
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(log: &mut Log, mut from: u64) -> Vec<u8> {
        let mut out = Vec::new();
        while let Read::Piece { bytes, .. } = log.read(from, 1000) {
            from += bytes.len() as u64;
            out.extend_from_slice(&bytes);
        }
        out
    }

    #[test]
    fn oldest_goes_when_nobody_reads() {
        let mut log = Log::new(WhenFull::DropOldest, None);
        for _ in 0..40 {
            assert!(log.has_room());
            log.push(OutputStream::Stdout, &[7; 64 << 10]);
        }
        assert!(log.start() > 0 && log.used() <= CAPACITY + (65 << 10));
        assert_eq!(log.read(0, 10), Read::Gap { to: log.start() });
    }

    #[test]
    fn a_holding_reader_makes_the_process_wait() {
        let mut log = Log::new(WhenFull::DropOldest, None);
        let reader = log.hold(0);
        while log.has_room() {
            log.push(OutputStream::Stdout, &[7; 64 << 10]);
        }
        assert_eq!(log.start(), 0);
        log.advance(reader, 64 << 10);
        assert!(log.has_room());
        log.release(reader);
        assert!(log.has_room());
    }

    #[test]
    fn block_keeps_what_was_not_acknowledged() {
        let mut log = Log::new(WhenFull::Block, None);
        while log.has_room() {
            log.push(OutputStream::Stdout, &[7; 64 << 10]);
        }
        assert_eq!(log.start(), 0);
        log.ack(100 << 10);
        assert!(log.has_room());
        assert_eq!(log.start(), 64 << 10);
    }

    #[test]
    fn many_small_writes_stay_small() {
        let mut log = Log::new(WhenFull::DropOldest, None);
        for i in 0..2_000_000u32 {
            let stream = if i % 2 == 0 { OutputStream::Stdout } else { OutputStream::Stderr };
            assert!(log.has_room());
            log.push(stream, b"x");
        }
        assert!(log.used() <= CAPACITY + OVERHEAD + 1);
        assert!(log.pieces.len() <= CAPACITY / OVERHEAD);
    }

    #[test]
    fn what_is_no_text_is_kept_all_the_same() {
        let mut log = Log::new(WhenFull::DropOldest, Some(100));
        log.push(OutputStream::Stdout, b"a\xe2");
        log.push(OutputStream::Stderr, b"x");
        log.push(OutputStream::Stdout, b"b\xff\xe2\x82");
        log.flush();
        assert_eq!(log.end(), 7);
    }

    #[test]
    fn the_limit_does_not_cut_a_character() {
        let mut log = Log::new(WhenFull::DropOldest, Some(4));
        log.push(OutputStream::Stdout, "abc€def".as_bytes());
        assert_eq!(all(&mut log, 0), b"abc");
        assert_eq!(log.truncated(), 6);
        log.push(OutputStream::Stdout, b"more");
        assert_eq!((log.end(), log.truncated()), (3, 10));
    }

    proptest! {
        #[test]
        fn reading_gives_what_was_written(
            writes in proptest::collection::vec((0u8..2, proptest::collection::vec(any::<u8>(), 0..200)), 0..50),
            from in 0usize..2000,
        ) {
            let mut log = Log::new(WhenFull::DropOldest, None);
            let mut written = Vec::new();
            for (stream, bytes) in &writes {
                let stream = if *stream == 0 { OutputStream::Stdout } else { OutputStream::Stderr };
                prop_assert!(log.has_room());
                log.push(stream, bytes);
                written.extend_from_slice(bytes);
                // A reader in between must not disturb.
                log.read(log.end().saturating_sub(1), 10);
            }
            let from = from.min(written.len());
            prop_assert_eq!(all(&mut log, from as u64), &written[from..]);
            prop_assert_eq!(log.end(), written.len() as u64);
        }

        #[test]
        fn limits_hold_and_keep_text_whole(text in "\\PC{0,80}", limit in 0u64..100, step in 1usize..9) {
            let mut log = Log::new(WhenFull::DropOldest, Some(limit));
            for piece in text.as_bytes().chunks(step) {
                log.push(OutputStream::Stdout, piece);
            }
            log.flush();
            let kept = all(&mut log, 0);
            prop_assert!(kept.len() as u64 <= limit);
            prop_assert!(std::str::from_utf8(&kept).is_ok());
            prop_assert_eq!(kept.len() as u64 + log.truncated(), text.len() as u64);
            prop_assert!(kept.len() as u64 + 4 > limit.min(text.len() as u64));
        }
    }
}
