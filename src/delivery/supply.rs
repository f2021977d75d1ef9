//! Where a pass gets its events from: the process's window on the head of the log, or pages of the consumer's own, read
//! ahead of the handler.
//!
//! Events are immutable and the safe head is settled, so both can be read on other connections, ahead of time. What was
//! read ahead is used only from where the locked row's position is.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use deadpool_postgres::Pool;
use futures_util::FutureExt;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::consumer::Consumer;
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::pg::consumers::Key;
use crate::pg::instances;
use crate::pg::pages::{self, Wanted};
use crate::pg::{checkout, deadline, throw_away};
use crate::safe_head::Step;
use crate::store::Inorder;

/// The events a consumer wants among those above `from`, up to `to`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    pub(crate) from: i64,
    pub(crate) to: i64,
    pub(crate) events: Vec<Event>,
}

impl Page {
    /// What is left of it above a position within it, at most `limit` events.
    fn part(&self, position: i64, limit: usize) -> Self {
        let begin = self.events.partition_point(|e| e.id() <= position);
        let end = self.events.len().min(begin + limit);
        let events = self.events[begin..end].to_vec();
        let to = if end < self.events.len() { self.events[end - 1].id() } else { self.to };
        Self { from: position, to, events }
    }

    fn reaches(&self, position: i64) -> bool {
        (self.from..self.to).contains(&position)
    }

    /// How many events of this page's kind fit into that many bytes.
    fn events_in(&self, bytes: usize) -> usize {
        let held: usize = self.events.iter().map(Event::size).sum();
        bytes * self.events.len().max(1) / held.max(1)
    }
}

/// The events near the head, read once per process and shared by all its consumers. Bounded in bytes: the oldest go first.
pub(crate) struct Window {
    recent: Mutex<Recent>,
    bytes: usize,
}

#[derive(Default)]
struct Recent {
    epoch: Uuid,
    from: i64,
    to: i64,
    events: VecDeque<Event>,
    bytes: usize,
}

impl Window {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { recent: Mutex::default(), bytes }
    }

    /// Takes what the tracker found; begins anew where it does not continue what is there.
    pub(crate) fn extend(&self, epoch: Uuid, step: &Step, head: i64) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.epoch != epoch || recent.to != step.from {
            *recent = Recent { epoch, from: step.from, to: step.from, ..Recent::default() };
        }
        recent.to = head;
        for event in &step.events {
            recent.bytes += event.size();
            recent.events.push_back(event.clone());
        }
        while recent.bytes > self.bytes {
            let Some(oldest) = recent.events.pop_front() else { break };
            recent.bytes -= oldest.size();
            recent.from = oldest.id();
        }
    }

    /// `None` when the window does not reach back to the position.
    fn page(&self, epoch: Uuid, position: i64, head: i64, lane: &Lane<'_>, limit: usize) -> Option<Page> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let to = recent.to.min(head);
        if recent.epoch != epoch || position < recent.from || position >= to {
            return None;
        }
        let begin = recent.events.partition_point(|e| e.id() <= position);
        let mut page = Page { from: position, to, events: Vec::new() };
        for event in recent.events.range(begin..).take_while(|e| e.id() <= to) {
            if !lane.consumer.wants(event, lane.key.partition) {
                continue;
            }
            if page.events.len() == limit {
                page.to = page.events[limit - 1].id();
                break;
            }
            page.events.push(event.clone());
        }
        Some(page)
    }

    /// Is there nothing that the consumer wants above the position, as far as the window knows?
    pub(crate) fn is_idle(
        &self,
        epoch: Uuid,
        position: i64,
        head: i64,
        consumer: &Consumer,
        key: &Key,
    ) -> bool {
        if consumer.wants_everything() {
            return false;
        }
        self.page(epoch, position, head, &Lane { consumer, key }, 1)
            .is_some_and(|page| page.events.is_empty())
    }
}

/// Whose events are meant.
pub(crate) struct Lane<'a> {
    pub(crate) consumer: &'a Consumer,
    pub(crate) key: &'a Key,
}

/// One consumer's own pages: the one in hand, and the next one in flight.
#[derive(Default)]
pub(crate) struct ReadAhead {
    epoch: Uuid,
    page: Page,
    next: Option<(i64, JoinHandle<Result<Page, Error>>)>,
    rows: usize,
    /// Up to where events were given out.
    given: i64,
}

/// Rows of the first page; each further one has twice as many, up to [`MOST_ROWS`].
const FIRST_ROWS: usize = 512;
/// Rows of the largest page, and so of the largest pass.
pub(crate) const MOST_ROWS: usize = 8_192;
/// Ids that a page of a filtered consumer spans at most: a bounded step, however few it wants.
const FILTERED_SPAN: i64 = 100_000;

/// What reading needs.
pub(crate) struct Readers<'a> {
    pub(crate) log: &'a Inorder,
    pub(crate) pool: &'a Pool,
    pub(crate) window: &'a Window,
    /// Whose epoch a page must have been read in.
    pub(crate) process: Uuid,
    /// Bytes of one page.
    pub(crate) bytes: usize,
}

/// Where a consumer stands, and how far it may go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behind {
    pub(crate) epoch: Uuid,
    pub(crate) position: i64,
    pub(crate) head: i64,
}

