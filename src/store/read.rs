//! Reading: the log up to the safe head, a stream to its end, one event.

use std::collections::VecDeque;
use std::fmt;

use uuid::Uuid;

use crate::error::Error;
use crate::event::Event;
use crate::pg::events::{self, StreamName};
use crate::store::Inorder;

/// Events of a stream that are read at a time.
const PAGE: i64 = 1_000;

impl Inorder {
    /// The safe head: every event that will ever be at or below this id is there, and stays.
    ///
    /// # Errors
    /// [`ErrorKind::Unsafe`](crate::ErrorKind::Unsafe) when the log does not satisfy what that rests on.
    pub async fn safe_head(&self) -> Result<i64, Error> {
        self.asking("finding the safe head", async |client| events::safe_head(client, self.schema()).await)
            .await
    }

    /// The events above the id `after`, in id order, never past the safe head: what is read is never followed by an event
    /// with a lower id. Begin with 0 and go on with the id of the last event; empty when there is nothing more for now.
    ///
    /// At most `limit` events, and fewer where they would take more than some megabytes.
    ///
    /// # Errors
    /// As for [`safe_head`](Self::safe_head).
    pub async fn read(&self, after: i64, limit: usize) -> Result<Vec<Event>, Error> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        // The safe head first, then the rows in a later snapshot: in the other order a row could be missing.
        let bound = self.safe_head().await?;
        if bound <= after || limit == 0 {
            return Ok(Vec::new());
        }
        let what = format!("reading the log above id {after}");
        let page = self
            .asking(&what, async |client| events::read(client, self.schema(), after, bound, limit).await)
            .await?;
        Ok(page.events)
    }

    /// Reads a stream, from its first event to its last; what is returned says how, and reads.
    ///
    /// A stream is read to its end, not only to the safe head: its writers are serialised, so nothing can appear
    /// below its last version.
    ///
    /// ```no_run
    /// # async fn example(log: inorder::Inorder) -> Result<(), inorder::Error> {
    /// let mut order = log.read_stream("order", 42);
    /// while let Some(event) = order.next().await? {
    ///     println!("{:?} {}", event.stream_version(), event.event_type());
    /// }
    /// let latest = log.read_stream("order", 42).backward().limit(10).all().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_stream(&self, stream_type: impl Into<String>, stream_id: impl fmt::Display) -> StreamReader {
        StreamReader {
            log: self.clone(),
            stream: (String::new(), stream_type.into(), stream_id.to_string()),
            backward: false,
            from: None,
            left: i64::MAX,
            read: VecDeque::new(),
            ended: false,
        }
    }

    /// The event of this name, `None` where it is not in the log.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn event(&self, event_id: Uuid) -> Result<Option<Event>, Error> {
        let what = format!("reading event {event_id}");
        self.asking(&what, async |client| events::find(client, self.schema(), event_id).await).await
    }
}

/// Reads one stream, page by page behind the scenes; made by [`Inorder::read_stream`].
///
/// A few megabytes of events are held at a time. Events that are appended while it reads forward are read as well.
#[derive(Clone)]
#[must_use = "reads nothing until it is asked to"]
pub struct StreamReader {
    log: Inorder,
    stream: StreamName,
    backward: bool,
    /// The version at which the next page begins; `None` where the stream does.
    from: Option<i64>,
    /// How many events are still asked for.
    left: i64,
    read: VecDeque<Event>,
    ended: bool,
}

impl StreamReader {
    /// The tenant that the stream belongs to. Default: none.
    pub fn tenant(mut self, tenant_id: impl Into<String>) -> Self {
        self.stream.0 = tenant_id.into();
        self
    }

    /// Begins at this version, which is read, too. Default: the first, backward the last.
    pub fn from_version(mut self, version: i64) -> Self {
        self.from = Some(version);
        self
    }

    /// Reads from the last event to the first.
    pub fn backward(mut self) -> Self {
        self.backward = true;
        self
    }

    /// Ends after this many events. Default: no limit.
    pub fn limit(mut self, events: usize) -> Self {
        self.left = i64::try_from(events).unwrap_or(i64::MAX);
        self
    }

    /// The next event; `None` after the last one.
    ///
    /// Cancel safety: when the future is dropped, no event is lost.
    ///
    /// # Errors
    /// When the server does not answer. The same call may be made again.
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        if self.read.is_empty() && !self.ended {
            self.fetch().await?;
        }
        Ok(self.read.pop_front())
    }

    /// All of them at once. Holds them in memory, so give a [`limit`](Self::limit) where the stream may be long.
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    pub async fn all(mut self) -> Result<Vec<Event>, Error> {
        let mut all = Vec::new();
        loop {
            all.extend(self.read.drain(..));
            if self.ended {
                return Ok(all);
            }
            self.fetch().await?;
        }
    }

    async fn fetch(&mut self) -> Result<(), Error> {
        let (tenant_id, stream_type, stream_id) = &self.stream;
        let from = self.from.unwrap_or(if self.backward { i64::MAX } else { 0 });
        let limit = self.left.min(PAGE);
        if limit == 0 {
            self.ended = true;
            return Ok(());
        }
        let what = if tenant_id.is_empty() {
            format!("reading stream {stream_type:?} {stream_id:?} from version {from}")
        } else {
            format!(
                "reading stream {stream_type:?} {stream_id:?} of tenant {tenant_id:?} from version {from}"
            )
        };
        let page = self
            .log
            .asking(&what, async |client| {
                events::read_stream(client, self.log.schema(), &self.stream, self.backward, from, limit).await
            })
            .await?;
        let count = i64::try_from(page.events.len()).unwrap_or(i64::MAX);
        self.left -= count;
        self.ended = !page.more || self.left == 0;
        if let Some(version) = page.events.last().and_then(Event::stream_version) {
            self.from = Some(if self.backward { version - 1 } else { version + 1 });
        }
        self.read.extend(page.events);
        Ok(())
    }
}

impl fmt::Debug for StreamReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamReader")
            .field("stream", &self.stream)
            .field("backward", &self.backward)
            .field("from", &self.from)
            .finish_non_exhaustive()
    }
}
