//! What operators do: see how consumers stand, stop, repair and restart them, settle dead letters, prune the log.
//!
//! The rules live in the database, as SQL functions of the same names, so that psql, this module and the tool obey the same
//! ones. Every action runs in one transaction of its own, under the lock of the rows that it changes, and leaves an audit row.

mod audit;
mod change;
mod doctor;
mod handoffs;
mod instances;
mod ledger;
mod letters;
mod progress;
mod prune;
mod reset;
mod roles;
mod row;
mod trace;

use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use tokio_postgres::Row;
use uuid::Uuid;

pub use self::audit::{AuditRow, AuditRows};
pub use self::change::{Change, Target};
pub use self::doctor::{Doctor, Finding, Severity};
pub use self::handoffs::{ForgottenHandoffs, HandoffRow, HandoffRows, HandoffState};
pub use self::instances::{Instance, InstanceConsumer, InstanceState};
pub use self::ledger::{LedgerRow, LedgerRows, LedgerStatus};
pub use self::letters::{DeadLetter, DeadLetterState, DeadLetters, SettledLetters};
pub use self::progress::{Blocker, ConsumerStatus, LogProgress, Progress};
pub use self::prune::{Prune, Pruned};
pub use self::reset::Reset;
pub use self::roles::Role;
pub use self::row::ConsumerRow;
pub use self::trace::{Trace, TraceOf, TracedEvent};

use crate::consumer::Start;
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::ledger::LedgerKey;
use crate::pg::Schema;
use crate::pg::admin::{self as statements, Action, Done, Entries, Note, Settling, Verb};
use crate::store::Inorder;

/// What an operator sees and does; from [`Inorder::admin`].
///
/// ```no_run
/// # async fn run(log: inorder::Inorder) -> Result<(), inorder::Error> {
/// use inorder::Target;
///
/// let admin = log.admin().by("ops@example.com");
/// for consumer in admin.list().await? {
///     println!("{} is {}, {} events behind", consumer.name, consumer.status, consumer.lag);
/// }
/// admin.restart("search-index").await?;
/// admin.because("disk full on node 1").disable(Target::consumer("cache").instance("node-1")).await?;
/// # Ok(())
/// # }
/// ```
///
/// An action answers a [`Change`] for every state row that it touched.
///
/// # Errors
/// Of every method; what refuses changes nothing.
///
/// | refused because | [`ErrorKind`] | SQLSTATE |
/// |---|---|---|
/// | there is no such consumer, instance, partition, dead letter, row of the ledger or hand-off; the hint names those there are | `NotRegistered` | IO003 |
/// | it does not stand as the action needs it: the message says how it stands, the hint what to do | `Precondition` | IO004 |
/// | a pass, or somebody else, holds the row for seconds: the message names the session | `Busy` | IO005 |
///
/// Besides, [`ErrorKind::Connection`], [`ErrorKind::Database`]; and [`ErrorKind::Timeout`] when there is no answer within
/// [`Config::statement_timeout`](crate::Config::statement_timeout): then the action may have been done, and
/// [`progress`](Self::progress) tells. So it is with a future that is dropped.
#[derive(Clone, Debug)]
pub struct Admin {
    log: Inorder,
    by: Option<String>,
    why: Option<String>,
    force: bool,
}

impl Inorder {
    /// What an operator sees and does.
    pub fn admin(&self) -> Admin {
        Admin { log: self.clone(), by: None, why: None, force: false }
    }
}

/// How it is done.
impl Admin {
    /// Who acts, for the audit trail. Default: the user of the database session.
    #[must_use]
    pub fn by(&self, who: impl Into<String>) -> Self {
        Self { by: Some(who.into()), ..self.clone() }
    }

    /// Why, for the audit trail.
    #[must_use]
    pub fn because(&self, why: impl Into<String>) -> Self {
        Self { why: Some(why.into()), ..self.clone() }
    }

