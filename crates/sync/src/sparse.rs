//! Bodies without their zeros: how a file with holes is stored, read, and written to a disk.
//!
//! A sparse body is a beginning that is stored as it is, and behind it segments until the file's size is reached:
//!
//! ```text
//! plain bytes | (zeros: varint, length: varint, bytes: length) …
//! ```
//!
//! Only blocks of [`BLOCK`] zeros at a multiple of [`BLOCK`] are left out. A body that has few of them is stored as it is
//! (`None` instead of a [`Sparse`]). So an object is never larger than 8/7 of the blocks that hold data, whatever the
//! file's size is. Both checksums are those of the whole body, zeros included: a body that was decoded wrongly is
//! never taken for the right one.

use crate::tree::Sparse;
use bytes::Bytes;

/// The smallest block of a file system that a sandbox can have.
pub const BLOCK: usize = 1024;
/// The most bytes of one segment.
const SEGMENT: usize = 256 << 10;
/// One part in so many may be zeros in a body that is stored as it is.
const FEW: u64 = 8;
/// Zeros that the beginning of a large body may hold before segments begin.
const SLACK: u64 = 4 << 10;
/// A varint of 64 bits has at most so many bytes.
const LONGEST: u32 = 10;

/// Zeros to hash, to send and to compare with.
static ZEROS: [u8; 256 << 10] = [0; 256 << 10];

/// At most `most` zeros, without a copy.
pub fn zeros(most: u64) -> Bytes {
    let size = usize::try_from(most).unwrap_or(usize::MAX).min(ZEROS.len());
    Bytes::from_static(&ZEROS[..size])
}

/// The most bytes that a body of this size is stored in.
pub fn most_stored(size: u64) -> u64 {
    size.saturating_add(size >> 12).saturating_add(64)
}

fn is_zero_block(piece: &[u8]) -> bool {
    piece.len() == BLOCK && *piece == ZEROS[..BLOCK]
}

/// The bytes at an offset of a file, cut where blocks of zeros begin and end: each part, and whether it is zeros.
pub fn runs(bytes: &[u8], offset: u64) -> impl Iterator<Item = (&[u8], bool)> {
    let (mut rest, mut at) = (bytes, offset);
    std::iter::from_fn(move || {
        let is_zeros = is_zero_block(first_piece(rest, at)?);
        let mut end = 0;
        while let Some(piece) = first_piece(&rest[end..], at) {
            if is_zero_block(piece) != is_zeros {
                break;
            }
            end += piece.len();
            at += piece.len() as u64;
        }
        let (run, behind) = rest.split_at(end);
        rest = behind;
        Some((run, is_zeros))
    })
}

/// Up to the end of the block that the offset is in.
fn first_piece(bytes: &[u8], offset: u64) -> Option<&[u8]> {
    let to_boundary = BLOCK - (offset % BLOCK as u64) as usize;
    let piece = &bytes[..to_boundary.min(bytes.len())];
    (!piece.is_empty()).then_some(piece)
}

/// A body that is whole in memory. None where it is to be stored as it is.
pub fn encode(body: &[u8]) -> Option<(Vec<u8>, Sparse)> {
    let left_out: u64 =
        runs(body, 0).filter(|(_, is_zeros)| *is_zeros).map(|(run, _)| run.len() as u64).sum();
    if left_out * FEW <= body.len() as u64 {
        return None;
    }
    let (mut encoder, mut out) = (Encoder { plain: Some(0), ..Encoder::default() }, Vec::new());
    encoder.add(&Bytes::copy_from_slice(body), &mut out);
    let sparse = encoder.finish(&mut out)?;
    Some((out.concat(), sparse))
}

/// Encodes a body that comes in parts, of a size that is not known beforehand.
#[derive(Debug, Default)]
pub struct Encoder {
    /// Bytes of the body so far.
    taken: u64,
    /// Bytes of the object so far.
    stored: u64,
    /// Zeros in the beginning.
    kept: u64,
    /// How long the beginning is. None while it goes on.
    plain: Option<u64>,
    /// Of the segment that has not been written yet.
    gap: u64,
    data: Vec<u8>,
}

