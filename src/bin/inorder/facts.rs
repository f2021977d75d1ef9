//! What is known of one thing, a line each.

use console::{Style, measure_text_width};

use crate::screen::Screen;
use crate::table::wrapped;
use crate::words::plain;

/// Facts under titles.
#[derive(Debug, Default)]
pub(crate) struct Facts(Vec<Fact>);

#[derive(Debug)]
struct Fact {
    title: &'static str,
    text: String,
    style: Style,
    /// Every blank of it counts.
    verbatim: bool,
}

/// How wide titles are.
const TITLE: usize = 13;

impl Facts {
    /// The text may hold whatever a user put into the database.
    pub(crate) fn say(&mut self, title: &'static str, text: impl Into<String>) {
        self.say_in(title, text, Style::new());
    }

    pub(crate) fn say_in(&mut self, title: &'static str, text: impl Into<String>, style: Style) {
        self.0.push(Fact { title, text: plain(&text.into()), style, verbatim: false });
    }

    /// Said as it is, however long.
    pub(crate) fn quote(&mut self, title: &'static str, text: &str) {
        self.0.push(Fact { title, text: plain(text), style: Style::new(), verbatim: true });
    }

    pub(crate) fn lines(&self, screen: &Screen) -> Vec<String> {
        let margin = " ".repeat(TITLE);
        let mut lines = Vec::new();
        for fact in &self.0 {
            let width = screen.width().unwrap_or(usize::MAX);
            let parts = match fact.verbatim || measure_text_width(&fact.text).saturating_add(TITLE) <= width {
                true => vec![format!("{margin}{}", fact.text)],
                false => wrapped(&fact.text, &margin, width),
            };
            let mut title = format!("{:<TITLE$}", fact.title);
            for part in parts {
                let text = screen.styled(&fact.style, &part[TITLE..]);
                lines.push(format!("{}{text}", screen.styled(&Style::new().bold(), title)));
                title = margin.clone();
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_fact_goes_on_under_its_beginning_and_a_quotation_stays_whole() {
        let mut facts = Facts::default();
        facts.say("error", "no such\ncard");
        facts.say("what to do", "repair it and restart");
        facts.quote("content", "{\"a\":  \"a long one\"}");
        let lines = facts.lines(&Screen::fixed(Some(26)));
        let want = [
            "error        no such card",
            "what to do   repair it and",
            "             restart",
            "content      {\"a\":  \"a long one\"}",
        ];
        assert_eq!(lines, want);
    }
}
