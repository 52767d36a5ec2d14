//! Trees to measure with: always the same, and of no use to a compressor.

use anyhow::Result;
use std::{fs, path::Path};

const PER_DIR: usize = 100;

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Files of 0 to 8 KiB, 4 on average.
pub fn make(root: &Path, files: usize) -> Result<()> {
    write(root, files, |numbers| (numbers.next() % 8193) as usize)
}

/// Files of a few bytes.
pub fn make_small(root: &Path, files: usize) -> Result<()> {
    write(root, files, |numbers| (numbers.next() % 16) as usize)
}

fn write(root: &Path, files: usize, size: impl Fn(&mut Numbers) -> usize) -> Result<()> {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for number in 0..files {
        let dir = root.join(format!("d{}", number / PER_DIR));
        if number % PER_DIR == 0 {
            fs::create_dir_all(&dir)?;
        }
        let mut body = Vec::with_capacity(8200);
        let size = size(&mut numbers);
        while body.len() < size {
            body.extend_from_slice(&numbers.next().to_le_bytes());
        }
        body.truncate(size);
        fs::write(dir.join(format!("f{number}")), body)?;
    }
    Ok(())
}