    /// Terminates the session that holds a row, instead of answering [`ErrorKind::Busy`]. What it did not commit is rolled
    /// back; the events are delivered again. Needs to be the session's own role, or a member of it or of `pg_signal_backend`.
    #[must_use]
    pub fn force(&self) -> Self {
        Self { force: true, ..self.clone() }
    }
}

/// Looking.
impl Admin {
    /// Every state row, those farthest behind first.
    pub async fn list(&self) -> Result<Vec<Progress>, Error> {
        let rows = self
            .ask("listing the consumers", async |client, schema| {
                statements::progress(client, schema, None).await
            })
            .await?;
        Ok(rows.iter().map(Progress::from_row).collect())
    }

    /// The state rows of one consumer, those farthest behind first.
    pub async fn progress(&self, consumer: &str) -> Result<Vec<Progress>, Error> {
        let rows = self
            .ask(&format!("looking at consumer {consumer:?}"), async |client, schema| {
                statements::progress(client, schema, Some(consumer)).await
            })
            .await?;
        Ok(rows.iter().map(Progress::from_row).collect())
    }

    /// All that is known of the state rows of one consumer, with the events at which they failed; those farthest behind first, at most
    /// 100. A consumer's name stands for all its instances here.
    pub async fn consumer(&self, which: impl Into<Target>) -> Result<Vec<ConsumerRow>, Error> {
        let which = which.into();
        let rows = self
            .ask(&format!("looking at {which}"), async |client, schema| {
                statements::consumer_rows(client, schema, &which.consumer, &which.instance, which.partition)
                    .await
            })
            .await?;
        Ok(rows.into_iter().map(ConsumerRow::from_row).collect())
    }

    /// The processes that run dispatchers, or follow the log, and which state rows each of them runs; by host, at most 1,000.
    pub async fn instances(&self) -> Result<Vec<Instance>, Error> {
        let rows = self.ask("listing the processes", statements::list_instances).await?;
        Ok(rows.iter().map(Instance::from_row).collect())
    }

    /// What operators did, newest first.
    pub async fn audit(&self, which: &AuditRows) -> Result<Vec<AuditRow>, Error> {
        let done = Done {
            consumer: which.consumer.as_deref(),
            instance: which.instance.as_deref(),
            action: which.action.as_deref(),
            by: which.by.as_deref(),
            limit: which.limit,
            before: which.before,
        };
        let rows = self
            .ask("looking at the audit trail", async |client, schema| {
                statements::audit_rows(client, schema, &done).await
            })
            .await?;
        Ok(rows.iter().map(AuditRow::from_row).collect())
    }

    /// How the log as a whole stands: head, safe head, whether there is a hole.
    pub async fn log_progress(&self) -> Result<LogProgress, Error> {
        let row = self.ask("looking at the log", statements::log_progress).await?;
        Ok(LogProgress::from_row(&row))
    }

    /// Who is writing, and so may hold a hole open; the longest transactions first.
    pub async fn blockers(&self) -> Result<Vec<Blocker>, Error> {
        let rows = self.ask("looking for writers", statements::blockers).await?;
        Ok(rows.iter().map(Blocker::from_row).collect())
    }
}

/// Acting on a consumer.
impl Admin {
    /// Lets a dead consumer try again, at the event at which it died.
    pub async fn restart(&self, target: impl Into<Target>) -> Result<Vec<Change>, Error> {
        self.act("restarting", Verb::Restart, &target.into()).await
    }

    /// Passes over the event that the consumer would be given next, and only if it is the expected one. A dead letter keeps the
    /// event. Of a partitioned consumer the partition is found by the event.
    pub async fn skip_poison(
        &self,
        target: impl Into<Target>,
        expected_event_id: Uuid,
    ) -> Result<Change, Error> {
        let target = target.into();
        let what = format!("skipping event {expected_event_id} of {target}");
        let rows = self
            .ask(&what, async |client, schema| {
                statements::skip_poison(client, schema, &self.action(&target), expected_event_id).await
            })
            .await?;
        only(&what, &rows)
    }

