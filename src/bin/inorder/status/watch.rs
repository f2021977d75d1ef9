//! `inorder status --watch`: the same, again and again, with what moves.
//!
//! On a terminal a view that is drawn anew in place; elsewhere a block each time, and with --json a line. A server that is away does not
//! end it: what was seen last stays, with the reason and its age, until there is an answer again.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use console::Style;
use inorder::{Admin, Config};
use serde::Serialize;
use time::OffsetDateTime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;

use super::{Args, Status, name};
use crate::failure::{Failure, tell};
use crate::interrupt::Interrupt;
use crate::options::Options;
use crate::screen::Screen;
use crate::table::wrapped;
use crate::terminal::{self, FullScreen};
use crate::words::{count, duration, moment};

/// Over how long speeds are taken.
const WINDOW: Duration = Duration::from_secs(5);
/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

type Answer = Result<Status, inorder::Error>;
type Asking<'a> = Pin<Box<dyn Future<Output = Answer> + Send + 'a>>;

pub(super) async fn run(
    args: &Args,
    options: &Options,
    screen: &Screen,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let beginning = async {
        let adjust = |config| Config { statement_timeout: PATIENCE, ..config };
        let log = options.connect_with("status", adjust).await?;
        log.check_schema().await?;
        let admin = log.admin();
        let status = Status::of(&admin, args.consumer.as_deref()).await?;
        Ok((admin, status))
    };
    let (admin, status) = interrupt.ends(beginning).await?;
    let mut view = View::new(args.interval);
    view.hear(Ok(status));
    let show = match screen.is_json() {
        true => Show::Lines,
        false if terminal::is_there() => Show::Whole(FullScreen::take()?),
        false => Show::Blocks,
    };
    let watched = watch(&admin, args, &mut view, &show, interrupt).await;
    drop(show);
    watched
}

/// Where it is seen.
enum Show {
    Whole(FullScreen),
    Blocks,
    Lines,
}

