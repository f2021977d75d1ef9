//! `inorder show`: all that is known of one consumer.

use std::time::Duration;

use console::Style;
use inorder::{AuditRow, AuditRows, ConsumerRow, ConsumerStatus};
use serde::Serialize;
use serde_json::value::RawValue;
use time::OffsetDateTime;

use crate::admin::{Named, named};
use crate::audit::remark;
use crate::facts::Facts;
use crate::failure::Failure;
use crate::options::Options;
use crate::screen::Screen;
use crate::status::{advice, name, style_of};
use crate::tail;
use crate::words::{count, counted, duration, moment};

/// Show all that is known of one consumer, with the event at which it failed
///
/// How it is registered and how it stands, which process runs it, what went wrong last and at which event, with the event's content,
/// what can be done, and what operators did to it. Of a consumer with many partitions or instances all are shown, those farthest
/// behind first, at most 100.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder show revenue-per-day
  inorder show search-index/3
  inorder show cache@node-1
  inorder show revenue-per-day --json | jq '.consumers[0].failed_event.payload'")]
pub(crate) struct Args {
    /// As `inorder status` shows it: name, name@instance, or name/partition for one partition of it
    #[arg(value_name = "CONSUMER", value_parser = named)]
    consumer: Named,
}

/// How many of the last actions are told.
const ACTIONS: i32 = 5;

#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    row: &'a ConsumerRow,
    failed_event: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct Answer<'a> {
    consumers: Vec<Shown<'a>>,
    /// What operators did to it last, newest first.
    audit: &'a [AuditRow],
}

pub(crate) async fn run(args: &Args, options: &Options, screen: &Screen) -> Result<(), Failure> {
    let admin = options.connect_to_log("show").await?.admin();
    let target = args.consumer.target.clone();
    let rows = admin.consumer(target).await?;
    let consumer = rows.first().map(|row| row.progress.name.clone()).unwrap_or_default();
    let audit = admin.audit(&AuditRows::any().of(consumer).limit(ACTIONS)).await?;
    if screen.is_json() {
        let consumers = rows.iter().map(shown).collect::<Result<_, _>>()?;
        return Ok(screen.json(&Answer { consumers, audit: &audit })?);
    }
    let now = OffsetDateTime::now_utc();
    for (n, row) in rows.iter().enumerate() {
        if n > 0 {
            screen.line("")?;
        }
        for line in facts(row, now)?.lines(screen) {
            screen.line(line)?;
        }
    }
    let mut history = Facts::default();
    let mut title = "last actions";
    for row in &audit {
        let what = remark(row);
        history.say(
            title,
            format!(
                "{}  {} by {}{}{what}",
                moment(row.at),
                row.action,
                row.by,
                if what.is_empty() { "" } else { ": " }
            ),
        );
        title = "";
    }
    for line in history.lines(screen) {
        screen.line(line)?;
    }
    Ok(())
}

fn shown(row: &ConsumerRow) -> Result<Shown<'_>, Failure> {
    let event = row.failed_event.as_ref().map(tail::json).transpose()?;
    let event = event.map(RawValue::from_string).transpose();
    let failed_event = event.map_err(|e| Failure::failed(format!("the failed event as JSON: {e}")))?;
    Ok(Shown { row, failed_event })
}

fn facts(row: &ConsumerRow, now: OffsetDateTime) -> Result<Facts, Failure> {
    let c = &row.progress;
    let mut facts = Facts::default();
    facts.say_in("consumer", name(c), Style::new().bold());
    let split = match c.partitions {
        1 => String::new(),
        n => format!(", partition {} of {n}", c.partition),
    };
    facts.say(
        "registered",
        format!("{}, revision {}{split}, since {}", c.kind, c.revision, moment(row.created_at)),
    );
    facts.say(
        "wants",
        c.event_types.as_ref().map_or_else(|| "every type".to_owned(), |types| types.join(", ")),
    );
    facts.say_in("state", c.status.as_str(), style_of(c.status));
    let behind = match c.lag_seconds {
        s if s > 0.0 => format!(", {} behind", duration(Duration::try_from_secs_f64(s).unwrap_or_default())),
        _ => String::new(),
    };
    facts.say("position", format!("{}, lag {}{behind}", count(c.position), count(c.lag)));
    if let (Some(from), Some(to)) = (c.missing_from, c.missing_to) {
        facts.say("missing", format!("events {} to {} were pruned unread", count(from), count(to)));
    }
    facts.say("run by", runner(row));
    facts.say(
        "so far",
        format!(
            "{} handled, {} failed, {} passed over",
            count(c.processed),
            count(c.failed),
            count(c.skipped)
        ),
    );
    if let (Some(pending), Some(in_progress)) = (row.pending, row.in_progress) {
        let more = if pending + in_progress >= 10_000 { " or more" } else { "" };
        facts.say("ledger", format!("{} pending, {} in progress{more}", count(pending), count(in_progress)));
    }
    failure(row, now, &mut facts)?;
    for way_out in ways_out(row) {
        facts.say("what to do", way_out);
    }
    Ok(facts)
}

