//! Tables that fit the terminal.

use std::io;

use console::{Style, measure_text_width, truncate_str};

use crate::screen::Screen;
use crate::words::plain;

/// On which side a column's text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// Rows under a line of titles. The last column, the remark, may hold a sentence: it stands beside the others where there is
/// room for all of them, otherwise each beneath its row, so that nothing of it is cut off.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Side)>,
    remark: &'static str,
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    cells: Vec<(String, Style)>,
    remark: String,
}

const GAP: &str = "  ";
/// The first column is cut down to this where it must be.
const NARROWEST: usize = 12;

impl Table {
    pub(crate) fn new(columns: impl Into<Vec<(&'static str, Side)>>, remark: &'static str) -> Self {
        Self { columns: columns.into(), remark, rows: Vec::new() }
    }

    /// Adds a row; the texts may hold whatever a user put into the database.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = (String, Style)>, remark: &str) {
        let cells = cells.into_iter().map(|(text, style)| (plain(&text), style)).collect();
        self.rows.push(Row { cells, remark: plain(remark) });
    }

    /// The lines, at the width that the screen has.
    pub(crate) fn lines(&self, screen: &Screen) -> Vec<String> {
        let mut widths: Vec<usize> = (0..self.columns.len()).map(|i| self.natural_width(i)).collect();
        let total =
            |widths: &[usize]| widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1);
        let limit = screen.width().unwrap_or(usize::MAX);
        if let Some(excess) = total(&widths).checked_sub(limit).filter(|n| *n > 0) {
            let least = widths[0].min(NARROWEST);
            widths[0] = widths[0].saturating_sub(excess).max(least);
        }
        let remarks = self.rows.iter().map(|row| measure_text_width(&row.remark)).max().unwrap_or(0);
        let beside = remarks == 0 || total(&widths).saturating_add(GAP.len() + remarks) <= limit;
        let titles = self.columns.iter().map(|(title, _)| (title.to_string(), Style::new().bold()));
        let mut lines = vec![self.line(
            screen,
            titles,
            &widths,
            if beside && remarks > 0 { self.remark } else { "" },
            true,
        )];
        for row in &self.rows {
            let remark = if beside { row.remark.as_str() } else { "" };
            lines.push(self.line(screen, row.cells.iter().cloned(), &widths, remark, false));
            if !beside {
                lines.extend(wrapped(&row.remark, "    ", limit));
            }
        }
        lines
    }

    /// Prints it.
    pub(crate) fn show(&self, screen: &Screen) -> io::Result<()> {
        self.lines(screen).into_iter().try_for_each(|line| screen.line(line))
    }

    fn natural_width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.cells.get(column)).map(|(text, _)| text.as_str());
        let texts = cells.chain([self.columns[column].0]);
        texts.map(measure_text_width).max().unwrap_or(0)
    }

    fn line(
        &self,
        screen: &Screen,
        cells: impl Iterator<Item = (String, Style)>,
        widths: &[usize],
        remark: &str,
        titles: bool,
    ) -> String {
        let mut line = String::new();
        for ((cell, style), ((_, side), width)) in cells.zip(self.columns.iter().zip(widths)) {
            if !line.is_empty() {
                line.push_str(GAP);
            }
            let cell = truncate_str(&cell, *width, "…");
            let padding = " ".repeat(width.saturating_sub(measure_text_width(&cell)));
            let cell = screen.styled(&style, cell);
            match side {
                Side::Left => line.extend([cell, padding]),
                Side::Right => line.extend([padding, cell]),
            }
        }
        if !remark.is_empty() {
            line.push_str(GAP);
            let style = if titles { Style::new().bold() } else { Style::new() };
            line.push_str(&screen.styled(&style, remark));
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// The text in lines of at most `limit`, broken between words, each behind `indent`. A longer word stays whole.
pub(crate) fn wrapped(text: &str, indent: &str, limit: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if measure_text_width(line) + 1 + measure_text_width(word) <= limit => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(format!("{indent}{word}")),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new([("CONSUMER", Side::Left), ("LAG", Side::Right)], "LAST ERROR");
        let row = |name: &str, lag: &str| [name, lag].map(|text| (text.to_owned(), Style::new()));
        table.row(row("orders-by-customer", "0"), "");
        table.row(row("revenue", "3,001"), "event 17000 (order.placed):\nnegative \u{1b}[31mtotal");
        table
    }

    #[test]
    fn a_remark_stands_beside_where_there_is_room() {
        let lines = table().lines(&Screen::fixed(None));
        let want = [
            "CONSUMER              LAG  LAST ERROR",
            "orders-by-customer      0",
            "revenue             3,001  event 17000 (order.placed): negative  [31mtotal",
        ];
        assert_eq!(lines, want);
    }

    #[test]
    fn a_remark_stands_beneath_and_whole_where_there_is_none() {
        let lines = table().lines(&Screen::fixed(Some(34)));
        let want = [
            "CONSUMER              LAG",
            "orders-by-customer      0",
            "revenue             3,001",
            "    event 17000 (order.placed):",
            "    negative [31mtotal",
        ];
        assert_eq!(lines, want);
    }

    #[test]
    fn a_long_name_gives_way_to_the_numbers() {
        let lines = table().lines(&Screen::fixed(Some(20)));
        assert_eq!(lines[1], "orders-by-cu…      0");
    }
}