    /// Stops a consumer until it is enabled. It no longer holds back prune.
    pub async fn disable(&self, target: impl Into<Target>) -> Result<Vec<Change>, Error> {
        self.act("disabling", Verb::Disable, &target.into()).await
    }

    /// Lets a disabled or expired consumer run again from where it stands.
    pub async fn enable(&self, target: impl Into<Target>) -> Result<Vec<Change>, Error> {
        self.act("enabling", Verb::Enable, &target.into()).await
    }

    /// Moves a consumer: the next event that it is given is the first above the place. Never beyond the safe head, which is what
    /// [`Start::Head`] means. The failure is cleared; a disabled or expired consumer stays so. Events that are passed over leave a
    /// dead letter for the range.
    ///
    /// What an effect or queued consumer did stays done, though its events are read again, unless [`Reset::repeat_effects`] says
    /// otherwise; the others do again what they read again. It is refused to a place above which events were pruned, unless
    /// [`Reset::accept_pruned`] says that they are gone, and to one above which the ledger has forgotten what was done, unless
    /// effects may repeat.
    pub async fn reset(&self, target: impl Into<Target>, to: impl Into<Reset>) -> Result<Vec<Change>, Error> {
        let (target, reset) = (target.into(), to.into());
        let place = match reset.to {
            Start::Beginning => "beginning".to_owned(),
            Start::Head => "head".to_owned(),
            Start::After(id) => id.to_string(),
        };
        let rows = self
            .ask(&format!("resetting {target} to {place}"), async |client, schema| {
                statements::reset(client, schema, &self.action(&target), &place, &reset.terms).await
            })
            .await?;
        Ok(changes(&rows))
    }

    /// Removes a consumer, or one instance of it: all its partitions. Its unfinished dead letters are discarded, and what waits in
    /// its queue is forgotten; what it did stays in the ledger. A dispatcher that still has it registers it anew at its next start.
    pub async fn unregister(&self, target: impl Into<Target>) -> Result<Vec<Change>, Error> {
        let target = target.into();
        target.whole("unregistering")?;
        let rows = self
            .ask(&format!("unregistering {target}"), async |client, schema| {
                statements::unregister(client, schema, &self.action(&target)).await
            })
            .await?;
        Ok(changes(&rows))
    }

    /// Splits a consumer into another number of partitions. All its rows must stand at the same position, be idle or disabled
    /// alike, and wait for nothing. Its revision is raised by one: processes that still have the old number no longer run it;
    /// those with [`partitions`](crate::Consumer::partitions) and [`revision`](crate::Consumer::revision) as they are now do.
    pub async fn repartition(
        &self,
        target: impl Into<Target>,
        partitions: i32,
    ) -> Result<Vec<Change>, Error> {
        let target = target.into();
        target.whole("splitting")?;
        let rows = self
            .ask(&format!("splitting {target} into {partitions} partitions"), async |client, schema| {
                statements::repartition(client, schema, &self.action(&target), partitions).await
            })
            .await?;
        Ok(changes(&rows))
    }

    /// Accepts that events which the consumer had not read were pruned: it runs again, behind them. A dead letter keeps the range.
    pub async fn accept_pruned(&self, target: impl Into<Target>) -> Result<Vec<Change>, Error> {
        self.act("accepting what was pruned for", Verb::AcceptPruned, &target.into()).await
    }
}

/// Dead letters.
impl Admin {
    /// What was passed over, oldest first.
    pub async fn dead_letters(&self, which: &DeadLetters) -> Result<Vec<DeadLetter>, Error> {
        let rows = self
            .ask("listing dead letters", async |client, schema| {
                statements::dead_letters(client, schema, &which.fitting()).await
            })
            .await?;
        Ok(rows.iter().map(DeadLetter::from_row).collect())
    }

