//! What was committed, compared with what was delivered and with the effects in the database.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use futures_util::{TryStreamExt, pin_mut};
use serde::Serialize;
use tokio_postgres::Client;
use uuid::Uuid;

use super::site::Site;
use super::statements::{DISORDER, EVENTS, STANDINGS, STRANGERS, SUSPECTS};
use super::trouble::Result;
use super::witness::Witness;

/// How long the consumers may make no progress at all before they count as stuck.
const PATIENCE: Duration = Duration::from_secs(30);
/// How many of the events that something is wrong with are named.
const NAMED: usize = 20;

/// What is wrong; all zero when every guarantee holds.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Findings {
    /// Committed, wanted, and never handed to a handler.
    pub(crate) missed: u64,
    /// Effects that do not follow in strictly increasing id order, or were written by two holders at the same time.
    pub(crate) out_of_order: u64,
    /// Effects beyond the first of the same event.
    pub(crate) duplicated_effects: u64,
    /// Handed to a handler, and without an effect.
    pub(crate) lost_effects: u64,
    /// Effects of events that are not in the log, or that the consumer does not want.
    pub(crate) strange_effects: u64,
    /// Acknowledged commits whose events are not in the log.
    pub(crate) lost_commits: u64,
    /// Events in the log that were rolled back, or that nobody wrote.
    pub(crate) strange_events: u64,
    /// Consumers that did not come to the end of the log.
    pub(crate) stuck: u64,
    /// Some of the events in question, in words.
    pub(crate) which: Vec<String>,
}

/// Numbers of the log, and those of what an asynchronous commit may lose.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Log {
    pub(crate) committed: u64,
    /// Ids below the head that no event has.
    pub(crate) holes: u64,
    /// Promised under asynchronous commit, and lost in a crash.
    pub(crate) tail_lost: u64,
}

impl Findings {
    pub(crate) fn is_clean(&self) -> bool {
        let Self {
            missed,
            out_of_order,
            duplicated_effects,
            lost_effects,
            strange_effects,
            lost_commits,
            strange_events,
            stuck,
            which: _,
        } = self;
        let counts = [
            missed,
            out_of_order,
            duplicated_effects,
            lost_effects,
            strange_effects,
            lost_commits,
            strange_events,
            stuck,
        ];
        counts.into_iter().all(|count| *count == 0)
    }

    fn name(&mut self, what: impl FnOnce() -> String) {
        if self.which.len() < NAMED {
            self.which.push(what());
        }
    }
}

/// Looks for broken guarantees while everything runs. Finds only what no later commit can mend.
pub(crate) struct Patrol {
    client: Client,
    suspects: tokio_postgres::Statement,
    standings: tokio_postgres::Statement,
    /// Ids at or below it were looked at when they had settled.
    above: i64,
    /// The highest id at the last looks: transactions in flight then have ended by now.
    tops: [i64; 3],
}

impl Patrol {
    pub(crate) async fn begin(site: &Site) -> Result<Self> {
        let client = site.session().await?;
        let suspects = client.prepare(&site.sql(SUSPECTS)).await?;
        let standings = client.prepare(&site.sql(STANDINGS)).await?;
        Ok(Self { client, suspects, standings, above: 0, tops: [0; 3] })
    }

    /// True when a guarantee is broken.
    pub(crate) async fn finds(&mut self) -> Result<bool> {
        let rows = self.client.query(&self.standings, &[]).await?;
        let top = rows.first().map_or(0, |row| row.get("top"));
        // Positions only grow: what they have passed now they have passed in the next statement.
        let least = rows.iter().map(|row| row.get("position")).min().unwrap_or(0);
        let found = self.client.query(&self.suspects, &[/* above */ &self.above, /* passed */ &true]).await?;
        self.above = self.tops[0].min(least);
        self.tops = [self.tops[1], self.tops[2], top];
        Ok(!found.is_empty())
    }
}

