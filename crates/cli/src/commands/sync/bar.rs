//! How far a sync is: a bar on stderr where that is a terminal, and nothing elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use seawall_sync::engine::{Phase, Progress};
use std::time::Duration;

const LINE: &str = "{msg} {bytes} of {total_bytes} {wide_bar} {bytes_per_sec}";
const WAITING: &str = "{msg} {spinner}";

#[derive(Debug)]
pub struct Bar(ProgressBar);

impl Bar {
    pub fn new() -> Bar {
        let bar = ProgressBar::new(0);
        bar.enable_steady_tick(Duration::from_millis(200));
        Bar(bar)
    }

    pub fn finish(&self) {
        self.0.finish_and_clear();
    }

    fn show(&self, template: &str, message: String, total: u64) {
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.0.set_style(style);
        }
        self.0.set_message(message);
        self.0.set_position(0);
        self.0.set_length(total);
    }
}

impl Progress for Bar {
    fn phase(&self, phase: Phase) {
        match phase {
            Phase::Scanning => self.show(WAITING, "looking at the files".into(), 0),
            Phase::Looking => self.show(WAITING, "looking at the bucket".into(), 0),
            Phase::Uploading { files, bytes } => self.show(LINE, format!("uploading {files} files:"), bytes),
            Phase::Committing => self.show(WAITING, "committing the version".into(), 0),
            Phase::Downloading { files, bytes } => {
                self.show(LINE, format!("downloading {files} files:"), bytes)
            }
            Phase::Agreeing => self.show(WAITING, "writing the state file".into(), 0),
        }
    }

    fn moved(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}
