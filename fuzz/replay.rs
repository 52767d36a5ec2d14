//! A short run of a fuzz target on a stable compiler: the corpus that is kept for it, and inputs that are made from
//! it, the same ones each time.
//!
//! Tests of the crates include this file. `SEAWALL_FUZZ_RUNS` is another number of inputs.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
};

/// No input becomes longer than that.
const LONGEST: usize = 4096;

/// Runs a target on its corpus, and on so many inputs beside it.
pub fn replay(target: &str, runs: usize, run: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    let seeds: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    for (path, seed) in paths.iter().zip(&seeds) {
        guarded(target, &path.display().to_string(), seed, &run);
    }
    let runs = std::env::var("SEAWALL_FUZZ_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(runs);
    let mut random = Random::new(target);
    for number in 0..runs {
        let input = random.input(&seeds);
        guarded(target, &format!("made input {number}"), &input, &run);
    }
}

/// Shows the input on which the target panicked.
fn guarded(target: &str, name: &str, input: &[u8], run: &impl Fn(&[u8])) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(input))) {
        eprintln!("the fuzz target `{target}` panicked on {name}: \"{}\"", input.escape_ascii());
        resume_unwind(panic);
    }
}

/// SplitMix64: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn new(name: &str) -> Random {
        Random(
            name.bytes()
                .fold(0x5ea_0a11, |sum, byte| u64::wrapping_mul(sum, 31).wrapping_add(u64::from(byte))),
        )
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below a number, which is not zero.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn choose<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// A place in a text, or behind it.
    fn place(&mut self, bytes: &[u8]) -> usize {
        self.below(bytes.len() + 1)
    }

    fn input(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut input = self.choose(seeds).clone();
        for _ in 0..1 + self.below(4) {
            self.change(&mut input, seeds);
            input.truncate(LONGEST);
        }
        input
    }

    /// As fuzzers do: bits, bytes, numbers, parts that are gone, repeated, or of another input.
    fn change(&mut self, input: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        const ODD: [&[u8]; 16] = [
            b"\0",
            b"\xff",
            b"\x80",
            b"\n",
            b"\r\n",
            b"\"",
            b"\\",
            b"{",
            b"}",
            b"[",
            b",",
            b":",
            b"-1",
            b"18446744073709551616",
            b"..",
            b"%2e",
        ];
        let (from, to) = (self.place(input), self.place(input));
        let (from, to) = (from.min(to), from.max(to));
        match self.below(8) {
            0 if !input.is_empty() => {
                let at = self.below(input.len());
                input[at] ^= 1 << self.below(8);
            }
            1 if !input.is_empty() => {
                let at = self.below(input.len());
                input[at] = self.next() as u8;
            }
            2 => drop(input.drain(from..to)),
            3 => {
                let part = input[from..to].to_vec();
                input.splice(to..to, part);
            }
            4 => input.truncate(to),
            5 => {
                let other = self.choose(seeds);
                let (first, last) = (self.place(other), self.place(other));
                let part = other[first.min(last)..first.max(last)].to_vec();
                input.splice(from..to, part);
            }
            6 => {
                let at = self.place(input);
                let byte = self.next() as u8;
                input.insert(at, byte);
            }
            _ => {
                let odd = self.choose(&ODD).to_vec();
                input.splice(from..from, odd);
            }
        }
    }
}