/// Waits until every consumer has dealt with every event. False when they make no progress.
pub(crate) async fn drained(site: &Site) -> Result<bool> {
    let client = site.session().await?;
    let standings = client.prepare(&site.sql(STANDINGS)).await?;
    let (mut reached, mut since) = (-1, Instant::now());
    loop {
        let rows = client.query(&standings, &[]).await?;
        let positions = || rows.iter().map(|row| row.get::<_, i64>("position"));
        if rows.iter().all(|row| row.get::<_, i64>("position") >= row.get("top")) {
            return Ok(true);
        }
        let now: i64 = positions().sum();
        if now != reached {
            (reached, since) = (now, Instant::now());
        } else if since.elapsed() > PATIENCE {
            return Ok(false);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Compares everything, when everything is at rest.
pub(crate) async fn audit(site: &Site, witness: &Witness) -> Result<(Findings, Log)> {
    let client = site.session().await?;
    let mut findings = Findings::default();
    for standing in standings(&client, site).await? {
        findings.stuck += 1;
        findings.name(|| standing);
    }
    suspects(&client, site, witness, &mut findings).await?;
    disorder(&client, site, &mut findings).await?;
    for row in client.query(&site.sql(STRANGERS), &[]).await? {
        findings.strange_effects += 1;
        let (lane, id, event): (&str, i64, Uuid) = (row.get("lane"), row.get("id"), row.get("event_id"));
        findings.name(|| {
            format!("{lane} has an effect of event {id} ({event}), which is not in the log or not for it")
        });
    }
    let log = journal(&client, site, witness, &mut findings).await?;
    Ok((findings, log))
}

/// The consumers that have not come to the end of the log, in words.
pub(crate) async fn standings(client: &Client, site: &Site) -> Result<Vec<String>> {
    let mut behind = Vec::new();
    for row in client.query(&site.sql(STANDINGS), &[]).await? {
        let (lane, position, top): (&str, i64, i64) = (row.get("lane"), row.get("position"), row.get("top"));
        if position < top {
            let (status, error): (&str, Option<&str>) = (row.get("status"), row.get("last_error"));
            let error = error.map_or(String::new(), |error| format!(", last error: {error}"));
            behind.push(format!("{lane} stands at {position} of {top} ({status}{error})"));
        }
    }
    Ok(behind)
}

async fn suspects(client: &Client, site: &Site, witness: &Witness, findings: &mut Findings) -> Result<()> {
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 2] =
        [/* above */ &0_i64, /* passed */ &false];
    let rows = client.query_raw(&site.sql(SUSPECTS), parameters).await?;
    pin_mut!(rows);
    while let Some(row) = rows.try_next().await? {
        let (lane, id, event): (&str, i64, Uuid) = (row.get("lane"), row.get("id"), row.get("event_id"));
        let effects: i64 = row.get("effects");
        if let Ok(beyond @ 1..) = u64::try_from(effects - 1) {
            findings.duplicated_effects += beyond;
            findings.name(|| format!("{lane} has {effects} effects of event {id} ({event})"));
        } else if witness.was_delivered(lane, event) {
            findings.lost_effects += 1;
            findings.name(|| format!("{lane} was handed event {id} ({event}) and has no effect of it"));
        } else {
            findings.missed += 1;
            let how = if row.get("passed") { "passed over" } else { "not reached" };
            findings.name(|| format!("{lane} was never handed event {id} ({event}), which was {how}"));
        }
    }
    Ok(())
}

async fn disorder(client: &Client, site: &Site, findings: &mut Findings) -> Result<()> {
    for row in client.query(&site.sql(DISORDER), &[]).await? {
        findings.out_of_order += 1;
        let (lane, seq): (&str, i64) = (row.get("lane"), row.get("seq"));
        let (id, before): (i64, i64) = (row.get("id"), row.get("before"));
        findings.name(|| format!("{lane} has event {id} behind event {before}, at {seq}"));
    }
    Ok(())
}

/// The log against what the writers were told.
async fn journal(client: &Client, site: &Site, witness: &Witness, findings: &mut Findings) -> Result<Log> {
    let journal = witness.journal();
    let (mut there, mut ids) = (HashSet::new(), HashMap::new());
    let mut log = Log::default();
    for row in client.query(&site.sql(EVENTS), &[]).await? {
        let (id, event): (i64, Uuid) = (row.get("id"), row.get("event_id"));
        there.insert(event);
        ids.insert(event, id);
        log.committed += 1;
        log.holes = u64::try_from(id)?.saturating_sub(log.committed);
    }
    for event in journal.acknowledged.difference(&there) {
        findings.lost_commits += 1;
        findings.name(|| format!("event {event} was committed, and is not in the log"));
    }
    log.tail_lost = u64::try_from(journal.promised.difference(&there).count())?;
    let told = |event: &Uuid| {
        [&journal.acknowledged, &journal.promised, &journal.unknown].iter().any(|set| set.contains(event))
    };
    for event in there.iter().filter(|event| !told(event)) {
        findings.strange_events += 1;
        let why =
            if journal.rolled_back.contains(event) { "was rolled back" } else { "was written by nobody" };
        findings.name(|| format!("event {} ({event}) is in the log, and {why}", ids[event]));
    }
    Ok(log)
}
