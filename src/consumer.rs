//! A consumer: a name, a handler, and how its events are to be delivered.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::outcome::Failure;

mod effect;
mod handler_tx;

pub(crate) use effect::OutsideHandler;
pub use effect::{Effect, EffectBatchHandler, EffectHandler};
pub use handler_tx::HandlerTx;
pub(crate) use handler_tx::{FirstError, Traces};

/// A boxed future, as closures in the place of handlers return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Handles one event inside the transaction of the pass: its effects through `tx` and the advance of the position commit
/// together or not at all.
///
/// What a handler does outside `tx` may happen more than once: when a later event of the same pass fails, the events
/// before it are delivered again. The future is dropped when the handler's time is up or the dispatcher must stop.
pub trait TransactionalHandler: Send + Sync + 'static {
    /// # Errors
    /// Any error is a retry; [`Failure`] has the other meanings.
    fn handle(&self, event: &Event, tx: &HandlerTx<'_>) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Handles a slice of events, in id order, inside the transaction of the pass; far faster for projections.
///
/// When a slice fails, halves of it are delivered until the failing event stands alone.
pub trait BatchHandler: Send + Sync + 'static {
    /// # Errors
    /// Any error is a retry; [`Failure`] has the other meanings. They take effect when the slice has one event.
    fn handle(
        &self,
        events: &[Event],
        tx: &HandlerTx<'_>,
    ) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// The private twin that can be a trait object. A transactional handler is one that takes slices of one event.
pub(crate) trait Handler: Send + Sync {
    fn handle<'a>(&'a self, events: &'a [Event], tx: &'a HandlerTx<'a>)
    -> BoxFuture<'a, Result<(), Failure>>;
}

struct One<H>(H);

impl<H: TransactionalHandler> Handler for One<H> {
    fn handle<'a>(
        &'a self,
        events: &'a [Event],
        tx: &'a HandlerTx<'a>,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            for event in events {
                self.0.handle(event, tx).await?;
            }
            Ok(())
        })
    }
}

struct Slice<H>(H);

impl<H: BatchHandler> Handler for Slice<H> {
    fn handle<'a>(
        &'a self,
        events: &'a [Event],
        tx: &'a HandlerTx<'a>,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(self.0.handle(events, tx))
    }
}

struct Closure<F>(F);

impl<F> TransactionalHandler for Closure<F>
where
    F: for<'a> Fn(&'a Event, &'a HandlerTx<'a>) -> BoxFuture<'a, Result<(), Failure>> + Send + Sync + 'static,
{
    async fn handle(&self, event: &Event, tx: &HandlerTx<'_>) -> Result<(), Failure> {
        (self.0)(event, tx).await
    }
}

impl<F> BatchHandler for Closure<F>
where
    F: for<'a> Fn(&'a [Event], &'a HandlerTx<'a>) -> BoxFuture<'a, Result<(), Failure>>
        + Send
        + Sync
        + 'static,
{
    async fn handle(&self, events: &[Event], tx: &HandlerTx<'_>) -> Result<(), Failure> {
        (self.0)(events, tx).await
    }
}

/// What a handler gets, and what is guaranteed of its effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One event and the pass's transaction.
    Transactional,
    /// A slice of events and the pass's transaction.
    Batch,
    /// One event or a slice, in order, outside of any transaction.
    Effect,
    /// One event, whenever, outside of any transaction.
    Queued,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Transactional => "transactional",
            Self::Batch => "batch",
            Self::Effect => "effect",
            Self::Queued => "queued",
        }
    }
}

/// Where a consumer that is registered for the first time begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the first event of the log.
    Beginning,
    /// With what is appended from now on.
    Head,
    /// With the first event above this id.
    After(i64),
}

