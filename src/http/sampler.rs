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

#[cfg(test)]
mod tests {
    use super::*;

    fn log(head: i64, safe_head: i64) -> LogProgress {
        let hole = (safe_head < head).then_some(safe_head + 1);
        LogProgress { head, safe_head, hole, writers: 1, pruned_to: 0, pruned_types: serde_json::Value::Null }
    }

    fn secs(seconds: u64) -> Option<Duration> {
        Some(Duration::from_secs(seconds))
    }

    #[test]
    fn a_hole_grows_older_until_the_safe_head_moves() {
        let (mut hole, start) = (Hole::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(hole.now(&log(5, 5), None, at(0)), (5, None));
        assert_eq!(hole.now(&log(9, 6), Some(100.0), at(1)), (6, secs(0)));
        assert_eq!(hole.now(&log(12, 6), Some(100.0), at(8)), (6, secs(7)));
        assert_eq!(hole.now(&log(12, 6), None, at(9)), (6, secs(8)), "nobody may see how old the writer is");
        assert_eq!(hole.now(&log(12, 8), Some(100.0), at(10)), (8, secs(0)));
        assert_eq!(hole.now(&log(12, 12), None, at(11)), (12, None));
    }

    #[test]
    fn an_id_that_was_rolled_back_is_no_old_hole_however_many_writers_come_and_go() {
        let (mut hole, start) = (Hole::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(hole.now(&log(9, 6), Some(0.5), at(0)), (6, secs(0)));
        assert_eq!(hole.now(&log(90, 6), Some(0.5), at(60)), (6, Some(Duration::from_millis(500))));
        assert_eq!(hole.now(&log(95, 95), None, at(61)), (95, None), "a moment without writers");
        assert_eq!(hole.now(&log(99, 6), Some(0.5), at(62)), (95, secs(0)), "what was settled stays so");
    }

    #[test]
    fn a_log_that_lost_its_tail_is_looked_at_anew() {
        let (mut hole, now) = (Hole::default(), Instant::now());
        assert_eq!(hole.now(&log(90, 90), None, now), (90, None));
        assert_eq!(hole.now(&log(80, 70), None, now), (70, secs(0)));
    }
}
