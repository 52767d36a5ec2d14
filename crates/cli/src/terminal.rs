//! Our terminal: raw while a remote one is shown on it, and as it was afterwards.

use anyhow::{Context, Result};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use seawall_api::exec::TtySize;
use std::io;

/// Raw mode of stdin, until it is dropped; a panic drops it too.
pub struct RawMode {
    before: Termios,
}

impl RawMode {
    /// None where stdin is no terminal, and there is nothing to set.
    pub fn enter() -> Result<Option<RawMode>> {
        let stdin = io::stdin();
        let Ok(before) = tcgetattr(&stdin) else { return Ok(None) };
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Now, &raw).context("cannot put the terminal into raw mode")?;
        Ok(Some(RawMode { before }))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // Draining first: what the remote printed is shown under the rules it was printed for.
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}

/// The size of our terminal; the usual one where there is none.
pub fn size() -> TtySize {
    let size = tcgetwinsize(io::stdout()).or_else(|_| tcgetwinsize(io::stdin()));
    match size {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => TtySize { rows: size.ws_row, cols: size.ws_col },
        _ => TtySize::default(),
    }
}