/// Until q, or Ctrl-C, which ends it well: it ends no other way.
async fn watch(
    admin: &Admin,
    args: &Args,
    view: &mut View,
    show: &Show,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let failed = |e| Failure::failed(format!("listening for the terminal's size: {e}"));
    let mut resized = signal(SignalKind::window_change()).map_err(failed)?;
    let mut keys = match show {
        Show::Whole(_) => terminal::keys(),
        _ => tokio::sync::mpsc::channel(1).1,
    };
    let mut ticks = tokio::time::interval(args.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first is at once, and what is seen at first is known already.
    ticks.tick().await;
    let mut asking: Option<Asking<'_>> = None;
    view.show(show)?;
    loop {
        tokio::select! {
            biased;
            () = interrupt.wait() => return Ok(()),
            Some(key) = keys.recv() => {
                if matches!(key, b'q' | b'Q') {
                    return Ok(());
                }
            }
            Some(()) = resized.recv() => view.redraw(show)?,
            answer = answered(&mut asking) => {
                asking = None;
                view.hear(answer);
                view.show(show)?;
            }
            _ = ticks.tick() => match asking {
                // Still waiting: what is shown grows older.
                Some(_) => view.redraw(show)?,
                None => asking = Some(Box::pin(Status::of(admin, args.consumer.as_deref()))),
            },
        }
    }
}

/// Never, while nothing is asked.
async fn answered(asking: &mut Option<Asking<'_>>) -> Answer {
    match asking {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

/// What is known, and since when.
struct View {
    interval: Duration,
    latest: Option<(Status, OffsetDateTime, Instant)>,
    /// Why there was no answer the last time.
    trouble: Option<String>,
    past: VecDeque<Moment>,
}

/// What moves, as it was.
struct Moment {
    at: Instant,
    head: i64,
    /// By consumer: events handled, and the lag.
    rows: HashMap<String, (i64, i64)>,
}

/// How fast things move.
#[derive(Debug, Default, Serialize)]
pub(super) struct Speeds {
    /// Ids taken a second.
    pub(super) appended: Option<f64>,
    /// By consumer.
    pub(super) rows: HashMap<String, Speed>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Speed {
    /// Events handled a second.
    pub(super) handled: f64,
    /// By how much the lag has changed.
    pub(super) lag: i64,
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(with = "time::serde::rfc3339")]
    at: OffsetDateTime,
    #[serde(flatten)]
    status: &'a Status,
    per_second: Speeds,
}

impl View {
    fn new(interval: Duration) -> Self {
        Self { interval, latest: None, trouble: None, past: VecDeque::new() }
    }

    fn hear(&mut self, answer: Answer) {
        let status = match answer {
            Ok(status) => status,
            Err(error) => {
                self.trouble = Some(Failure::from(error).message());
                return;
            }
        };
        self.trouble = None;
        let at = Instant::now();
        let rows = status.consumers.iter().map(|c| (name(c), (c.processed, c.lag))).collect();
        self.past.push_back(Moment { at, head: status.log.head, rows });
        // One that is older than the window stays, so that it is covered whole.
        while self.past.get(1).is_some_and(|second| at - second.at >= WINDOW) {
            self.past.pop_front();
        }
        self.latest = Some((status, OffsetDateTime::now_utc(), at));
    }

    fn speeds(&self) -> Speeds {
        let (Some(first), Some(last)) = (self.past.front(), self.past.back()) else {
            return Speeds::default();
        };
        let seconds = (last.at - first.at).as_secs_f64();
        if seconds <= 0.0 {
            return Speeds::default();
        }
        #[expect(clippy::cast_precision_loss, reason = "a speed is read by people")]
        let speed = |was: i64, is: i64| (is - was).max(0) as f64 / seconds;
        let rows = last.rows.iter().filter_map(|(name, (handled, lag))| {
            let (was_handled, was_lag) = first.rows.get(name)?;
            Some((name.clone(), Speed { handled: speed(*was_handled, *handled), lag: lag - was_lag }))
        });
        Speeds { appended: Some(speed(first.head, last.head)), rows: rows.collect() }
    }

    /// After an answer, or none.
    fn show(&self, show: &Show) -> Result<(), Failure> {
        match show {
            Show::Whole(_) => self.redraw(show),
            Show::Blocks | Show::Lines => {
                if let Some(trouble) = &self.trouble {
                    tell(format_args!("inorder: {trouble}; trying again"));
                    return Ok(());
                }
                let Some((status, at, _)) = &self.latest else { return Ok(()) };
                let screen = Screen::new(false);
                if matches!(show, Show::Lines) {
                    return Ok(screen.json(&Line { at: *at, status, per_second: self.speeds() })?);
                }
                let mut block = vec![format!("{} UTC", moment(*at))];
                block.extend(status.table_lines(&screen, *at, Some(&self.speeds())));
                block.extend(self.footer(status, &screen));
                block.push(String::new());
                Ok(screen.text(&(block.join("\n") + "\n"))?)
            }
        }
    }

    /// In the size that the terminal has now.
    fn redraw(&self, show: &Show) -> Result<(), Failure> {
        let (Show::Whole(whole), Some((status, at, seen))) = (show, &self.latest) else { return Ok(()) };
        let screen = Screen::new(false);
        let (rows, columns) = terminal::size();
        let mut lines = self.header(*at, &screen, columns);
        lines.extend(self.alarm(seen.elapsed(), &screen, columns));
        let mut footer = self.footer(status, &screen);
        // Of many that are dead the first are told: the table has them all.
        footer.truncate((rows / 3).max(2));
        let table = status.table_lines(&screen, *at, Some(&self.speeds()));
        let room = rows.saturating_sub(lines.len() + footer.len() + 1);
        let hidden = table.len().saturating_sub(room);
        if hidden > 0 {
            lines.extend(table.into_iter().take(room.saturating_sub(1)));
            let more = format!("… and {} more lines: inorder status shows all", count(hidden as u64 + 1));
            lines.push(screen.styled(&Style::new().dim(), more));
        } else {
            lines.extend(table);
        }
        lines.push(String::new());
        lines.extend(footer);
        Ok(whole.draw(&lines)?)
    }

    fn header(&self, at: OffsetDateTime, screen: &Screen, columns: usize) -> Vec<String> {
        let title = format!("inorder status · {} UTC", moment(at));
        let keys = format!("every {} · q quits", duration(self.interval));
        let gap = columns.saturating_sub(title.chars().count() + keys.chars().count()).max(1);
        vec![screen.styled(&Style::new().reverse(), format!("{title}{}{keys}", " ".repeat(gap)))]
    }

    /// What is wrong with the view itself.
    fn alarm(&self, age: Duration, screen: &Screen, columns: usize) -> Vec<String> {
        let words = match &self.trouble {
            Some(trouble) => format!("no answer for {}: {trouble}; trying again", duration(age)),
            None if age >= self.interval * 2 + Duration::from_secs(1) => {
                format!("no answer for {}", duration(age))
            }
            None => return Vec::new(),
        };
        let red = Style::new().red().bold();
        wrapped(&words, "", columns).iter().take(4).map(|line| screen.styled(&red, line)).collect()
    }

    fn footer(&self, status: &Status, screen: &Screen) -> Vec<String> {
        let mut footer = Vec::new();
        if let Some(appended) = self.speeds().appended {
            footer.push(
                screen.styled(&Style::new().dim(), format!("{} events appended a second", rate(appended))),
            );
        }
        footer.extend(status.footer(screen));
        footer
    }
}

/// `0`, `0.4`, `12`, `3,001`.
pub(super) fn rate(per_second: f64) -> String {
    match per_second {
        r if r <= 0.0 => "0".to_owned(),
        r if r < 9.95 => format!("{r:.1}"),
        #[expect(clippy::cast_possible_truncation, reason = "no log is that fast")]
        r => count(r.round() as i64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_read_as_people_read_them() {
        assert_eq!([0.0, 0.04, 0.4, 9.9, 9.96, 3_000.6].map(rate), ["0", "0.0", "0.4", "9.9", "10", "3,001"]);
    }

    #[test]
    fn a_speed_is_that_of_the_last_seconds() {
        let mut view = View::new(Duration::from_secs(1));
        let began = Instant::now();
        assert!(view.speeds().appended.is_none());
        for (second, head, handled, lag) in [(0, 100, 50, 50), (2, 300, 60, 240), (4, 500, 90, 410)] {
            let rows = HashMap::from([("mail".to_owned(), (handled, lag))]);
            view.past.push_back(Moment { at: began + Duration::from_secs(second), head, rows });
        }
        let speeds = view.speeds();
        assert_eq!(speeds.appended, Some(100.0));
        assert_eq!((speeds.rows["mail"].handled, speeds.rows["mail"].lag), (10.0, 360));
    }
}
