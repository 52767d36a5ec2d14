//! The one place that prints: text, tables and JSON to stdout, notes to stderr.
//!
//! All of it is made safe for a terminal ([`escape`]), whoever wrote it, but for [`raw`] and [`error_raw`], which are
//! for bytes that are their command's own output.

mod escape;

pub use escape::{Screen, printable, printable_log};

use anyhow::Result;
use escape::{printable_json, printable_lines};
use serde::Serialize;
use std::{
    fmt::Display,
    io::{self, IsTerminal, Write},
};

/// The longest cell of a table, in characters.
const MAX_CELL: usize = 200;

/// Whoever read our output has gone, as `head` does. Not worth a word.
#[derive(Debug)]
pub struct Closed;

impl Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("nobody reads the output any more")
    }
}

impl std::error::Error for Closed {}

/// A broken pipe is [`Closed`], everything else stays.
pub fn closed_or(error: io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Closed.into(),
        _ => anyhow::Error::from(error).context("cannot write to stdout"),
    }
}

/// Bytes as they are.
pub fn raw(bytes: &[u8]) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(closed_or)
}

/// A line, or several.
pub fn line(text: impl Display) -> Result<()> {
    raw(format!("{}\n", printable_lines(&text.to_string())).as_bytes())
}

pub fn json(value: &impl Serialize) -> Result<()> {
    json_text(&serde_json::to_string_pretty(value)?)
}

/// One line an object, where several may come: programs read them one by one.
pub fn json_line(value: &impl Serialize) -> Result<()> {
    json_text(&serde_json::to_string(value)?)
}

fn json_text(json: &str) -> Result<()> {
    raw(format!("{}\n", printable_json(json)).as_bytes())
}

/// To stderr, best effort: a note that cannot be shown is no reason to fail.
pub fn note(text: impl Display) {
    error_line(&format_args!("seawall: {text}"));
}

pub fn error_line(text: &dyn Display) {
    error_raw(format!("{}\n", printable_lines(&text.to_string())).as_bytes());
}

/// As [`error_line`], dim where stderr is a terminal: what is beside the answer.
pub fn aside(text: &str) {
    let text = printable_lines(text);
    match io::stderr().is_terminal() {
        true => error_raw(format!("\x1b[2m{text}\x1b[0m\n").as_bytes()),
        false => error_raw(format!("{text}\n").as_bytes()),
    }
}

pub fn error_json(value: &serde_json::Value) {
    error_raw(format!("{}\n", printable_json(&value.to_string())).as_bytes());
}

/// Bytes as they are, to stderr.
pub fn error_raw(bytes: &[u8]) {
    let _ = io::stderr().lock().write_all(bytes);
}

/// Where the log goes: stderr. On a terminal nothing of its values does anything but show itself.
#[derive(Debug, Clone, Copy)]
pub struct LogWriter {
    pub json: bool,
}

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut stderr = io::stderr().lock();
        if !stderr.is_terminal() {
            return stderr.write(bytes);
        }
        let text = String::from_utf8_lossy(bytes);
        match self.json {
            true => stderr.write_all(printable_json(&text).as_bytes())?,
            false => stderr.write_all(printable_log(&text).as_bytes())?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}

/// Columns for people: as wide as their widest cell, the last one unpadded.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(header: &[&str]) -> Self {
        Table { rows: vec![header.iter().map(|&name| name.to_owned()).collect()] }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| shortened(&printable(cell))).collect());
    }

    pub fn print(&self) -> Result<()> {
        raw(self.render().as_bytes())
    }

    fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// A cell is for people to look at; `--json` has the whole.
fn shortened(cell: &str) -> String {
    match cell.char_indices().nth(MAX_CELL) {
        Some((at, _)) => format!("{}…", &cell[..at]),
        None => cell.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["ID", "STATE"]);
        table.row(vec!["abcdef".into(), "running".into()]);
        table.row(vec!["x".into(), String::new()]);
        assert_eq!(table.render(), "ID      STATE\nabcdef  running\nx\n");
    }

    #[test]
    fn a_cell_is_never_too_long() {
        let mut table = Table::new(&["COMMAND", "X"]);
        table.row(vec!["ü".repeat(70_000), "x".into()]);
        assert!(table.render().lines().all(|line| line.chars().count() < MAX_CELL + 10));
    }

    #[test]
    fn a_name_cannot_drive_the_terminal() {
        let mut table = Table::new(&["NAME"]);
        table.row(vec!["\x1b[2Jx".into()]);
        assert_eq!(table.render(), "NAME\n\\u{1b}[2Jx\n");
    }

    #[test]
    fn a_broken_pipe_is_quiet() {
        assert!(closed_or(io::ErrorKind::BrokenPipe.into()).is::<Closed>());
        assert!(!closed_or(io::ErrorKind::StorageFull.into()).is::<Closed>());
    }
}
