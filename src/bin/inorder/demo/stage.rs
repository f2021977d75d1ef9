//! Where the demonstration is seen: bars that move on a terminal, plain lines elsewhere, nothing where JSON is asked for.

use std::io::{self, IsTerminal};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use console::Style;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use inorder::{ConsumerStatus, Progress};

use super::shop::Trade;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::status::style_of;
use crate::table::wrapped;
use crate::words::count;

/// How often plain lines tell how far it is.
const PLAIN_EVERY: Duration = Duration::from_secs(2);

pub(super) struct Stage<'a> {
    pub(super) screen: &'a Screen,
    began: Instant,
    length: Duration,
    show: Show,
}

enum Show {
    Bars { all: MultiProgress, producers: ProgressBar, consumers: Vec<ProgressBar> },
    Lines { told: Mutex<Instant> },
    Nothing,
}

impl<'a> Stage<'a> {
    /// The curtain is still down; `length` is how long producers work.
    pub(super) fn new(screen: &'a Screen, length: Duration) -> Self {
        let show = match (screen.is_json(), screen.width().is_some() && io::stderr().is_terminal()) {
            (true, _) => Show::Nothing,
            (false, false) => Show::Lines { told: Mutex::new(Instant::now()) },
            (false, true) => Show::Bars {
                all: MultiProgress::new(),
                producers: ProgressBar::hidden(),
                consumers: Vec::new(),
            },
        };
        Self { screen, began: Instant::now(), length, show }
    }

    /// Producers and consumers begin.
    pub(super) fn begin(&mut self, names: &[&str]) {
        self.began = Instant::now();
        match &mut self.show {
            Show::Bars { all, producers, consumers } => {
                *producers = bar(all, "producers", self.length.as_millis().try_into().unwrap_or(u64::MAX));
                *consumers = names.iter().map(|name| bar(all, name, 1)).collect();
            }
            Show::Lines { told } => *told = Mutex::new(Instant::now()),
            Show::Nothing => {}
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Prints lines above the bars.
    pub(super) fn say(&self, lines: impl IntoIterator<Item = String>) -> Result<(), Failure> {
        let mut text: String = lines.into_iter().map(|line| line + "\n").collect();
        match &self.show {
            Show::Nothing => text.clear(),
            Show::Lines { .. } => self.screen.text(&text)?,
            Show::Bars { all, .. } => all.suspend(|| self.screen.text(&text))?,
        }
        Ok(())
    }

    /// Prints a sentence, in lines that fit.
    pub(super) fn tell(&self, text: &str) -> Result<(), Failure> {
        self.say(wrapped(text, "", self.screen.width().unwrap_or(100)))
    }

    /// Something happens: a sentence with its time in front.
    pub(super) fn happens(&self, what: &str) -> Result<(), Failure> {
        let time = format!("{:>5.1} s  ", self.elapsed().as_secs_f64());
        let width = self.screen.width().unwrap_or(100).saturating_sub(time.len());
        let mut lines = wrapped(what, "", width);
        for (i, line) in lines.iter_mut().enumerate() {
            let margin =
                if i == 0 { self.screen.styled(&Style::new().dim(), &time) } else { " ".repeat(time.len()) };
            *line = margin + line;
        }
        lines.insert(0, String::new());
        self.say(lines)
    }

    /// What an operator types.
    pub(super) fn command(&self, command: &str) -> Result<(), Failure> {
        let prompt = self.screen.styled(&Style::new().dim(), "$");
        self.say([String::new(), format!("{prompt} {}", self.screen.styled(&Style::new().bold(), command))])
    }

    /// How far everybody is.
    pub(super) fn update(&self, trade: &Trade, progress: &[Progress]) -> Result<(), Failure> {
        match &self.show {
            Show::Nothing => Ok(()),
            Show::Bars { producers, consumers, .. } => {
                let passed = self.elapsed().as_millis().try_into().unwrap_or(u64::MAX);
                producers.set_position(passed);
                producers.set_message(padded(&format!("{} orders", count(trade.committed()))));
                for bar in consumers {
                    if let Some(c) = progress.iter().find(|c| c.name == bar.prefix().trim()) {
                        bar.set_length((c.position + c.lag).max(1).unsigned_abs());
                        bar.set_position(c.position.unsigned_abs());
                        bar.set_message(self.screen.styled(&style_of(c.status), padded(&standing(c))));
                    }
                }
                Ok(())
            }
            Show::Lines { told } => {
                let mut told = told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if told.elapsed() < PLAIN_EVERY {
                    return Ok(());
                }
                *told = Instant::now();
                drop(told);
                let mut names: Vec<&Progress> = progress.iter().collect();
                names.sort_by_key(|c| &c.name);
                let mut parts = vec![format!("{} orders", count(trade.committed()))];
                parts.extend(names.iter().map(|c| format!("{} {}", c.name, standing(c))));
                self.say([format!("{:>5.1} s  {}", self.elapsed().as_secs_f64(), parts.join(" · "))])
            }
        }
    }

    /// The bars go.
    pub(super) fn end(&self) {
        if let Show::Bars { all, producers, consumers } = &self.show {
            for bar in consumers.iter().chain([producers]) {
                bar.finish_and_clear();
            }
            // What is left is a cursor to show; nobody is there if that fails.
            let _ = all.clear();
        }
    }
}

fn standing(c: &Progress) -> String {
    match c.status {
        ConsumerStatus::Idle if c.lag == 0 => "at the head".into(),
        ConsumerStatus::Idle => format!("{} behind", count(c.lag)),
        status => format!("{status}, {} behind", count(c.lag)),
    }
}

/// The bars keep their width while words change.
fn padded(text: &str) -> String {
    format!("{text:<21}")
}

fn bar(all: &MultiProgress, name: &str, length: u64) -> ProgressBar {
    // Added before it has anything to show: on its own it would draw itself at once.
    let bar = all.add(ProgressBar::new(length).with_prefix(format!("{name:<18}")));
    if let Ok(style) = ProgressStyle::with_template("  {prefix} {wide_bar:.cyan/dim} {msg}") {
        bar.set_style(style.progress_chars("━━─"));
    }
    bar.set_message(padded(""));
    bar
}