    /// One dead letter, and its event, which is `None` where it was pruned, for a range, and where the role may not read payloads, as
    /// a monitor.
    pub async fn dead_letter(&self, id: i64) -> Result<(DeadLetter, Option<Event>), Error> {
        let what = format!("looking at dead letter {id}");
        let row = self
            .ask(&what, async |client, schema| statements::dead_letter(client, schema, id).await)
            .await?
            .ok_or_else(|| Error::new(ErrorKind::NotRegistered, format!("{what}: there is none")))?;
        let letter = DeadLetter::from_row(&row);
        let there = row.get::<_, Option<i64>>(0).is_some();
        Ok((letter, there.then(|| Event::from_row(row))))
    }

    /// Asks for one more delivery of a dead letter's event: the consumer's own next pass does it, out of order.
    pub async fn retry_dead_letter(&self, id: i64) -> Result<Change, Error> {
        let what = format!("asking for a retry of dead letter {id}");
        let rows = self
            .ask(&what, async |client, schema| {
                statements::retry_dead_letter(client, schema, id, self.note()).await
            })
            .await?;
        only(&what, &rows)
    }

    /// Settles a dead letter: its event will not be delivered again, and no longer holds back prune.
    pub async fn discard_dead_letter(&self, id: i64) -> Result<Change, Error> {
        let what = format!("discarding dead letter {id}");
        let rows = self
            .ask(&what, async |client, schema| {
                statements::discard_dead_letter(client, schema, id, self.note()).await
            })
            .await?;
        only(&what, &rows)
    }
}

/// Dead letters, many at once.
impl Admin {
    /// Asks for one more delivery of the events of the dead letters that fit, in one transaction with one audit row. Call again
    /// while [`SettledLetters::more`], with [`DeadLetters::after`] the last of them.
    pub async fn retry_dead_letters(&self, which: &DeadLetters) -> Result<SettledLetters, Error> {
        self.settle_letters("asking for retries of dead letters", Settling::Retry, which).await
    }

    /// Settles the dead letters that fit, in one transaction with one audit row: their events will not be delivered again. Call
    /// again while [`SettledLetters::more`].
    pub async fn discard_dead_letters(&self, which: &DeadLetters) -> Result<SettledLetters, Error> {
        self.settle_letters("discarding dead letters", Settling::Discard, which).await
    }

    async fn settle_letters(
        &self,
        what: &str,
        settling: Settling,
        which: &DeadLetters,
    ) -> Result<SettledLetters, Error> {
        let row = self
            .ask(what, async |client, schema| {
                statements::settle_dead_letters(client, schema, settling, &which.fitting(), self.note()).await
            })
            .await?;
        Ok(SettledLetters::from_row(&row))
    }
}

/// The ledger.
impl Admin {
    /// What the ledger holds, in the order of the keys. With a key alone that it does not know, [`ErrorKind::NotRegistered`].
    pub async fn ledger_rows(&self, which: &LedgerRows) -> Result<Vec<LedgerRow>, Error> {
        let entries = Entries {
            key: which.key,
            handler: which.handler.as_deref(),
            status: which.status,
            limit: which.limit,
            after: which.after.as_ref(),
        };
        let rows = self
            .ask("looking at the ledger", async |client, schema| {
                statements::ledger_rows(client, schema, &entries).await
            })
            .await?;
        Ok(rows.iter().map(LedgerRow::from_row).collect())
    }

    /// Takes a claim back before its lease runs out: it may be claimed at once, and what its former holder says of it changes
    /// nothing any more. Only if the holder's process is known to be gone, or with [`force`](Self::force): if it lives after all,
    /// the effect may be run twice at the same time.
    pub async fn ledger_release(&self, key: impl Into<LedgerKey>, handler: &str) -> Result<Change, Error> {
        let key = key.into().event_id();
        let what = format!("releasing {key} of {handler:?}");
        let rows = self
            .ask(&what, async |client, schema| {
                statements::ledger_release(client, schema, key, handler, self.note(), self.force).await
            })
            .await?;
        only(&what, &rows)
    }

