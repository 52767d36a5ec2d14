//! What is gathered of one output stream: blocks of bytes, within a limit and a byte budget.

use crate::budget::Reservation;
use std::collections::VecDeque;

/// The first block, and the largest one.
const FIRST: usize = 4 << 10;
const BLOCK: usize = 64 << 10;

/// The beginning of an output stream, and how many bytes did not fit. Bytes lie in blocks, so that nothing is copied as it
/// grows and a reader can free what it has read.
#[derive(Debug, Default)]
pub struct Capture {
    blocks: VecDeque<Vec<u8>>,
    kept: usize,
    truncated: u64,
}

impl Capture {
    pub fn len(&self) -> usize {
        self.kept
    }

    pub fn is_empty(&self) -> bool {
        self.kept == 0
    }

    /// Bytes that are missing: beyond the limit, or beyond the budget.
    pub fn truncated(&self) -> u64 {
        self.truncated
    }

    pub fn blocks(&self) -> impl Iterator<Item = &[u8]> {
        self.blocks.iter().map(Vec::as_slice)
    }

    /// The blocks, to be freed one by one. What a block takes in a reservation is its capacity.
    pub fn into_blocks(self) -> VecDeque<Vec<u8>> {
        self.blocks
    }

    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.kept);
        self.blocks().for_each(|block| all.extend_from_slice(block));
        all
    }

    pub(super) fn skip(&mut self, bytes: u64) {
        self.truncated = self.truncated.saturating_add(bytes);
    }

    /// Takes up to `max` bytes in all, as far as `room` has bytes for them. Once something is missing nothing follows.
    pub fn add(&mut self, bytes: &[u8], max: usize, room: Option<&mut Reservation>) {
        if self.truncated > 0 {
            return self.skip(bytes.len() as u64);
        }
        let taken = self.take(&bytes[..bytes.len().min(max - self.kept)], max, room);
        if taken < bytes.len() {
            self.skip((bytes.len() - taken) as u64);
            self.drop_cut_character();
        }
    }

    fn take(&mut self, mut bytes: &[u8], max: usize, mut room: Option<&mut Reservation>) -> usize {
        let mut taken = 0;
        while !bytes.is_empty() {
            let free = self.blocks.back().map_or(0, |block| block.capacity() - block.len());
            if free == 0 && !self.add_block(max, room.as_deref_mut()) {
                break;
            }
            let Some(block) = self.blocks.back_mut() else { break };
            let (now, later) = bytes.split_at(bytes.len().min(block.capacity() - block.len()));
            block.extend_from_slice(now);
            self.kept += now.len();
            taken += now.len();
            bytes = later;
        }
        taken
    }

    /// False where the budget has no more.
    fn add_block(&mut self, max: usize, room: Option<&mut Reservation>) -> bool {
        let block = Vec::with_capacity(self.kept.clamp(FIRST, BLOCK).min(max - self.kept));
        let fits = room.is_none_or(|room| room.try_grow(block.capacity() as u64));
        if fits {
            self.blocks.push_back(block);
        }
        fits
    }

    /// Text that was cut must not end in half a character.
    fn drop_cut_character(&mut self) {
        let last: Vec<u8> =
            self.blocks.iter().rev().flat_map(|block| block.iter().rev()).take(3).copied().collect();
        let begins = |count: &usize| {
            let tail: Vec<u8> = last[..*count].iter().rev().copied().collect();
            std::str::from_utf8(&tail)
                .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        };
        let half = (1..=last.len()).find(begins).unwrap_or(0);
        for _ in 0..half {
            while self.blocks.back().is_some_and(Vec::is_empty) {
                self.blocks.pop_back();
            }
            if let Some(block) = self.blocks.back_mut() {
                block.pop();
            }
        }
        self.kept -= half;
        self.skip(half as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{Budget, BudgetLimits};

    #[test]
    fn gathering_stops_at_the_limit_between_characters() {
        let mut gathered = Capture::default();
        gathered.add("ab€cd".as_bytes(), 4, None);
        assert_eq!((gathered.to_vec().as_slice(), gathered.truncated()), (&b"ab"[..], 5));
        gathered.add(b"more", 4, None);
        assert_eq!((gathered.to_vec().as_slice(), gathered.truncated()), (&b"ab"[..], 9));
    }

    #[test]
    fn bytes_that_are_no_text_are_kept_to_the_limit() {
        let mut gathered = Capture::default();
        gathered.add(&[0xff, 0xfe, 0xff, 0xfe], 3, None);
        assert_eq!((gathered.len(), gathered.truncated()), (3, 1));
    }

    #[test]
    fn what_comes_byte_by_byte_is_kept_in_few_blocks() {
        let mut gathered = Capture::default();
        for number in 0..200_000_u32 {
            gathered.add(&[number.to_le_bytes()[0]], usize::MAX, None);
        }
        assert_eq!((gathered.len(), gathered.truncated()), (200_000, 0));
        assert!(gathered.blocks().count() < 10);
        let expected: Vec<u8> = (0..200_000_u32).map(|number| number.to_le_bytes()[0]).collect();
        assert_eq!(gathered.to_vec(), expected);
    }

    #[test]
    fn k5_what_the_budget_has_no_room_for_is_counted_as_truncated() {
        let budget = Budget::new(BudgetLimits { server: 100_000, account: 100_000 });
        let (mut gathered, mut room) = (Capture::default(), budget.open(None));
        for _ in 0..10 {
            gathered.add(&[b'x'; 50_000], usize::MAX, Some(&mut room));
        }
        assert!(gathered.len() <= 100_000 && gathered.len() > 30_000, "{}", gathered.len());
        assert_eq!(gathered.len() as u64 + gathered.truncated(), 500_000);
        let capacity: u64 = gathered.into_blocks().iter().map(|block| block.capacity() as u64).sum();
        assert_eq!(room.bytes(), capacity);
        let held = budget.limits().server - budget.free();
        assert_eq!(held, capacity);
    }
}
