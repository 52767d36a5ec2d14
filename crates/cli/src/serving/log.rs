//! The log of a background server: a file with a size, and two files that were full before it.

use anyhow::{Context, Result};
use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

pub const LOG: &str = "server.log";
/// A file that has reached this size is put aside.
const MOST: u64 = 10 << 20;

/// Opens the log for the server that a command starts.
pub fn open(data: &Path) -> Result<File> {
    let path = data.join(LOG);
    append(&path).with_context(|| format!("cannot write {}", path.display()))
}

fn append(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

/// Writes to stderr, which is the log, and begins a new file when it is full. What others write to stderr, such as panics, goes
/// to the same file. Clones share it.
#[derive(Debug, Clone)]
pub struct CappedLog {
    path: PathBuf,
    most: u64,
    turning: Arc<Mutex<()>>,
}

impl CappedLog {
    pub fn new(data: &Path) -> CappedLog {
        CappedLog { path: data.join(LOG), most: MOST, turning: Arc::default() }
    }

    fn size() -> u64 {
        rustix::fs::fstat(rustix::stdio::stderr())
            .map_or(0, |found| u64::try_from(found.st_size).unwrap_or(0))
    }

    /// Puts full files aside, the oldest goes, and points stderr to a new one.
    fn turn(&self) -> io::Result<()> {
        let older = |number: u32| self.path.with_extension(format!("log.{number}"));
        let _ = fs::rename(older(1), older(2));
        fs::rename(&self.path, older(1))?;
        rustix::stdio::dup2_stderr(append(&self.path)?)?;
        Ok(())
    }
}

impl Write for CappedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if Self::size() >= self.most {
            let _one = self.turning.lock().unwrap_or_else(PoisonError::into_inner);
            // A log that cannot be put aside grows on: its lines are worth more than its size.
            if Self::size() >= self.most {
                let _ = self.turn();
            }
        }
        io::stderr().lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines from an offset on, at most the last so many.
pub fn lines_from(data: &Path, offset: u64, most: usize) -> String {
    let Ok(bytes) = fs::read(data.join(LOG)) else { return String::new() };
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    let text = String::from_utf8_lossy(&bytes[from..]).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(most)..].join("\n")
}
