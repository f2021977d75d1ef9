//! Standard output: how wide it is, whether it has colours, and the tables that fit it.

use std::io::{self, IsTerminal, Write};

use console::{Style, Term};
use serde::Serialize;

/// Where a verb prints.
#[derive(Clone, Debug)]
pub(crate) struct Screen {
    json: bool,
    width: Option<usize>,
    colours: bool,
}

impl Screen {
    /// Standard output. Colours only on a terminal, and not where NO_COLOR is set or the terminal is dumb.
    pub(crate) fn new(json: bool) -> Self {
        let terminal = io::stdout().is_terminal();
        let width = if terminal {
            Term::stdout().size_checked().map(|(_, columns)| usize::from(columns))
        } else {
            None
        };
        Self { json, width, colours: terminal && console::colors_enabled() }
    }

    /// For tests: plain text of a known width.
    #[cfg(test)]
    pub(crate) fn fixed(width: Option<usize>) -> Self {
        Self { json: false, width, colours: false }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// How wide the terminal is; `None` where it is none, and lines may have any length.
    pub(crate) fn width(&self) -> Option<usize> {
        self.width
    }

    /// Prints a line.
    pub(crate) fn line(&self, line: impl AsRef<str>) -> io::Result<()> {
        self.text(&format!("{}\n", line.as_ref()))
    }

    /// Prints whole lines.
    pub(crate) fn text(&self, lines: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(lines.as_bytes())?;
        out.flush()
    }

    /// Prints a value as JSON, in one line.
    pub(crate) fn json(&self, value: &impl Serialize) -> io::Result<()> {
        self.line(serde_json::to_string(value)?)
    }

    /// Prints the value where JSON is asked for, otherwise the line.
    pub(crate) fn answer(&self, value: &impl Serialize, line: impl AsRef<str>) -> io::Result<()> {
        if self.json { self.json(value) } else { self.line(line) }
    }

    /// The text in a style, where there are colours.
    pub(crate) fn styled(&self, style: &Style, text: impl AsRef<str>) -> String {
        style.clone().force_styling(self.colours).apply_to(text.as_ref()).to_string()
    }
}
