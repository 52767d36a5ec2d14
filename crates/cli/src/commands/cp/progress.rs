//! How far a copy is: a bar on stderr where that is a terminal, and nothing elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

const LINE: &str = "{bytes} of {total_bytes} {wide_bar} {bytes_per_sec}, {msg}";

#[derive(Clone)]
pub struct Progress {
    bar: ProgressBar,
    files: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
    left_out: Arc<AtomicU64>,
}

impl Progress {
    pub fn new() -> Self {
        // Hides itself where stderr is no terminal.
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template(LINE) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress { bar, files: Arc::default(), bytes: Arc::default(), left_out: Arc::default() }
    }

    /// There is this much more to do.
    pub fn expect(&self, bytes: u64) {
        self.bar.inc_length(bytes);
    }

    pub fn moved(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.bar.inc(bytes as u64);
    }

    pub fn file_done(&self) {
        let files = self.files.fetch_add(1, Ordering::Relaxed) + 1;
        self.bar.set_message(format!("{files} files"));
    }

    /// Above the bar, so that neither spoils the other.
    pub fn warn(&self, text: &str) {
        self.bar.suspend(|| crate::output::note(crate::output::printable(text)));
    }

    /// Something that should have been copied was not.
    pub fn leave_out(&self, text: &str) {
        self.left_out.fetch_add(1, Ordering::Relaxed);
        self.warn(text);
    }

    /// Whether everything was copied.
    pub fn is_whole(&self) -> bool {
        self.left_out.load(Ordering::Relaxed) == 0
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Files and bytes.
    pub fn totals(&self) -> (u64, u64) {
        (self.files.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}