/// A consumer to be run by a [`Dispatcher`](crate::Dispatcher).
///
/// ```
/// use std::time::Duration;
/// use inorder::{Backoff, Consumer, Start};
///
/// let consumer = Consumer::transactional_fn("search-index", |event, tx| {
///     Box::pin(async move {
///         tx.execute("INSERT INTO indexed (event_id) VALUES ($1)", &[&event.event_id()]).await?;
///         Ok(())
///     })
/// })
/// .only(["order.placed", "order.cancelled"])
/// .start(Start::Head)
/// .max_attempts(5)
/// .backoff(Backoff::exponential(Duration::from_secs(5)).up_to(Duration::from_secs(300)))
/// .handler_timeout(Duration::from_secs(10))
/// .revision(2);
/// ```
#[derive(Clone)]
pub struct Consumer {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) work: Work,
    pub(crate) options: Options,
}

/// Who handles the events, and where.
#[derive(Clone)]
pub(crate) enum Work {
    /// In the transaction of the pass.
    Inside(Arc<dyn Handler>),
    /// Outside of any transaction.
    Outside(Arc<dyn OutsideHandler>),
}

/// The options with their defaults.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) event_types: Option<Vec<String>>,
    pub(crate) start: Option<Start>,
    pub(crate) batch_size: usize,
    pub(crate) handler_timeout: Duration,
    pub(crate) pass_timeout: Duration,
    pub(crate) backoff: Backoff,
    pub(crate) max_attempts: u32,
    pub(crate) max_faults: u32,
    pub(crate) skip_errors: bool,
    pub(crate) rearm: Option<(u32, Duration)>,
    pub(crate) per_instance: bool,
    pub(crate) rejoin_at_head: bool,
    pub(crate) partitions: u32,
    pub(crate) revision: u32,
    pub(crate) lease: Duration,
    pub(crate) concurrency: usize,
    pub(crate) in_stream_order: bool,
}

impl Consumer {
    /// A consumer that handles one event at a time in the transaction of the pass.
    pub fn transactional(name: impl Into<String>, handler: impl TransactionalHandler) -> Self {
        Self::new(name.into(), Kind::Transactional, Work::Inside(Arc::new(One(handler))), 100)
    }