impl Encoder {
    /// Takes the next part of the body, and gives what is to be stored of it.
    pub fn add(&mut self, part: &Bytes, out: &mut Vec<Bytes>) {
        let mut position = 0;
        if self.plain.is_none() {
            position = self.beginning(part);
            if position > 0 {
                self.stored += position as u64;
                out.push(part.slice(..position));
            }
        }
        for (run, is_zeros) in runs(&part[position..], self.taken) {
            self.taken += run.len() as u64;
            match is_zeros {
                true => {
                    self.flush_data(out);
                    self.gap += run.len() as u64;
                }
                false => self.take_data(run, out),
            }
        }
    }

    /// How much of a part belongs to the beginning: it ends where too much of it is zeros.
    fn beginning(&mut self, part: &Bytes) -> usize {
        let mut position = 0;
        while let Some(piece) = first_piece(&part[position..], self.taken) {
            if is_zero_block(piece) {
                if self.kept + BLOCK as u64 > SLACK + self.taken / FEW {
                    self.plain = Some(self.taken);
                    break;
                }
                self.kept += BLOCK as u64;
            }
            position += piece.len();
            self.taken += piece.len() as u64;
        }
        position
    }

    fn take_data(&mut self, mut run: &[u8], out: &mut Vec<Bytes>) {
        while !run.is_empty() {
            let (now, later) = run.split_at(run.len().min(SEGMENT - self.data.len()));
            self.data.extend_from_slice(now);
            run = later;
            if self.data.len() == SEGMENT {
                self.flush(out);
            }
        }
    }

    fn flush_data(&mut self, out: &mut Vec<Bytes>) {
        if !self.data.is_empty() {
            self.flush(out);
        }
    }

    fn flush(&mut self, out: &mut Vec<Bytes>) {
        let mut segment = Vec::with_capacity(self.data.len() + 2 * LONGEST as usize);
        put_varint(&mut segment, self.gap);
        put_varint(&mut segment, self.data.len() as u64);
        segment.extend_from_slice(&self.data);
        self.gap = 0;
        self.data.clear();
        self.stored += segment.len() as u64;
        out.push(segment.into());
    }

    /// What is left, and how all of it is stored. None: as it is.
    pub fn finish(mut self, out: &mut Vec<Bytes>) -> Option<Sparse> {
        let plain = self.plain?;
        if self.gap > 0 || !self.data.is_empty() {
            self.flush(out);
        }
        Some(Sparse { stored: self.stored, plain })
    }
}

fn put_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        bytes.push(number as u8 & 0x7f | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// A part of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Data(Bytes),
    Zeros(u64),
}

/// The stored bytes are no body of that size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is not stored as its version says")]
pub struct Malformed;

/// Decodes what is stored, as it comes. Nothing is allocated, and no more than the body's size comes out.
#[derive(Debug)]
pub struct Decoder {
    /// Bytes of the body that are still to come.
    left: u64,
    /// Of which so many are stored as they are, here.
    data: u64,
    /// Both numbers of a segment, as far as they were read.
    numbers: [u64; 2],
    reading: usize,
    digits: u32,
}

impl Decoder {
    /// Of a file of this size. Without a [`Sparse`] the body is stored as it is.
    pub fn new(size: u64, sparse: Option<&Sparse>) -> Decoder {
        let data = sparse.map_or(size, |sparse| sparse.plain.min(size));
        Decoder { left: size, data, numbers: [0; 2], reading: 0, digits: 0 }
    }

    /// The next part, taken from the beginning of `stored`. None where more has to be read first.
    pub fn next(&mut self, stored: &mut Bytes) -> Result<Option<Part>, Malformed> {
        loop {
            if stored.is_empty() {
                return Ok(None);
            }
            if self.data > 0 {
                let size = stored.len().min(usize::try_from(self.data).unwrap_or(usize::MAX));
                self.data -= size as u64;
                self.left -= size as u64;
                return Ok(Some(Part::Data(stored.split_to(size))));
            }
            if self.left == 0 {
                return Err(Malformed);
            }
            if let Some(zeros) = self.number(stored.split_to(1)[0])?.filter(|zeros| *zeros > 0) {
                return Ok(Some(Part::Zeros(zeros)));
            }
        }
    }