/// What went wrong last.
fn failure(row: &ConsumerRow, now: OffsetDateTime, facts: &mut Facts) -> Result<(), Failure> {
    let c = &row.progress;
    let failing = c.attempts > 0 || c.faults > 0 || c.failed_event_id.is_some();
    if failing {
        let mut attempts = format!("{} of {}", c.attempts, c.max_attempts);
        if c.faults > 0 {
            attempts.push_str(&format!(", and {}", counted(u64::from(c.faults.unsigned_abs()), "fault")));
        }
        if let Some(next) = c.next_attempt_at {
            let left = Duration::try_from(next - now).unwrap_or_default();
            attempts.push_str(&format!("; next try in {}", duration(left)));
        }
        facts.say("attempts", attempts);
    }
    if let Some(event_id) = c.failed_event_id {
        let place = match (c.failed_position, &c.failed_event_type) {
            (Some(id), Some(kind)) => format!("event {id} ({kind}), {event_id}"),
            _ => format!("event {event_id}, which is not in the log any more"),
        };
        facts.say("failed at", place);
    }
    if let Some(error) = &c.last_error {
        let at = c.last_error_at.map_or_else(String::new, |at| format!("{}: ", moment(at)));
        let style = if failing { Style::new().red() } else { Style::new() };
        facts.say_in("last error", format!("{at}{error}"), style);
    }
    if let Some(event) = &row.failed_event {
        facts.quote("content", &tail::json(event)?);
    }
    Ok(())
}

/// Who runs it, as far as anybody knows.
fn runner(row: &ConsumerRow) -> String {
    let c = &row.progress;
    let mut words = match (row.owner, &row.owner_host, row.owner_pid) {
        (None, ..) => "nobody so far".to_owned(),
        (Some(_), Some(host), Some(pid)) if row.owner_gone == Some(true) => {
            format!("pid {pid} on {host}, which is gone")
        }
        (Some(_), Some(host), Some(pid)) => format!("pid {pid} on {host}"),
        (Some(id), ..) => format!("process {id}, which has stopped"),
    };
    if let Some(pid) = c.holder_pid {
        words.push_str(&format!("; held by the server's process {pid}"));
    }
    if let Some(until) = row.lease_until {
        words.push_str(&format!("; leased until {}", moment(until)));
    }
    words.push_str(&format!("; seen {}", moment(c.seen_at)));
    words
}

/// What an operator can do about it.
fn ways_out(row: &ConsumerRow) -> Vec<String> {
    let c = &row.progress;
    let called = name(c);
    let mut ways = Vec::new();
    match c.status {
        ConsumerStatus::Dead => ways.push(advice(c)),
        ConsumerStatus::Disabled => ways.push(format!("inorder enable {called}")),
        ConsumerStatus::Expired => {
            ways.push(format!(
                "inorder enable {called}, or inorder unregister {called} if it is gone for good"
            ));
        }
        _ if c.lag > 0 && row.owner_gone.unwrap_or(true) => {
            ways.push("start a process that runs it: inorder instances shows those there are".to_owned());
        }
        _ => {}
    }
    if c.missing_from.is_some() {
        ways.push(format!("inorder accept-pruned {called}"));
    }
    if let Ok(letters @ 1..) = u64::try_from(c.open_dead_letters) {
        ways.push(format!(
            "{}: inorder dead-letters list --consumer {}",
            counted(letters, "open dead letter"),
            c.name
        ));
    }
    ways
}
