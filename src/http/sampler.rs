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

use crate::admin::Blocker;
use crate::error::Error;
use crate::pg::consumers::Totals;
use crate::pg::consumers::poll::{self, Poll};
use crate::pg::safe_head::{self, Seen};
use crate::pg::{self, admin, consumers, handoffs, instances, ledger, session};
use crate::store::Inorder;

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Takes samples.
pub(super) struct Sampler {
    log: Inorder,
    every: Duration,
    limit: Duration,
    session: Mutex<Option<Session>>,
    sample: Kept<Sample>,
    readiness: Kept<()>,
}

/// How the database stood at one moment, as far as one can say so of several statements.
pub(super) struct Sample {
    pub(super) poll: Poll,
    pub(super) totals: Vec<Totals>,
    /// As far as is known: see [`Known`].
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
            Box::pin(sampler.log.check_schema_on(&*session.client, sampler.limit, "checking the schema"))
        });
        self.readiness.or_else(self.every, checking).await
    }

    async fn look(&self, session: &mut Session) -> Result<Sample, Error> {
        let (schema, client, known) = (self.log.schema(), &session.client, &session.known);
        let asking = async {
            session::look(client, self.limit).await?;
            // Whoever could still fill a hole below the head holds his lock when it has been read.
            let poll = poll::look(client, schema).await?;
            let rows = futures_util::try_join!(
                safe_head::sample(client, schema, known.safe_head),
                consumers::totals(client, schema),
                admin::blockers(client, schema),
                instances::count(client, schema),
                ledger::count_unfinished(client, schema),
                handoffs::count_unfinished(client, schema),
            )?;
            session::roll_back(client).await?;
            Ok((poll, rows))
        };
        let (poll, rows) = asking.await.map_err(|e| Error::statement("sampling the log", e))?;
        let (seen, totals, blockers, instances, ledger, handoffs) = rows;
        let blockers: Vec<Blocker> = blockers.iter().map(Blocker::from_row).collect();
        let longest = blockers.iter().filter_map(|b| b.age_seconds).reduce(f64::max);
        let hole = session.known.learn(poll.top, seen, longest, Instant::now());
        let safe_head = session.known.safe_head;
        Ok(Sample { poll, totals, safe_head, hole, blockers, instances, ledger, handoffs })
    }

    /// Asks on our session, or a new one where there is none or it broke; within the limit.
    async fn on_a_session<T>(
        &self,
        what: &str,
        ask: impl for<'a> Fn(&'a Self, &'a mut Session) -> BoxFuture<'a, T>,
    ) -> Result<T, Error> {
        let asking = async {
            let kept = self.session.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(mut session) = kept {
                match ask(self, &mut session).await {
                    Err(error) if error.is_retryable() => {}
                    answer => return self.keep(session, answer),
                }
            }
            let client = Box::pin(self.log.connector().connect()).await?;
            let mut session = Session { client, known: Known::default() };
            let answer = ask(self, &mut session).await;
            self.keep(session, answer)
        };
        pg::deadline(self.limit, what, asking).await
    }

    fn keep<T>(&self, session: Session, answer: Result<T, Error>) -> Result<T, Error> {
        if answer.is_ok() {
            *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
        }
        answer
    }
}

/// A session, and what is known through it: another may lead to a server that was restarted or replaced.
struct Session {
    client: ClientWrapper,
    known: Known,
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

/// What is known of the safe head, from sample to sample, without waiting for anybody.
///
/// When the writers of an earlier sample are all gone, everything up to what was the head then is settled. So the safe head is never
/// ahead of what it is, and behind it by a sample at most, unless somebody keeps a hole open.
#[derive(Debug, Default)]
struct Known {
    head: i64,
    safe_head: i64,
    /// Since when it stands there, before a hole.
    since: Option<Instant>,
    /// A head, and those of its writers who are still there.
    awaited: Option<(i64, Vec<String>)>,
}

impl Known {
    /// Learns from a sample; answers how old the hole is before which the safe head stands. No hole is older than the transaction
    /// that has been writing for longest.
    fn learn(
        &mut self,
        head: i64,
        Seen { writers, reached }: Seen,
        longest: Option<f64>,
        now: Instant,
    ) -> Option<Duration> {
        if head < self.head {
            // All was pruned, or the log lost its tail.
            *self = Self::default();
        }
        let mut safe_head = self.safe_head.max(reached);
        if let Some((top, awaited)) = &mut self.awaited {
            awaited.retain(|writer| writers.contains(writer));
            if awaited.is_empty() {
                safe_head = safe_head.max(*top);
                self.awaited = None;
            }
        }
        if writers.is_empty() {
            safe_head = safe_head.max(head);
        } else if self.awaited.is_none() {
            self.awaited = Some((head, writers));
        }
        self.since = match self.since {
            _ if safe_head >= head => None,
            Some(since) if safe_head == self.safe_head => Some(since),
            _ => Some(now),
        };
        (self.head, self.safe_head) = (head, safe_head);
        let seen = now.saturating_duration_since(self.since?);
        let writing = longest.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Some(writing.map_or(seen, |writing| seen.min(writing)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(writers: &[&str], reached: i64) -> Seen {
        Seen { writers: writers.iter().map(|&w| w.to_owned()).collect(), reached }
    }

    fn secs(seconds: u64) -> Option<Duration> {
        Some(Duration::from_secs(seconds))
    }

    #[test]
    fn a_hole_grows_older_until_the_safe_head_moves() {
        let (mut known, start) = (Known::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(known.learn(5, seen(&[], 5), None, at(0)), None);
        assert_eq!(known.learn(9, seen(&["a"], 6), Some(100.0), at(1)), secs(0));
        assert_eq!(known.learn(12, seen(&["a", "b"], 6), Some(100.0), at(8)), secs(7));
        assert_eq!(known.learn(12, seen(&["a"], 6), None, at(9)), secs(8), "nobody may see how old it is");
        assert_eq!(known.learn(12, seen(&["a"], 8), Some(100.0), at(10)), secs(0));
        assert_eq!(known.learn(12, seen(&["a"], 8), Some(0.5), at(20)), Some(Duration::from_millis(500)));
        assert_eq!(known.learn(12, seen(&["a"], 12), Some(9.0), at(21)), None);
    }

    #[test]
    fn an_id_that_was_rolled_back_is_passed_when_those_who_wrote_then_are_gone() {
        let (mut known, now) = (Known::default(), Instant::now());
        known.learn(9, seen(&["a", "b"], 6), None, now);
        known.learn(20, seen(&["b", "c"], 6), None, now);
        assert_eq!(known.safe_head, 6, "b may still fill what is below 9");
        known.learn(30, seen(&["c", "d"], 6), None, now);
        assert_eq!(known.safe_head, 9);
        known.learn(40, seen(&["e"], 9), None, now);
        assert_eq!(known.safe_head, 30, "c and d are gone, who wrote when 30 was the head");
        known.learn(50, seen(&[], 40), None, now);
        assert_eq!(known.safe_head, 50);
        known.learn(60, seen(&["f"], 50), None, now);
        assert_eq!(known.safe_head, 50);
    }

    #[test]
    fn a_log_that_lost_its_tail_is_looked_at_anew() {
        let (mut known, now) = (Known::default(), Instant::now());
        known.learn(90, seen(&[], 90), None, now);
        known.learn(80, seen(&["a"], 70), None, now);
        assert_eq!(known.safe_head, 70);
    }
}
