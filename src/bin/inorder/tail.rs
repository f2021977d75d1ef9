//! `inorder tail`: shows the end of the log, and follows it.

use std::collections::{HashSet, VecDeque};
use std::fmt::Write;
use std::time::Duration;

use console::{Style, truncate_str};
use inorder::{Error, Event, Follower, Inorder};
use serde::Serialize;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::failure::{Failure, tell};
use crate::interrupt::Interrupt;
use crate::options::Options;
use crate::screen::Screen;
use crate::status::holder;
use crate::words::{count, moment, plain};

/// Show the last events of the log, and follow it
///
/// Events appear in id order, never past the safe head: an event is shown once no event with a lower id can come any more. A
/// line has the id, the time (UTC), the type, the stream and the payload, shortened to the width of the terminal; with --json,
/// everything, in the form that `inorder append` takes (line breaks in a payload become blanks).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder tail                                the last 10 events
  inorder tail -n 100 --only order.placed
  inorder tail --follow --from-head           what is appended from now on
  inorder tail --after 0 --json > log.jsonl   the whole log
  inorder tail --after 17000 | head")]
pub(crate) struct Args {
    /// How many of the last events
    #[arg(short = 'n', long, value_name = "EVENTS", default_value_t = 10, conflicts_with_all = ["after", "from_head"])]
    lines: usize,
    /// From the first event above this id on; 0 is everything
    #[arg(long, value_name = "ID", conflicts_with = "from_head")]
    after: Option<i64>,
    /// Only what is appended from now on
    #[arg(long, requires = "follow")]
    from_head: bool,
    /// Only events of these types
    #[arg(long, value_name = "TYPE", num_args = 1.., value_delimiter = ',')]
    only: Vec<String>,
    /// Go on until Ctrl-C
    #[arg(short, long)]
    follow: bool,
}

/// Events that are read at a time.
const PAGE: usize = 1_000;

pub(crate) async fn run(
    args: Args,
    options: &Options,
    screen: &Screen,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let only = (!args.only.is_empty()).then(|| args.only.into_iter().collect());
    let connecting = async {
        let log = options.connect_to_log("tail").await?;
        let head = log.safe_head().await?;
        Ok((log, head))
    };
    let (log, head) = interrupt.ends(connecting).await?;
    let tail = Tail { log, only, screen };
    let position = match (args.after, args.from_head) {
        (Some(after), _) => interrupt.ends(tail.show_after(after, head)).await?,
        (None, true) => head,
        (None, false) => interrupt.ends(tail.show_last(args.lines, head)).await?,
    };
    if !args.follow {
        return Ok(());
    }
    let mut follower = tail.log.follow(position);
    let ended = tail.follow(&mut follower, interrupt).await;
    // A courtesy: others clean up in time.
    let _ = tokio::time::timeout(Duration::from_secs(1), follower.stop()).await;
    ended
}

struct Tail<'a> {
    log: Inorder,
    only: Option<HashSet<String>>,
    screen: &'a Screen,
}

