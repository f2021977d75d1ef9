//! `inorder status`: how the consumers and the log stand.

mod watch;

use std::time::Duration;

use console::Style;
use inorder::{Admin, Blocker, ConsumerStatus, LogProgress, Progress};
use serde::Serialize;
use time::OffsetDateTime;

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::options::Options;
use crate::screen::Screen;
use crate::table::{Side, Table, wrapped};
use crate::words::{count, counted, duration, plain};
use watch::{Speed, Speeds, rate};

/// Show how the consumers and the log stand
///
/// POSITION is the id of the last event dealt with, LAG the number of ids from there to the head of the log, BEHIND the age of
/// the oldest event not dealt with. Below the table stands how far the log may be delivered (the safe head), and who, by not
/// committing, keeps it from the head.
///
/// With --watch it goes on until q or Ctrl-C, and shows what moves: EVENTS/S is what a consumer handled in a second, over the last five, ▲ a
/// lag that grew and ▼ one that shrank meanwhile. On a terminal the view is drawn anew in place; elsewhere it is printed each time,
/// with --json as an object a line. A server that is away does not end it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
States:
  idle      runs when there is something to deliver
  waiting   the event at which it stands failed; the next attempt is not due
  dead      it failed too often, or was rejected: `inorder restart` tries again,
            `inorder skip` passes over the event
  disabled  an operator stopped it: `inorder enable`
  expired   not seen for days: `inorder enable`

Examples:
  inorder status
  inorder status revenue-per-day
  inorder status --watch          a live view; q ends it
  inorder status --check          exit code 1 if a consumer needs an operator
  inorder status --json | jq '.consumers[] | {name, status, lag}'")]
pub(crate) struct Args {
    /// Only this consumer
    #[arg(value_name = "CONSUMER")]
    consumer: Option<String>,
    /// Fail if a consumer is dead or expired, or misses events that were pruned
    #[arg(long)]
    check: bool,
    /// Go on until q or Ctrl-C
    #[arg(short, long, conflicts_with = "check")]
    watch: bool,
    /// How often, with --watch
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval, requires = "watch")]
    interval: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let sensible = Duration::from_millis(100)..=Duration::from_secs(3_600);
    seconds.filter(|seconds| sensible.contains(seconds)).ok_or_else(|| "0.1 to 3600 seconds".to_owned())
}

pub(crate) async fn run(
    args: &Args,
    options: &Options,
    screen: &Screen,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    match args.watch {
        true => watch::run(args, options, screen, interrupt).await,
        false => interrupt.ends(once(args, options, screen)).await,
    }
}

async fn once(args: &Args, options: &Options, screen: &Screen) -> Result<(), Failure> {
    let admin = options.connect_to_log("status").await?.admin();
    let status = Status::of(&admin, args.consumer.as_deref()).await?;
    if screen.is_json() {
        screen.json(&status)?;
    } else {
        for line in status.lines(screen, OffsetDateTime::now_utc()) {
            screen.line(line)?;
        }
    }
    let unwell: Vec<String> = status.consumers.iter().filter(|c| needs_operator(c)).map(name).collect();
    match args.check && !unwell.is_empty() {
        true => Err(Failure::failed(format!("an operator is needed for {}", unwell.join(", ")))),
        false => Ok(()),
    }
}

/// Everything that is shown.
#[derive(Debug, Serialize)]
pub(crate) struct Status {
    pub(crate) consumers: Vec<Progress>,
    pub(crate) log: LogProgress,
    pub(crate) blockers: Vec<Blocker>,
}

impl Status {
    /// As of now, of one consumer or of all.
    pub(crate) async fn of(admin: &Admin, consumer: Option<&str>) -> Result<Self, inorder::Error> {
        let consumers = match consumer {
            Some(consumer) => admin.progress(consumer).await?,
            None => admin.list().await?,
        };
        let (log, blockers) = (admin.log_progress().await?, admin.blockers().await?);
        Ok(Self { consumers, log, blockers })
    }