    /// One more byte of a segment's numbers. With the last one it is known how many zeros come.
    fn number(&mut self, byte: u8) -> Result<Option<u64>, Malformed> {
        let bits = u64::from(byte & 0x7f);
        let shifted = bits << (7 * self.digits).min(63);
        if self.digits >= LONGEST || shifted >> (7 * self.digits).min(63) != bits {
            return Err(Malformed);
        }
        self.numbers[self.reading] |= shifted;
        self.digits += 1;
        if byte & 0x80 != 0 {
            return Ok(None);
        }
        self.digits = 0;
        self.reading += 1;
        if self.reading < 2 {
            return Ok(None);
        }
        let [zeros, data] = std::mem::take(&mut self.numbers);
        self.reading = 0;
        let both = zeros.checked_add(data).filter(|both| *both > 0 && *both <= self.left);
        both.ok_or(Malformed)?;
        self.left -= zeros;
        self.data = data;
        Ok(Some(zeros))
    }

    /// Whether the body is whole.
    pub fn is_done(&self) -> bool {
        self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(stored: &[u8], size: u64, sparse: Option<&Sparse>, step: usize) -> Result<Vec<u8>, Malformed> {
        let (mut decoder, mut body) = (Decoder::new(size, sparse), Vec::new());
        for chunk in stored.chunks(step) {
            let mut chunk = Bytes::copy_from_slice(chunk);
            while let Some(part) = decoder.next(&mut chunk)? {
                match part {
                    Part::Data(bytes) => body.extend_from_slice(&bytes),
                    Part::Zeros(count) => body.resize(body.len() + count as usize, 0),
                }
            }
        }
        if decoder.is_done() { Ok(body) } else { Err(Malformed) }
    }

    fn streamed(body: &[u8], step: usize) -> (Vec<u8>, Option<Sparse>) {
        let (mut encoder, mut out) = (Encoder::default(), Vec::new());
        for chunk in body.chunks(step) {
            encoder.add(&Bytes::copy_from_slice(chunk), &mut out);
        }
        let sparse = encoder.finish(&mut out);
        (out.concat(), sparse)
    }

    #[test]
    fn a_body_without_zeros_is_stored_as_it_is() {
        let body = vec![7; 3 * SEGMENT + 5];
        assert_eq!(encode(&body), None);
        assert_eq!(streamed(&body, 1000), (body.clone(), None));
        // Few zeros are not worth it.
        let mut some = body.clone();
        some[2 * BLOCK..4 * BLOCK].fill(0);
        assert_eq!(encode(&some), None);
        assert_eq!(streamed(&some, SEGMENT), (some.clone(), None));
        assert_eq!(encode(b""), None);
    }

    #[test]
    fn nothing_but_zeros_takes_no_room() {
        let body = vec![0; 10 << 20];
        let (stored, sparse) = encode(&body).unwrap();
        assert!(stored.len() < 10, "{}", stored.len());
        assert_eq!(decode(&stored, body.len() as u64, Some(&sparse), 1).unwrap(), body);
        let (stored, sparse) = streamed(&body, 1 << 20);
        assert!(stored.len() < 6000, "{}", stored.len());
        assert_eq!(decode(&stored, body.len() as u64, sparse.as_ref(), 7).unwrap(), body);
    }

    /// One block of data and one of zeros in turn, which is the most segments that a body can have.
    #[test]
    fn every_block_of_zeros_is_left_out() {
        let mut body = vec![1; 4 << 20];
        for block in body.chunks_mut(2 * BLOCK) {
            block[..BLOCK].fill(0);
        }
        for (stored, sparse) in [encode(&body).unwrap(), {
            let (stored, sparse) = streamed(&body, 1 << 20);
            (stored, sparse.unwrap())
        }] {
            assert!(stored.len() < (2 << 20) + (32 << 10), "{}", stored.len());
            assert_eq!(sparse.stored, stored.len() as u64);
            assert_eq!(decode(&stored, body.len() as u64, Some(&sparse), 4096).unwrap(), body);
        }
    }

    #[test]
    fn what_no_encoder_writes_is_refused() {
        let sparse = |stored: &[u8]| Sparse { stored: stored.len() as u64, plain: 0 };
        let long = [0x80; 11];
        for bad in [
            &[0, 0][..],            // a segment of nothing
            &[11, 0],               // more zeros than the file has
            &[5, 6, 1, 1, 1, 1, 1], // together
            &[0, 10],               // cut short
            &[10],
            &[10, 0, 0], // more behind the end
            &long,
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1],
        ] {
            assert_eq!(decode(bad, 10, Some(&sparse(bad)), 3), Err(Malformed), "{bad:?}");
        }
        assert_eq!(decode(&[10, 0], 10, Some(&sparse(&[10, 0])), 1).unwrap(), [0; 10]);
    }

