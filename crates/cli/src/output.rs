//! The one place that prints: text, tables and JSON to stdout, notes to stderr.

use anyhow::Result;
use serde::Serialize;
use std::{
    fmt::Display,
    io::{self, Write},
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

pub fn raw(bytes: &[u8]) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(closed_or)
}

pub fn line(text: impl Display) -> Result<()> {
    raw(format!("{text}\n").as_bytes())
}

pub fn json(value: &impl Serialize) -> Result<()> {
    line(serde_json::to_string_pretty(value)?)
}

/// One line an object, where several may come: programs read them one by one.
pub fn json_line(value: &impl Serialize) -> Result<()> {
    line(serde_json::to_string(value)?)
}

/// To stderr, best effort: a note that cannot be shown is no reason to fail.
pub fn note(text: impl Display) {
    error_line(&format_args!("seawall: {text}"));
}

pub fn error_line(text: &dyn Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

pub fn error_raw(bytes: &[u8]) {
    let _ = io::stderr().lock().write_all(bytes);
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

/// Names come from inside sandboxes: no control character of theirs reaches a terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// As [`printable`], for texts of several lines.
pub fn printable_lines(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect()
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
        assert_eq!(table.render(), "NAME\n?[2Jx\n");
    }

    #[test]
    fn a_broken_pipe_is_quiet() {
        assert!(closed_or(io::ErrorKind::BrokenPipe.into()).is::<Closed>());
        assert!(!closed_or(io::ErrorKind::StorageFull.into()).is::<Closed>());
    }
}