impl ReadAhead {
    /// The next events above the position, at most `limit`, where they have been read already.
    pub(crate) fn at_hand(
        &mut self,
        readers: &Readers<'_>,
        lane: &Lane<'_>,
        at: Behind,
        limit: usize,
    ) -> Option<Page> {
        if self.epoch != at.epoch {
            self.forget();
            self.epoch = at.epoch;
        }
        if let Some(page) = readers.window.page(at.epoch, at.position, at.head, lane, limit) {
            self.forget();
            return Some(page);
        }
        if !self.page.reaches(at.position) {
            // What went wrong shows when it is waited for.
            let (_, reading) =
                self.next.as_mut().filter(|(from, task)| *from == at.position && task.is_finished())?;
            let page = reading.now_or_never()?.ok()?.ok();
            self.next = None;
            self.turn_to(page?, readers, lane, at.head);
        }
        let part = self.page.part(at.position, limit);
        self.given = part.to;
        Some(part)
    }

    /// The next events above the position, at most `limit`, read first where they are not at hand.
    pub(crate) async fn next(
        &mut self,
        readers: &Readers<'_>,
        lane: &Lane<'_>,
        at: Behind,
        limit: usize,
    ) -> Result<Page, Error> {
        if let Some(page) = self.at_hand(readers, lane, at, limit) {
            return Ok(page);
        }
        self.read(readers, lane, at).await?;
        let nothing = Page { from: at.position, to: at.position, events: Vec::new() };
        Ok(self.at_hand(readers, lane, at, limit).unwrap_or(nothing))
    }

    /// Where to read next, when everything that was read is given out and the reading goes on already.
    pub(crate) fn used_up(&self, epoch: Uuid) -> Option<i64> {
        let (from, _) = self.next.as_ref()?;
        (self.epoch == epoch && self.given == *from).then_some(*from)
    }

    /// Reads the events above the position, so that they are at hand, and begins to read those behind them.
    pub(crate) async fn read(
        &mut self,
        readers: &Readers<'_>,
        lane: &Lane<'_>,
        at: Behind,
    ) -> Result<(), Error> {
        let page = match self.next.take() {
            Some((from, reading)) if from == at.position => reading
                .await
                .map_err(|e| Error::with_source(ErrorKind::Stopped, "reading ahead was stopped", e))??,
            stale => {
                if let Some((_, reading)) = stale {
                    reading.abort();
                }
                self.rows = FIRST_ROWS;
                self.fetch(readers, lane, at.position, at.head).await?
            }
        };
        self.turn_to(page, readers, lane, at.head);
        Ok(())
    }

    fn turn_to(&mut self, page: Page, readers: &Readers<'_>, lane: &Lane<'_>, head: i64) {
        self.page = page;
        self.next = None;
        if self.page.to < head {
            self.rows = (self.rows * 2).min(MOST_ROWS).min(self.page.events_in(readers.bytes)).max(1);
            let reading = self.fetch(readers, lane, self.page.to, head);
            self.next = Some((self.page.to, tokio::spawn(reading)));
        }
    }

    /// Lets go of the memory: the consumer is near the head.
    fn forget(&mut self) {
        if let Some((_, task)) = self.next.take() {
            task.abort();
        }
        self.page = Page::default();
    }

    fn fetch(
        &self,
        readers: &Readers<'_>,
        lane: &Lane<'_>,
        position: i64,
        head: i64,
    ) -> impl Future<Output = Result<Page, Error>> + Send + 'static {
        let (log, pool, bytes) = (readers.log.clone(), readers.pool.clone(), readers.bytes);
        let (consumer, partition) = (lane.consumer.clone(), lane.key.partition);
        let up_to = if consumer.wants_everything() { head } else { head.min(position + FILTERED_SPAN) };
        let (rows, epoch, process) = (self.rows, self.epoch, readers.process);
        async move {
            let client = checkout(&pool, "reading events").await?;
            let wanted = Wanted {
                after: position,
                up_to,
                event_types: consumer.options.event_types.as_deref(),
                partitions: consumer.partition_count(),
                partition,
            };
            let rows = i64::try_from(rows).unwrap_or(i64::MAX);
            let reading = async {
                // The server behind this session may be another one than the tracker's, or none any more. Asked first: behind a
                // page that is cut short, the rest of it would have to come over the wire before the answer.
                let (seen, page) = tokio::join!(
                    instances::epoch(&client, log.schema(), process),
                    pages::read(&client, log.schema(), &wanted, rows, bytes),
                );
                Ok::<_, tokio_postgres::Error>((page?, seen?))
            };
            let (events, full) = match deadline(log.limit(), "reading events", reading).await {
                Ok((page, seen)) if seen == Some(epoch) => page,
                Ok(_) => {
                    throw_away(client);
                    return Err(Error::new(
                        ErrorKind::Connection,
                        "reading events: the server was restarted or replaced",
                    ));
                }
                Err(error) => {
                    // Whatever it was, the connection may still be busy with it.
                    throw_away(client);
                    return Err(error);
                }
            };
            if full && i64::try_from(events.len()) != Ok(rows) {
                // It ended at the bytes: the rest of the rows is still on its way over this connection.
                throw_away(client);
            }
            let to = match events.last() {
                Some(last) if full => last.id(),
                _ => up_to,
            };
            Ok(Page { from: position, to, events })
        }
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.forget();
    }
}