    /// As [`transactional`](Self::transactional), with a closure in the place of the handler.
    pub fn transactional_fn<F>(name: impl Into<String>, handler: F) -> Self
    where
        F: for<'a> Fn(&'a Event, &'a HandlerTx<'a>) -> BoxFuture<'a, Result<(), Failure>>
            + Send
            + Sync
            + 'static,
    {
        Self::transactional(name, Closure(handler))
    }

    /// A consumer that handles slices of events in the transaction of the pass.
    pub fn batch(name: impl Into<String>, handler: impl BatchHandler) -> Self {
        Self::new(name.into(), Kind::Batch, Work::Inside(Arc::new(Slice(handler))), 1_000)
    }

    /// As [`batch`](Self::batch), with a closure in the place of the handler.
    pub fn batch_fn<F>(name: impl Into<String>, handler: F) -> Self
    where
        F: for<'a> Fn(&'a [Event], &'a HandlerTx<'a>) -> BoxFuture<'a, Result<(), Failure>>
            + Send
            + Sync
            + 'static,
    {
        Self::batch(name, Closure(handler))
    }

    /// A consumer that handles one event at a time, in order, outside of any transaction, once.
    pub fn effect(name: impl Into<String>, handler: impl EffectHandler) -> Self {
        Self::new(name.into(), Kind::Effect, Work::Outside(Arc::new(effect::One(handler))), 1)
    }

    /// As [`effect`](Self::effect), with a closure in the place of the handler.
    pub fn effect_fn<F>(name: impl Into<String>, handler: F) -> Self
    where
        F: for<'a> Fn(&'a Event, &'a Effect) -> BoxFuture<'a, Result<(), Failure>> + Send + Sync + 'static,
    {
        Self::effect(name, effect::Closure(handler))
    }

    /// As [`effect`](Self::effect), for a handler that takes slices of events, which are claimed and settled together.
    pub fn effect_batch(name: impl Into<String>, handler: impl EffectBatchHandler) -> Self {
        Self::new(name.into(), Kind::Effect, Work::Outside(Arc::new(effect::Slice(handler))), 100)
    }

    /// A consumer that handles many events at once, in no order, outside of any transaction, each once, with attempts, backoff
    /// and dead letter of its own. A failing event holds up no other.
    pub fn queued(name: impl Into<String>, handler: impl EffectHandler) -> Self {
        Self::new(name.into(), Kind::Queued, Work::Outside(Arc::new(effect::One(handler))), 1_000)
    }

    /// As [`queued`](Self::queued), with a closure in the place of the handler.
    pub fn queued_fn<F>(name: impl Into<String>, handler: F) -> Self
    where
        F: for<'a> Fn(&'a Event, &'a Effect) -> BoxFuture<'a, Result<(), Failure>> + Send + Sync + 'static,
    {
        Self::queued(name, effect::Closure(handler))
    }

    fn new(name: String, kind: Kind, work: Work, batch_size: usize) -> Self {
        let options = Options {
            event_types: None,
            start: None,
            batch_size,
            handler_timeout: Duration::from_secs(30),
            pass_timeout: Duration::from_secs(10),
            backoff: Backoff::default(),
            max_attempts: 10,
            max_faults: 20,
            skip_errors: false,
            rearm: None,
            per_instance: false,
            rejoin_at_head: false,
            partitions: 1,
            revision: 1,
            lease: Duration::from_secs(30),
            concurrency: 10,
            in_stream_order: false,
        };
        Self { name, kind, work, options }
    }

    /// Only events of these types. Default: every type.
    #[must_use]
    pub fn only<T: Into<String>>(mut self, event_types: impl IntoIterator<Item = T>) -> Self {
        let mut types: Vec<String> = event_types.into_iter().map(Into::into).collect();
        types.sort_unstable();
        types.dedup();
        self.options.event_types = Some(types);
        self
    }

    /// Where it begins when it is registered for the first time. Default [`Start::Beginning`]; for a per-instance
    /// consumer [`Start::Head`].
    #[must_use]
    pub fn start(mut self, start: Start) -> Self {
        self.options.start = Some(start);
        self
    }

    /// The most events of one slice (batch) or one transaction (transactional). A consumer that is far behind commits
    /// several of them together. Default 100 for transactional, 1,000 for batch consumers.
    #[must_use]
    pub fn batch_size(mut self, events: usize) -> Self {
        self.options.batch_size = events;
        self
    }

    /// How long a handler may take for one event or slice; then it is dropped, and that is a failure. Also the
    /// `statement_timeout` of its session. Default 30 s.
    #[must_use]
    pub fn handler_timeout(mut self, limit: Duration) -> Self {
        self.options.handler_timeout = limit;
        self
    }

    /// After how long a pass takes no further event and commits. Default 10 s.
    #[must_use]
    pub fn pass_timeout(mut self, limit: Duration) -> Self {
        self.options.pass_timeout = limit;
        self
    }

    /// The pauses between attempts. Default 5 s, doubling to 300 s, 10 % jitter.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.options.backoff = backoff;
        self
    }

    /// After how many failed attempts at one event the consumer is dead. Default 10.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.options.max_attempts = attempts;
        self
    }

    /// After how many faults of the server or the network at one event they count as attempts. Default 20.
    #[must_use]
    pub fn max_faults(mut self, faults: u32) -> Self {
        self.options.max_faults = faults;
        self
    }

    /// An event that fails is rolled back, recorded as a dead letter and passed over, all in one transaction, at its first
    /// failure. Faults of the server and deferrals are still waited out. Default: a failing event halts the consumer.
    #[must_use]
    pub fn skip_errors(mut self) -> Self {
        self.options.skip_errors = true;
        self
    }

    /// A dead consumer starts again by itself after `pause`, at most `times` in a row. Default: it stays dead until an
    /// operator acts.
    #[must_use]
    pub fn rearm(mut self, times: u32, pause: Duration) -> Self {
        self.options.rearm = Some((times, pause));
        self
    }

    /// Every instance of the application receives every event: one position per instance, for caches and the like. The
    /// dispatcher needs an [`instance`](crate::DispatcherBuilder::instance).
    #[must_use]
    pub fn per_instance(mut self) -> Self {
        self.options.per_instance = true;
        self
    }

    /// An instance that had not been seen for so long that it expired begins at the head when it comes back; a dead letter
    /// keeps the range that it passed over. Default: it goes on where it was.
    #[must_use]
    pub fn rejoin_at_head(mut self) -> Self {
        self.options.rejoin_at_head = true;
        self
    }

    /// Splits the consumer into `n` rows that run in parallel, on any processes. Order holds within a stream. Default 1.
    #[must_use]
    pub fn partitions(mut self, n: u32) -> Self {
        self.options.partitions = n;
        self
    }

    /// The revision of kind and filter, to be raised with every change of them: the higher one wins, and a process with
    /// a lower one leaves the consumer to others. Default 1.
    #[must_use]
    pub fn revision(mut self, revision: u32) -> Self {
        self.options.revision = revision;
        self
    }

    /// Of an effect or queued consumer: how long what it runs stays its own when its process is heard of no more. It is renewed
    /// while a handler runs. Default 30 s.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// Of a queued consumer: how many events are handled at once, in each process. Default 10.
    #[must_use]
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.options.concurrency = handlers;
        self
    }

    /// Of a queued consumer: the events of one stream are handled one after the other, by their ids. One that fails holds up those
    /// behind it in its stream until it is done or dead. Default: in no order.
    #[must_use]
    pub fn in_stream_order(mut self) -> Self {
        self.options.in_stream_order = true;
        self
    }

    pub(crate) fn wants(&self, event: &Event, partition: i32) -> bool {
        let partitions = self.partition_count();
        self.options.event_types.as_ref().is_none_or(|types| types.iter().any(|t| t == event.event_type()))
            && (partitions == 1 || (event.stream_hash() & i32::MAX) % partitions == partition)
    }

    pub(crate) fn wants_everything(&self) -> bool {
        self.options.event_types.is_none() && self.options.partitions == 1
    }

    pub(crate) fn partition_count(&self) -> i32 {
        saturated(self.options.partitions)
    }

    pub(crate) fn revision_number(&self) -> i32 {
        saturated(self.options.revision)
    }

    pub(crate) fn first(&self) -> Start {
        self.options.start.unwrap_or(if self.options.per_instance { Start::Head } else { Start::Beginning })
    }

    /// Names the field, its value and the range that it must be in.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let o = &self.options;
        let check = |ok: bool, field: &str, value: &dyn fmt::Debug, range: &str| match ok {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Config,
                format!("consumer {:?}: {field} is {value:?}; it must be {range}", self.name),
            )),
        };
        let limit = i32::MAX as u32;
        let longest = Duration::from_secs(24 * 3_600);
        check(!self.name.is_empty() && self.name.len() <= 200, "name", &self.name, "1 to 200 bytes long")?;
        check(
            !self.name.contains(['/', '@', '\0']) && !self.name.starts_with("inorder."),
            "name",
            &self.name,
            "free of / and @, which separate partition and instance, and not begin with \"inorder.\", which is reserved",
        )?;
        check((1..=100_000).contains(&o.batch_size), "batch_size", &o.batch_size, "1 to 100,000")?;
        for (field, value) in [("handler_timeout", o.handler_timeout), ("pass_timeout", o.pass_timeout)] {
            check(value >= Duration::from_millis(1) && value <= longest, field, &value, "1 ms to 24 h")?;
        }
        check(
            o.lease >= Duration::from_millis(100) && o.lease <= longest,
            "lease",
            &o.lease,
            "100 ms to 24 h",
        )?;
        check((1..=10_000).contains(&o.concurrency), "concurrency", &o.concurrency, "1 to 10,000")?;
        check((1..=limit).contains(&o.max_attempts), "max_attempts", &o.max_attempts, "at least 1")?;
        check(o.max_faults <= limit, "max_faults", &o.max_faults, "at most 2,147,483,647")?;
        check((1..=1_024).contains(&o.partitions), "partitions", &o.partitions, "1 to 1,024")?;
        check((1..=limit).contains(&o.revision), "revision", &o.revision, "at least 1")?;
        if let Some(types) = &o.event_types {
            check(!types.is_empty(), "only", types, "at least one event type")?;
        }
        if let Some(Start::After(id)) = o.start {
            check(id >= 0, "start", &id, "after an id of at least 0")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Counts are validated to fit; what is not validated yet stops at the largest.
pub(crate) fn saturated(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