    /// Forgets what the ledger knows of an effect: it may then be run again, by whoever claims it. Not while a claim on it is valid.
    /// What a queue had not finished is passed over with that, and leaves a dead letter.
    pub async fn ledger_forget(&self, key: impl Into<LedgerKey>, handler: &str) -> Result<Change, Error> {
        let key = key.into().event_id();
        let what = format!("forgetting {key} of {handler:?}");
        let rows = self
            .ask(&what, async |client, schema| {
                statements::ledger_forget(client, schema, key, handler, self.note()).await
            })
            .await?;
        only(&what, &rows)
    }

    /// Forgets what was done so long ago, an hour at least, in steps of one transaction each, until the walk through the ledger has
    /// come to its end. The answer is how many rows went. A running dispatcher does the same every hour, see
    /// [`forget_done_after`](crate::DispatcherBuilder::forget_done_after).
    ///
    /// What a consumer may be given again stays. Where events of what went are still in the log, nobody gets a claim at or below
    /// them any more that has no row.
    pub async fn ledger_prune(&self, older_than: Duration) -> Result<i64, Error> {
        let mut forgotten = 0;
        loop {
            let (deleted, more) = self
                .ask("forgetting what was done long ago", async |client, schema| {
                    statements::ledger_prune(client, schema, older_than, self.note()).await
                })
                .await?;
            forgotten += deleted;
            if !more {
                return Ok(forgotten);
            }
        }
    }
}

/// Retention.
impl Admin {
    /// Deletes what `prune` says, in steps of one transaction each, until there is nothing left that may go; after each step,
    /// `report` is told the sum so far. What was old enough but is still needed stays, and the answer names who needs it.
    ///
    /// Cancel safety: dropped between two answers, the step under way may still be done; the next call goes on from there.
    pub async fn prune(&self, prune: &Prune, mut report: impl FnMut(&Pruned)) -> Result<Pruned, Error> {
        let mut sum = Pruned::default();
        loop {
            sum.add(self.prune_step(prune).await?);
            report(&sum);
            if !sum.more {
                return Ok(sum);
            }
        }
    }

    /// One step of [`prune`](Self::prune). Call again while [`Pruned::more`].
    pub async fn prune_step(&self, prune: &Prune) -> Result<Pruned, Error> {
        let row = self
            .ask(&format!("pruning {prune}"), async |client, schema| {
                statements::prune(client, schema, &prune.step(false), self.note()).await
            })
            .await?;
        Ok(Pruned::from_row(&row))
    }

    /// What [`prune`](Self::prune) would delete, all of it, and who needs what must stay. Deletes nothing.
    pub async fn prunable(&self, prune: &Prune) -> Result<Pruned, Error> {
        let row = self
            .ask(&format!("counting what may be pruned {prune}"), async |client, schema| {
                statements::prune(client, schema, &prune.step(true), self.note()).await
            })
            .await?;
        Ok(Pruned::from_row(&row))
    }
}

impl Admin {
    async fn act(&self, doing: &str, verb: Verb, target: &Target) -> Result<Vec<Change>, Error> {
        let rows = self
            .ask(&format!("{doing} {target}"), async |client, schema| {
                statements::act(client, schema, verb, &self.action(target)).await
            })
            .await?;
        Ok(changes(&rows))
    }

    fn note(&self) -> Note<'_> {
        Note { by: self.by.as_deref(), why: self.why.as_deref() }
    }

    fn action<'a>(&'a self, target: &'a Target) -> Action<'a> {
        Action {
            consumer: &target.consumer,
            instance: &target.instance,
            partition: target.partition,
            note: self.note(),
            force: self.force,
        }
    }

    async fn ask<T>(
        &self,
        what: &str,
        question: impl AsyncFnOnce(&ClientWrapper, &Schema) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, Error> {
        self.log.asking(what, async |client| question(client, self.log.schema()).await).await
    }
}

fn changes(rows: &[Row]) -> Vec<Change> {
    rows.iter().map(Change::from_row).collect()
}

fn only(what: &str, rows: &[Row]) -> Result<Change, Error> {
    match rows {
        [row] => Ok(Change::from_row(row)),
        _ => Err(Error::new(ErrorKind::NotRegistered, format!("{what}: it was unregistered meanwhile"))),
    }
}
