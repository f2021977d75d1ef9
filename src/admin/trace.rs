//! How events led to one another.
//!
//! Looking back goes by the key, from each event to its cause. Looking forward reads the log from the first of them to the safe
//! head, a part at a time: no index helps, as every append would pay for it.

use std::collections::HashSet;

use serde::Serialize;
use time::OffsetDateTime;
use tokio_postgres::Row;
use uuid::Uuid;

use super::Admin;
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::pg::admin::{self as statements, Part};

/// How many events are looked at in a step.
const STEP: i64 = 50_000;
/// How many events at most, unless somebody says otherwise.
const LIMIT: usize = 1_000;

/// What a trace begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceOf {
    /// The event with this id in the log.
    Id(i64),
    /// The event of this name; where there is none, all events with this correlation.
    Name(Uuid),
}

impl From<i64> for TraceOf {
    fn from(id: i64) -> Self {
        Self::Id(id)
    }
}

impl From<Uuid> for TraceOf {
    fn from(name: Uuid) -> Self {
        Self::Name(name)
    }
}

/// An event in a trace, without its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TracedEvent {
    /// The place in the log.
    pub id: i64,
    /// Its name outside the log.
    pub event_id: Uuid,
    /// The tenant, `""` where there is none.
    pub tenant_id: String,
    /// What happened.
    pub event_type: String,
    /// The kind of stream, where it is part of one.
    pub stream_type: Option<String>,
    /// The stream within its kind.
    pub stream_id: Option<String>,
    /// Its number in the stream.
    pub stream_version: Option<i64>,
    /// What it belongs to.
    pub correlation_id: Option<Uuid>,
    /// What caused it: an event, as a rule.
    pub causation_id: Option<Uuid>,
    /// Who appended it.
    pub created_by: Option<String>,
    /// When, by the database's clock.
    #[serde(with = "time::serde::rfc3339")]
    pub recorded_at: OffsetDateTime,
}

impl TracedEvent {
    fn from_row(row: &Row) -> Self {
        Self {
            id: row.get("id"),
            event_id: row.get("event_id"),
            tenant_id: row.get("tenant_id"),
            event_type: row.get("event_type"),
            stream_type: row.get("stream_type"),
            stream_id: row.get("stream_id"),
            stream_version: row.get("stream_version"),
            correlation_id: row.get("correlation_id"),
            causation_id: row.get("causation_id"),
            created_by: row.get("created_by"),
            recorded_at: row.get("recorded_at"),
        }
    }
}

/// The events that led to an event and those that followed from it, or all of a correlation; made by [`Admin::trace`].
///
/// ```no_run
/// # async fn example(admin: inorder::Admin) -> Result<(), inorder::Error> {
/// let mut trace = admin.trace(17_000).await?;
/// while trace.search().await? {
///     println!("searched to {} of {}", trace.searched_to(), trace.end());
/// }
/// for event in trace.events() {
///     println!("{} {} was caused by {:?}", event.id, event.event_type, event.causation_id);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "what followed is not searched for until it is asked to"]
pub struct Trace {
    admin: Admin,
    start: Option<Uuid>,
    correlation: Option<Uuid>,
    events: Vec<TracedEvent>,
    missing: Vec<Uuid>,
    searched_to: i64,
    end: i64,
    limit: usize,
    done: bool,
}

impl Admin {
    /// How an event came about and what followed from it, or all that belongs to a correlation. What is answered has looked back;
    /// [`Trace::search`] looks forward.
    ///
    /// What followed from an event is what names it as its cause, and what names those, however far; and likewise for the first of its
    /// causes, so that all of a tree is found from each of its events. An effect lies behind its cause in the log: one that does not
    /// is not found.
    ///
    /// # Errors
    /// [`ErrorKind::NotRegistered`] when there is no event with that id, or it is beyond the safe head.
    pub async fn trace(&self, of: impl Into<TraceOf>) -> Result<Trace, Error> {
        let end = self.log.safe_head().await?;
        let start = match of.into() {
            TraceOf::Name(name) => name,
            TraceOf::Id(id) => self.event_at(id).await?,
        };
        let rows = self
            .ask(&format!("looking for the causes of {start}"), async |client, schema| {
                statements::trace_back(client, schema, start, LIMIT).await
            })
            .await?;
        let events: Vec<TracedEvent> = rows.iter().map(TracedEvent::from_row).collect();
        let first = match events.first() {
            // The first cause itself need not be searched for, an effect in front of it would not be found.
            Some(first) => first.id,
            None => self.log.read(0, 1).await?.first().map_or(end, |event| event.id() - 1),
        };
        Ok(Trace {
            admin: self.clone(),
            start: (!events.is_empty()).then_some(start),
            correlation: events.is_empty().then_some(start),
            events,
            missing: Vec::new(),
            searched_to: first,
            end,
            limit: LIMIT,
            done: false,
        })
    }