    /// For people; `now` is what times to come are counted from.
    pub(crate) fn lines(&self, screen: &Screen, now: OffsetDateTime) -> Vec<String> {
        let mut lines = self.table_lines(screen, now, None);
        lines.extend(self.footer(screen));
        lines
    }

    /// The consumers; how fast they are in the place of their attempts, where that is known.
    fn table_lines(&self, screen: &Screen, now: OffsetDateTime, speeds: Option<&Speeds>) -> Vec<String> {
        match self.consumers.is_empty() {
            true => vec![
                "no consumer is registered; a dispatcher registers its consumers when it starts".to_owned(),
            ],
            false => self.table(now, speeds).lines(screen),
        }
    }

    /// The log, and what an operator can do.
    fn footer(&self, screen: &Screen) -> Vec<String> {
        let width = screen.width().unwrap_or(usize::MAX);
        let dim = Style::new().dim();
        let mut lines = Vec::new();
        let mut footer = |text: &str| {
            lines.extend(wrapped(text, "", width).iter().map(|line| screen.styled(&dim, line)));
        };
        footer(&log_in_words(&self.log, &self.blockers));
        for dead in self.consumers.iter().filter(|c| c.status == ConsumerStatus::Dead) {
            footer(&advice(dead));
        }
        let letters: i64 = self.consumers.iter().map(|c| c.open_dead_letters).sum();
        if let Ok(letters @ 1..) = u64::try_from(letters) {
            footer(&format!("{}: inorder dead-letters list", counted(letters, "open dead letter")));
        }
        lines
    }

    fn table(&self, now: OffsetDateTime, speeds: Option<&Speeds>) -> Table {
        let last = if speeds.is_some() { "EVENTS/S" } else { "ATTEMPTS" };
        let mut table = Table::new(
            [
                ("CONSUMER", Side::Left),
                ("STATE", Side::Left),
                ("POSITION", Side::Right),
                ("LAG", Side::Right),
                ("BEHIND", Side::Right),
                (last, Side::Right),
            ],
            "LAST ERROR",
        );
        for c in &self.consumers {
            let attempts = match c.attempts {
                0 => "0".to_owned(),
                n => format!("{n}/{}", c.max_attempts),
            };
            let behind = match c.lag_seconds {
                s if s > 0.0 => duration(Duration::from_secs_f64(s)),
                _ => "–".to_owned(),
            };
            let (lag, last, remark) = match speeds {
                None => (count(c.lag), attempts, remark(c, now)),
                Some(speeds) => {
                    let speed = speeds.rows.get(&name(c));
                    let tries = (c.attempts > 0).then(|| format!("{attempts} attempts"));
                    let remark = tries.into_iter().chain(Some(remark(c, now)).filter(|r| !r.is_empty()));
                    (
                        format!("{}{}", count(c.lag), trend(speed)),
                        speed.map_or_else(|| "–".to_owned(), |speed| rate(speed.handled)),
                        remark.collect::<Vec<_>>().join("; "),
                    )
                }
            };
            let plain = Style::new();
            table.row(
                [
                    (name(c), plain.clone()),
                    (c.status.to_string(), style_of(c.status)),
                    (count(c.position), plain.clone()),
                    (lag, plain.clone()),
                    (behind, plain.clone()),
                    (last, plain),
                ],
                &remark,
            );
        }
        table
    }
}

/// Where a lag goes.
fn trend(speed: Option<&Speed>) -> &'static str {
    match speed.map_or(0, |speed| speed.lag) {
        0 => "  ",
        1.. => " ▲",
        _ => " ▼",
    }
}

/// As it is shown and as the other verbs take it: `name@instance/partition`.
pub(crate) fn name(c: &Progress) -> String {
    let mut name = c.name.clone();
    if !c.instance.is_empty() {
        name.push_str(&format!("@{}", c.instance));
    }
    if c.partitions > 1 {
        name.push_str(&format!("/{}", c.partition));
    }
    name
}

