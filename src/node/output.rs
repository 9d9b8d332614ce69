//! What goes to stdout and stderr: data and the rest, tables, colours, escaping.

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
pub use longhaul_core::text::{cut, escape, escape_line};

/// The form of data on stdout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables and lines for people.
    #[default]
    Human,
    /// JSON for programs.
    Json,
}

/// A colour with a meaning; never the only sign of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// As the terminal has it.
    Plain,
    /// Good.
    Good,
    /// Bad.
    Bad,
    /// To be looked at.
    Warn,
    /// Beside the point.
    Dim,
    /// Headings.
    Strong,
}

impl Tone {
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Good => "\u{1b}[32m",
            Self::Bad => "\u{1b}[31m",
            Self::Warn => "\u{1b}[33m",
            Self::Dim => "\u{1b}[2m",
            Self::Strong => "\u{1b}[1m",
        }
    }
}

/// Whether colours may be used on a stream.
fn colours(is_terminal: bool) -> bool {
    is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Whether colours may be used on stdout.
#[must_use]
pub fn stdout_colours() -> bool {
    colours(io::stdout().is_terminal())
}

/// Whether colours may be used on stderr.
#[must_use]
pub fn stderr_colours() -> bool {
    colours(io::stderr().is_terminal())
}

/// A text in a tone, if colours may be used.
#[must_use]
pub fn paint(text: &str, tone: Tone, colours: bool) -> String {
    if colours && tone != Tone::Plain { format!("{}{text}\u{1b}[0m", tone.code()) } else { text.to_owned() }
}

/// A table for people: columns as wide as their widest cell, two blanks between.
#[derive(Debug, Default)]
pub struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<(String, Tone)>>,
}

impl Table {
    /// A table with these column heads.
    #[must_use]
    pub fn new(header: &[&'static str]) -> Self {
        Self { header: header.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; cells are escaped here.
    pub fn row(&mut self, cells: impl IntoIterator<Item = (String, Tone)>) {
        self.rows.push(cells.into_iter().map(|(text, tone)| (escape_line(&text), tone)).collect());
    }

    /// The whole table as text, each line ended.
    #[must_use]
    pub fn render(&self, colours: bool) -> String {
        let columns = self.header.len();
        let mut widths: Vec<usize> = self.header.iter().map(|head| head.chars().count()).collect();
        for row in &self.rows {
            for (index, (text, _)) in row.iter().enumerate().take(columns) {
                widths[index] = widths[index].max(text.chars().count());
            }
        }
        let mut out = String::new();
        let head: Vec<(String, Tone)> = self.header.iter().map(|head| ((*head).to_owned(), Tone::Strong)).collect();
        for row in std::iter::once(&head).chain(&self.rows) {
            let mut line = String::new();
            for (index, (text, tone)) in row.iter().enumerate().take(columns) {
                line.push_str(&paint(text, *tone, colours));
                if index + 1 < row.len() {
                    let gap = widths[index].saturating_sub(text.chars().count()) + 2;
                    line.extend(std::iter::repeat_n(' ', gap));
                }
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

/// Writes data to stdout.
///
/// # Errors
///
/// The stream cannot be written; a reader that went away is no error of the command, and
/// is told apart by its kind at the edge.
pub fn data(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Writes a value as JSON to stdout, on lines of its own.
///
/// # Errors
///
/// As [`data`].
pub fn json<T: serde::Serialize>(value: &T) -> io::Result<()> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    data(&text)
}

/// Writes a line for people to stderr; that nobody reads it is no reason to stop.
pub fn note(text: &str) {
    let _unread = writeln!(io::stderr().lock(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_lines_up_and_has_no_trailing_blanks() {
        let mut table = Table::new(&["task", "verdict"]);
        table.row([("calc/sum".to_owned(), Tone::Plain), ("passed".to_owned(), Tone::Good)]);
        table.row([("x".to_owned(), Tone::Plain), (String::new(), Tone::Plain)]);
        assert_eq!(table.render(false), "task      verdict\ncalc/sum  passed\nx\n");
        assert!(table.render(true).contains("\u{1b}[32mpassed\u{1b}[0m"));
    }
}