    /// Data and zeros in turn, with edges beside the blocks' too.
    fn bodies() -> impl Strategy<Value = Vec<u8>> {
        let run = (any::<u8>(), prop_oneof![1..40usize, 900..1200usize, 1..12_000usize, 60_000..70_000usize]);
        proptest::collection::vec(run, 0..12).prop_map(|runs| {
            let run = |(byte, count): (u8, usize)| vec![if byte % 2 == 0 { 0 } else { byte }; count];
            runs.into_iter().flat_map(run).collect()
        })
    }

    fn blocks_with_data(body: &[u8]) -> u64 {
        body.chunks(BLOCK).filter(|block| !is_zero_block(block)).count() as u64 * BLOCK as u64
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(body in bodies(), step in 1..9000usize) {
            let size = body.len() as u64;
            match encode(&body) {
                Some((stored, sparse)) => {
                    prop_assert_eq!(sparse.stored, stored.len() as u64);
                    prop_assert!(stored.len() < body.len() && sparse.stored <= most_stored(size));
                    prop_assert!(sparse.stored <= blocks_with_data(&body) + body.len() as u64 / 64 + 20);
                    prop_assert_eq!(decode(&stored, size, Some(&sparse), step).unwrap(), body);
                }
                None => prop_assert!(size * 7 <= blocks_with_data(&body) * 8),
            }
        }

        #[test]
        fn what_is_encoded_in_parts_is_decoded(body in bodies(), step in 1..9000usize, other in 1..9000usize) {
            let (stored, sparse) = streamed(&body, step);
            prop_assert!(stored.len() as u64 <= most_stored(body.len() as u64));
            prop_assert_eq!(decode(&stored, body.len() as u64, sparse.as_ref(), other).unwrap(), body);
        }

        /// A guest cuts bodies at blocks.
        #[test]
        fn what_comes_in_blocks_takes_no_more_than_its_data(body in bodies(), blocks in 1..300usize) {
            let (stored, _) = streamed(&body, blocks * BLOCK);
            let bound = blocks_with_data(&body) * 8 / 7 + 2 * SLACK + body.len() as u64 / 64;
            prop_assert!(stored.len() as u64 <= bound, "{} of {bound}", stored.len());
        }

        #[test]
        fn runs_are_the_bytes(body in bodies(), offset in 0..5000u64) {
            let all: Vec<u8> = runs(&body, offset).flat_map(|(run, _)| run.to_vec()).collect();
            prop_assert!(runs(&body, offset).all(|(run, is_zeros)| !is_zeros || run.iter().all(|byte| *byte == 0)));
            prop_assert_eq!(all, body);
        }

        #[test]
        fn no_bytes_panic(stored in proptest::collection::vec(any::<u8>(), 0..300), size in 0..1000u64, plain in 0..2000u64) {
            let sparse = Sparse { stored: stored.len() as u64, plain };
            if let Ok(body) = decode(&stored, size, Some(&sparse), 5) {
                prop_assert_eq!(body.len() as u64, size);
            }
        }
    }
}