/// The colour of a state.
pub(crate) fn style_of(status: ConsumerStatus) -> Style {
    match status {
        ConsumerStatus::Idle => Style::new().green(),
        ConsumerStatus::Waiting => Style::new().yellow(),
        ConsumerStatus::Dead => Style::new().red().bold(),
        _ => Style::new().dim(),
    }
}

/// What an operator can do about a dead one.
pub(crate) fn advice(c: &Progress) -> String {
    let name = plain(&name(c));
    let skip = c
        .failed_position
        .map_or_else(String::new, |id| format!(", or inorder skip {name} --event {id} --why …"));
    format!("{name} is dead: inorder restart {name}{skip}")
}

fn needs_operator(c: &Progress) -> bool {
    matches!(c.status, ConsumerStatus::Dead | ConsumerStatus::Expired) || c.missing_from.is_some()
}

/// What is wrong with it, and what happens next.
fn remark(c: &Progress, now: OffsetDateTime) -> String {
    let mut parts = Vec::new();
    if let (Some(from), Some(to)) = (c.missing_from, c.missing_to) {
        parts.push(format!(
            "events {} to {} were pruned unread: inorder accept-pruned {}",
            count(from),
            count(to),
            name(c)
        ));
    }
    if let Some(error) = &c.last_error {
        parts.push(match (c.failed_position, &c.failed_event_type) {
            (Some(id), Some(kind)) => format!("event {id} ({kind}): {error}"),
            _ => error.clone(),
        });
    }
    if c.faults > 0 {
        parts.push(counted(u64::from(c.faults.unsigned_abs()), "fault"));
    }
    if let Some(next) = c.next_attempt_at.filter(|_| c.status == ConsumerStatus::Waiting) {
        let left = Duration::try_from(next - now).unwrap_or_default();
        parts.push(format!("next try in {}", duration(left)));
    }
    parts.join("; ")
}

/// The line about the log: how far it may be delivered, and who holds it up.
pub(crate) fn log_in_words(log: &LogProgress, blockers: &[Blocker]) -> String {
    let mut words = format!("safe head {} · head {}", count(log.safe_head), count(log.head));
    if log.pruned_to > 0 {
        words.push_str(&format!(" · pruned to {}", count(log.pruned_to)));
    }
    let Some(hole) = log.hole else { return words };
    words.push_str(&format!(" · hole at {}", count(hole)));
    if let Some((first, more)) = blockers.split_first() {
        words.push_str(&format!(" held {}", holder(first)));
        if !more.is_empty() {
            words.push_str(&format!(" and {} more: inorder blockers", more.len()));
        }
    }
    words
}

/// `for 2.1s by pid 4711 (app "checkout", idle in transaction)`.
pub(crate) fn holder(blocker: &Blocker) -> String {
    let mut words = String::new();
    if let Some(age) = blocker.age_seconds {
        words.push_str(&format!("for {} ", duration(Duration::try_from_secs_f64(age).unwrap_or_default())));
    }
    match (blocker.pid, &blocker.prepared_gid) {
        (Some(pid), _) => words.push_str(&format!("by pid {pid}")),
        (None, Some(gid)) => words.push_str(&format!("by the prepared transaction {gid:?}")),
        (None, None) => words.push_str("by a prepared transaction"),
    }
    let mut about = Vec::new();
    if let Some(application) = blocker.application.as_deref().filter(|a| !a.is_empty()) {
        about.push(format!("app {application:?}"));
    }
    match blocker.state.as_str() {
        "hidden" => about.push("more is hidden: pg_read_all_stats shows it".to_owned()),
        "prepared" => {}
        state => about.push(state.to_owned()),
    }
    if let Some(consumer) = &blocker.consumer {
        about.push(match blocker.event_position {
            Some(id) => format!("a pass of {consumer} at event {id}"),
            None => format!("a pass of {consumer}"),
        });
    }
    if !about.is_empty() {
        words.push_str(&format!(" ({})", about.join(", ")));
    }
    plain(&words)
}
