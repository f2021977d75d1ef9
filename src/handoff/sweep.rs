//! What is done once in a while: writing down what was decided without the table, and deleting what is kept no longer.

use std::time::Duration;

use serde::Serialize;
use uuid::Uuid;

use super::Handoff;
use super::decision::{Claim, Side};
use crate::error::Error;
use crate::metrics;

/// How many rows are written or deleted at a time.
const STEP: usize = 10_000;
const LIMIT: i32 = 10_000;

/// What [`Handoff::run_once`] came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HandoffSweep {
    /// Decisions of this process, made while the table was away, that it has now.
    pub recorded: usize,
    /// Of those, events that the table gave to the other side: both were told to run them.
    pub both_sides: usize,
    /// Rows that were kept long enough and are gone.
    pub deleted: i64,
    /// There is more to be recorded or deleted: call again.
    pub more: bool,
    /// Events that the direct path took and has not run, by whichever process.
    pub unfinished: i64,
    /// How long ago the oldest of them was taken; zero where there is none.
    pub oldest_unfinished: Duration,
}

impl Handoff {
    /// One bounded step: writes down what was decided while the table was away, and deletes rows that are kept no longer. The hand-off
    /// does so by itself, every [`sweep_interval`](crate::HandoffBuilder::sweep_interval); this is for who prefers to do it by hand.
    ///
    /// Cancel safe: what was not answered is done the next time.
    ///
    /// # Errors
    /// That of the table; what was not written stays in memory.
    pub async fn run_once(&self) -> Result<HandoffSweep, Error> {
        let _one_at_a_time = self.inner.sweeping.lock().await;
        let mut owed = self.remembering(|memory| memory.owed());
        let mut more = owed.len() > STEP;
        owed.truncate(STEP);
        let both_sides = self.record(&owed).await?;
        self.report_both_sides(both_sides);
        let swept = self.inner.table.sweep(LIMIT).await?;
        more |= swept.deleted >= i64::from(LIMIT);
        metrics::handoff_swept(self.scope(), swept.deleted, swept.unfinished, swept.oldest_unfinished);
        Ok(HandoffSweep {
            recorded: owed.len(),
            both_sides,
            deleted: swept.deleted,
            more,
            unfinished: swept.unfinished,
            oldest_unfinished: swept.oldest_unfinished,
        })
    }

    /// Events that the direct path took at least so long ago and has not run, in whichever process, oldest first, 1,000 at most. Their
    /// deliveries are dropped, so somebody has to run them: whoever took them has died, or is slow. Run each, and call
    /// [`ran_directly`](Self::ran_directly). The ledger keeps two who do so at the same time apart. An operator sees them, too:
    /// [`Admin::handoff_rows`](crate::Admin::handoff_rows), `inorder handoffs list`.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// That of the table.
    pub async fn unfinished(&self, older_than: Duration) -> Result<Vec<Uuid>, Error> {
        self.keep_house();
        let told = self.inner.table.unfinished(older_than, 1_000).await?;
        Ok(self.remembering(|memory| memory.unfinished(told)))
    }

    /// Answers how many of these the other side has.
    async fn record(&self, owed: &[(Uuid, Claim)]) -> Result<usize, Error> {
        let mut both_sides = 0;
        let parts =
            [Claim::of(Side::Direct), Claim { side: Side::Direct, ran: true }, Claim::of(Side::Delivery)];
        for part in parts {
            let keys: Vec<Uuid> =
                owed.iter().filter(|(_, claim)| *claim == part).map(|(key, _)| *key).collect();
            if keys.is_empty() {
                continue;
            }
            let told = match part.ran {
                true => self.inner.table.ran(&keys).await?,
                false => self.inner.table.take(&keys, part.side).await?,
            };
            both_sides += self.remembering(|memory| {
                told.iter().filter(|(key, told)| !memory.recorded(**key, **told)).count()
            });
        }
        Ok(both_sides)
    }
}