    async fn event_at(&self, id: i64) -> Result<Uuid, Error> {
        let found = match id.checked_sub(1).filter(|before| *before >= 0) {
            Some(before) => self.log.read(before, 1).await?,
            None => Vec::new(),
        };
        found.first().filter(|event| event.id() == id).map(Event::event_id).ok_or_else(|| {
            Error::new(
                ErrorKind::NotRegistered,
                format!(
                    "tracing event {id}: there is no such event in the log, or it is beyond the safe head"
                ),
            )
        })
    }
}

impl Trace {
    /// Ends with this many events. Default 1,000.
    pub fn limit(mut self, events: usize) -> Self {
        self.limit = events.max(1);
        self
    }

    /// Looks at the next part of the log; false when there is none left, or the limit is reached.
    ///
    /// Cancel safety: when the future is dropped, that part is looked at again.
    ///
    /// # Errors
    /// When the server does not answer. The same call may be made again.
    pub async fn search(&mut self) -> Result<bool, Error> {
        if self.done {
            return Ok(false);
        }
        if self.searched_to < self.end && self.events.len() < self.limit {
            let to = self.part_end().await?;
            let known: Vec<Uuid> = self.events.iter().map(|event| event.event_id).collect();
            let part = Part {
                event_ids: &known,
                correlation: self.correlation,
                after: self.searched_to,
                to,
                limit: self.limit - self.events.len(),
            };
            let rows = self
                .admin
                .ask("looking for what followed", async |client, schema| {
                    statements::trace_forward(client, schema, &part).await
                })
                .await?;
            let full = self.events.len() + rows.len() >= self.limit;
            self.searched_to = match rows.last() {
                Some(last) if full => last.get("id"),
                _ => to,
            };
            self.events.extend(rows.iter().map(TracedEvent::from_row));
            self.events.sort_by_key(|event| event.id);
        }
        if self.searched_to < self.end && self.events.len() < self.limit {
            return Ok(true);
        }
        self.missing = self.causes_not_there().await?;
        self.done = true;
        Ok(false)
    }

    /// By events, not by ids, as these may have any gaps.
    async fn part_end(&self) -> Result<i64, Error> {
        self.admin
            .ask("looking for what followed", async |client, schema| {
                statements::part_end(client, schema, self.searched_to, self.end, STEP).await
            })
            .await
    }

    /// Causes that the log does not know: of its first events, as a rule.
    async fn causes_not_there(&self) -> Result<Vec<Uuid>, Error> {
        let known: HashSet<Uuid> = self.events.iter().map(|event| event.event_id).collect();
        let causes = self.events.iter().filter_map(|event| event.causation_id);
        let unknown: Vec<Uuid> = causes.filter(|cause| !known.contains(cause)).collect();
        if unknown.is_empty() {
            return Ok(Vec::new());
        }
        self.admin
            .ask("looking for causes", async |client, schema| {
                statements::not_there(client, schema, &unknown).await
            })
            .await
    }

    /// The event that it began with; `None` for a correlation.
    pub fn start(&self) -> Option<Uuid> {
        self.start
    }

    /// Those found so far, in id order.
    pub fn events(&self) -> &[TracedEvent] {
        &self.events
    }

    /// Causes that are named and are not in the log: they were pruned, or are no events. Known when the search is over.
    pub fn missing_causes(&self) -> &[Uuid] {
        &self.missing
    }

    /// What lies up to this id was looked at.
    pub fn searched_to(&self) -> i64 {
        self.searched_to
    }

    /// Where the search ends: the safe head when it began.
    pub fn end(&self) -> i64 {
        self.end
    }

    /// Was the limit reached before the end?
    pub fn is_cut(&self) -> bool {
        self.events.len() >= self.limit && self.searched_to < self.end
    }
}
