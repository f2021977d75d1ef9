//! A table that is one on a wide screen, and a list of cards on a narrow one.
//!
//! The roles are spelled out, as a browser forgets those of a table that is laid out in another way.

use maud::{Markup, Render, html};

/// A table under construction.
pub(super) struct Table {
    caption: String,
    columns: Vec<Column>,
    rows: Vec<(String, Vec<Markup>)>,
    empty: String,
}

/// A column's heading.
pub(super) struct Column {
    heading: &'static str,
    class: &'static str,
}

/// Of text.
pub(super) fn text(heading: &'static str) -> Column {
    Column { heading, class: "" }
}

/// Of names: no narrower than most of them are.
pub(super) fn name(heading: &'static str) -> Column {
    Column { heading, class: "name" }
}

/// Of event types and the like, in code.
pub(super) fn kind(heading: &'static str) -> Column {
    Column { heading, class: "kind" }
}

/// Of names that are short, as a rule.
pub(super) fn short(heading: &'static str) -> Column {
    Column { heading, class: "short" }
}

/// Of numbers.
pub(super) fn number(heading: &'static str) -> Column {
    Column { heading, class: "number" }
}

/// Of text that is long: it takes the room there is.
pub(super) fn wide(heading: &'static str) -> Column {
    Column { heading, class: "wide" }
}

impl Table {
    /// The first column names the row.
    pub(super) fn new(caption: impl Into<String>, columns: impl IntoIterator<Item = Column>) -> Self {
        Self {
            caption: caption.into(),
            columns: columns.into_iter().collect(),
            rows: Vec::new(),
            empty: "None.".to_owned(),
        }
    }

    /// What stands there instead of no rows.
    pub(super) fn or(self, empty: impl Into<String>) -> Self {
        Self { empty: empty.into(), ..self }
    }

    /// A row, with what tells it from the others when the page is refreshed.
    pub(super) fn row(&mut self, key: impl Into<String>, cells: impl IntoIterator<Item = Markup>) {
        self.rows.push((key.into(), cells.into_iter().collect()));
    }
}

impl Render for Table {
    fn render(&self) -> Markup {
        html! {
            table role="table" {
                caption { (self.caption) }
                @if self.rows.is_empty() {
                    tbody role="rowgroup" { tr role="row" { td.empty role="cell" { (self.empty) } } }
                } @else {
                    thead role="rowgroup" {
                        tr role="row" {
                            @for column in &self.columns {
                                th.(column.class) scope="col" role="columnheader" { (column.heading) }
                            }
                        }
                    }
                    tbody role="rowgroup" {
                        @for (key, cells) in &self.rows {
                            tr role="row" data-key=(key) {
                                @for (n, (column, cell)) in self.columns.iter().zip(cells).enumerate() {
                                    @if n == 0 {
                                        th.(column.class) scope="row" role="rowheader" { (cell) }
                                    } @else {
                                        td.(column.class) role="cell" data-label=(column.heading) { div { (cell) } }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