impl Tail<'_> {
    /// Shows what lies above `after`, up to what was the head; answers how far it came.
    async fn show_after(&self, mut after: i64, head: i64) -> Result<i64, Failure> {
        while after < head {
            let page = self.log.read(after, PAGE).await?;
            let Some(last) = page.last() else { break };
            after = last.id();
            self.show(page.iter())?;
        }
        Ok(after)
    }

    /// Shows the last events, `count` of them where there are so many. Ids have gaps and types are filtered, so that it has to
    /// look further and further back.
    async fn show_last(&self, count: usize, head: i64) -> Result<i64, Failure> {
        let mut window = i64::try_from(count).unwrap_or(i64::MAX);
        loop {
            let from = head.saturating_sub(window).max(0);
            let mut last = VecDeque::new();
            let mut after = from;
            while after < head {
                let page = self.log.read(after, PAGE).await?;
                let Some(end) = page.last() else { break };
                after = end.id();
                for event in page.into_iter().filter(|e| e.id() <= head && self.wants(e)) {
                    last.push_back(event);
                    if last.len() > count {
                        last.pop_front();
                    }
                }
            }
            if last.len() >= count || from == 0 {
                self.show(last.iter())?;
                // A safe head that is found later can be lower: what was not read yet comes next.
                return Ok(after.min(head));
            }
            window = window.saturating_mul(4).max(1_000);
        }
    }

    /// Until Ctrl-C. A lost connection is made anew.
    async fn follow(&self, follower: &mut Follower, interrupt: &Interrupt) -> Result<(), Failure> {
        const PAUSE: Duration = Duration::from_secs(1);
        let mut told = None;
        loop {
            let next = tokio::select! {
                next = self.next(follower, &mut told) => next,
                () = interrupt.wait() => return Ok(()),
            };
            match next {
                Ok(events) => self.show(events.iter())?,
                Err(error) if error.is_retryable() => {
                    tell(format_args!("inorder: {}; trying again", Failure::from(error).message()));
                    tokio::select! {
                        () = tokio::time::sleep(PAUSE) => {}
                        () = interrupt.wait() => return Ok(()),
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next events. Where it takes long because of a hole, says once who holds it.
    async fn next(&self, follower: &mut Follower, told: &mut Option<i64>) -> Result<Vec<Event>, Error> {
        const PATIENCE: Duration = Duration::from_secs(2);
        let next = follower.next();
        tokio::pin!(next);
        loop {
            tokio::select! {
                events = &mut next => return events,
                () = tokio::time::sleep(PATIENCE) => {}
            }
            let admin = self.log.admin();
            let (Ok(log), Ok(blockers)) = (admin.log_progress().await, admin.blockers().await) else {
                continue;
            };
            if let (Some(hole), [blocker, ..]) = (log.hole, blockers.as_slice())
                && told.replace(hole) != Some(hole)
            {
                tell(format_args!(
                    "inorder: waiting at the safe head {}: hole at {} held {}",
                    count(log.safe_head),
                    count(hole),
                    holder(blocker)
                ));
            }
        }
    }

    fn wants(&self, event: &Event) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(event.event_type()))
    }

    fn show<'e>(&self, events: impl Iterator<Item = &'e Event>) -> Result<(), Failure> {
        let mut text = String::new();
        for event in events.filter(|event| self.wants(event)) {
            if self.screen.is_json() {
                text.push_str(&json(event)?);
            } else {
                text.push_str(&line(event, self.screen));
            }
            text.push('\n');
        }
        Ok(self.screen.text(&text)?)
    }
}

/// An event in one line.
fn line(event: &Event, screen: &Screen) -> String {
    let place =
        screen.styled(&Style::new().dim(), format!("{:>8}  {}", event.id(), moment(event.recorded_at())));
    let kind = screen.styled(&Style::new().cyan(), plain(event.event_type()));
    let mut line = format!("{place}  {kind}");
    if let (Some(kind), Some(id)) = (event.stream_type(), event.stream_id()) {
        let _ = write!(line, "  {}/{}", plain(kind), plain(id));
    }
    let _ = write!(line, "  {}", plain(event.payload_json()));
    match screen.width() {
        Some(width) => truncate_str(&line, width, "…").into_owned(),
        None => line,
    }
}

#[derive(Serialize)]
struct Whole<'a> {
    id: i64,
    event_id: Uuid,
    #[serde(skip_serializing_if = "str::is_empty")]
    tenant_id: &'a str,
    event_type: &'a str,
    schema_version: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_version: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata_text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    causation_id: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_by: Option<&'a str>,
    #[serde(with = "time::serde::rfc3339")]
    recorded_at: OffsetDateTime,
}

/// An event as `inorder append` takes it, and what the log added, in one line. Line breaks in a payload become blanks.
pub(crate) fn json(event: &Event) -> Result<String, Failure> {
    // Between the tokens of JSON, and only there, can a line end.
    let raw =
        |text: &str| RawValue::from_string(text.replace(['\r', '\n'], " ")).map_err(|e| failed(event, &e));
    let (payload, metadata) = (raw(event.payload_json())?, raw(event.metadata_json())?);
    written(event, (Some(payload), None), (Some(metadata), None))
}

/// The same, with every byte of the payload: where a line cannot hold it, it stands in a string.
pub(crate) fn exact(event: &Event) -> Result<String, Failure> {
    let metadata = match event.metadata_json() {
        // In a line that is no metadata.
        "null" => (None, Some("null")),
        text => held(text),
    };
    written(event, held(event.payload_json()), metadata)
}

/// As JSON where a line can hold that, otherwise as text: line breaks, and blanks around it, would be lost.
fn held(text: &str) -> Held<'_> {
    let is_bare = !text.contains(['\r', '\n']) && text.trim_ascii() == text;
    match is_bare.then(|| RawValue::from_string(text.to_owned())) {
        Some(Ok(raw)) => (Some(raw), None),
        _ => (None, Some(text)),
    }
}

type Held<'a> = (Option<Box<RawValue>>, Option<&'a str>);

fn written<'a>(event: &'a Event, payload: Held<'a>, metadata: Held<'a>) -> Result<String, Failure> {
    let whole = Whole {
        id: event.id(),
        event_id: event.event_id(),
        tenant_id: event.tenant_id(),
        event_type: event.event_type(),
        schema_version: event.schema_version(),
        stream_type: event.stream_type(),
        stream_id: event.stream_id(),
        stream_version: event.stream_version(),
        payload: payload.0,
        payload_text: payload.1,
        metadata: metadata.0,
        metadata_text: metadata.1,
        correlation_id: event.correlation_id(),
        causation_id: event.causation_id(),
        created_by: event.created_by(),
        recorded_at: event.recorded_at(),
    };
    serde_json::to_string(&whole).map_err(|e| failed(event, &e))
}

fn failed(event: &Event, error: &serde_json::Error) -> Failure {
    Failure::failed(format!("event {} as JSON: {error}", event.id()))
}
