//! How the database stands, asked for as often as somebody wants to know, and answered by the database no more often than agreed.
//!
//! One session of the sampler's own, so that monitoring sees when the pools are exhausted. Whoever asks while a sample is taken waits for
//! that one. A failure is kept like any other answer: a database that is down is not asked by every scraper.
//!
//! # Failure handling
//!
//! Whatever goes wrong ends the session. One that broke since it was used last is made anew at once, once. Everything together,
//! connecting included, has one time limit. A future that is dropped takes the session along.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool_postgres::ClientWrapper;

use crate::admin::{Blocker, LogProgress};
use crate::error::Error;
use crate::pg::consumers::Totals;
use crate::pg::consumers::poll::{self, Poll};
use crate::pg::{self, admin, consumers, handoffs, instances, ledger, session};
use crate::store::Inorder;

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Takes samples.
pub(super) struct Sampler {
    log: Inorder,
    every: Duration,
    limit: Duration,
    session: Mutex<Option<ClientWrapper>>,
    sample: Kept<Sample>,
    readiness: Kept<()>,
    hole: Mutex<Hole>,
}

/// How the database stood at one moment, as far as one can say so of several statements.
pub(super) struct Sample {
    pub(super) poll: Poll,
    pub(super) totals: Vec<Totals>,
    /// As far as is known without waiting for writers.
    pub(super) safe_head: i64,
    /// How old the hole is that it stands before.
    pub(super) hole: Option<Duration>,
    /// Who is writing.
    pub(super) blockers: Vec<Blocker>,
    /// By version.
    pub(super) instances: Vec<(String, i64)>,
    /// By handler and status.
    pub(super) ledger: Vec<(String, String, i64)>,
    /// By scope, with the age of the oldest in seconds.
    pub(super) handoffs: Vec<(String, i64, f64)>,
}

impl Sampler {
    pub(super) fn new(log: &Inorder, every: Duration, limit: Duration) -> Self {
        Self {
            log: log.clone(),
            every,
            limit,
            session: Mutex::default(),
            sample: Kept::default(),
            readiness: Kept::default(),
            hole: Mutex::default(),
        }
    }

    /// How the database stands.
    pub(super) async fn sample(&self) -> Arc<Result<Sample, Error>> {
        let taking =
            self.on_a_session("sampling the log", |sampler, session| Box::pin(sampler.look(session)));
        self.sample.or_else(self.every, taking).await
    }

    /// Is the database reached, and does the schema fit?
    pub(super) async fn readiness(&self) -> Arc<Result<(), Error>> {
        let checking = self.on_a_session("checking the schema", |sampler, session| {
            Box::pin(sampler.log.check_schema_on(&**session, sampler.limit, "checking the schema"))
        });
        self.readiness.or_else(self.every, checking).await
    }

    async fn look(&self, session: &ClientWrapper) -> Result<Sample, Error> {
        let schema = self.log.schema();
        let asking = async {
            session::look(session, self.limit).await?;
            let rows = futures_util::try_join!(
                poll::look(session, schema),
                consumers::totals(session, schema),
                admin::log_progress(session, schema),
                admin::blockers(session, schema),
                instances::count(session, schema),
                ledger::count_unfinished(session, schema),
                handoffs::count_unfinished(session, schema),
            )?;
            session::roll_back(session).await?;
            Ok(rows)
        };
        let asked = asking.await.map_err(|e| Error::statement("sampling the log", e));
        let (poll, totals, log, blockers, instances, ledger, handoffs) = asked?;
        let blockers: Vec<Blocker> = blockers.iter().map(Blocker::from_row).collect();
        let oldest = blockers
            .iter()
            .filter_map(|b| b.age_seconds)
            .fold(None, |a: Option<f64>, b| Some(a.map_or(b, |a| a.max(b))));
        let (safe_head, hole) = self.hole.lock().unwrap_or_else(PoisonError::into_inner).now(
            &LogProgress::from_row(&log),
            oldest,
            Instant::now(),
        );
        Ok(Sample { poll, totals, safe_head, hole, blockers, instances, ledger, handoffs })
    }

    /// Asks on our session, or a new one where there is none or it broke; within the limit.
    async fn on_a_session<T>(
        &self,
        what: &str,
        ask: impl for<'a> Fn(&'a Self, &'a ClientWrapper) -> BoxFuture<'a, T>,
    ) -> Result<T, Error> {
        let asking = async {
            let kept = self.session.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(session) = kept {
                match ask(self, &session).await {
                    Err(error) if error.is_retryable() => {}
                    answer => return self.keep(session, answer),
                }
            }
            let session = Box::pin(self.log.connector().connect()).await?;
            let answer = ask(self, &session).await;
            self.keep(session, answer)
        };
        pg::deadline(self.limit, what, asking).await
    }

    fn keep<T>(&self, session: ClientWrapper, answer: Result<T, Error>) -> Result<T, Error> {
        if answer.is_ok() {
            *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
        }
        answer
    }
}

/// What came of it last, and when.
struct Kept<T>(tokio::sync::Mutex<Option<(Instant, Found<T>)>>);

type Found<T> = Arc<Result<T, Error>>;

impl<T> Kept<T> {
    /// What is kept, if it is young enough, or else what is found now.
    async fn or_else(
        &self,
        age: Duration,
        finding: impl Future<Output = Result<T, Error>>,
    ) -> Arc<Result<T, Error>> {
        let mut kept = self.0.lock().await;
        if let Some((at, found)) = kept.as_ref()
            && at.elapsed() < age
        {
            return Arc::clone(found);
        }
        let found = Arc::new(finding.await);
        *kept = Some((Instant::now(), Arc::clone(&found)));
        found
    }
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self(tokio::sync::Mutex::default())
    }
}

/// Since when the safe head stands where it stands, from sample to sample.
///
/// What is known without waiting is a lower bound: an id that was rolled back looks like a hole for as long as anybody writes. So a hole
/// is no older than the transaction that has been writing for longest, and the safe head does not go back unless the log did.
#[derive(Debug, Default)]
struct Hole {
    head: i64,
    safe_head: i64,
    since: Option<Instant>,
}

impl Hole {
    /// The safe head, and the age of the hole before which it stands.
    fn now(
        &mut self,
        log: &LogProgress,
        oldest_writer: Option<f64>,
        now: Instant,
    ) -> (i64, Option<Duration>) {
        let went_back = log.head < self.head;
        let safe_head = if went_back { log.safe_head } else { log.safe_head.max(self.safe_head) };
        let stands = safe_head == self.safe_head && !went_back;
        let since = match (safe_head < log.head, self.since) {
            (false, _) => None,
            (true, Some(since)) if stands => Some(since),
            (true, _) => Some(now),
        };
        *self = Self { head: log.head, safe_head, since };
        let age = since.map(|since| {
            let seen = now.saturating_duration_since(since);
            oldest_writer
                .and_then(|s| Duration::try_from_secs_f64(s).ok())
                .map_or(seen, |writing| seen.min(writing))
        });
        (safe_head, age)
    }
}
