//! `inorder verify --effects`: proves that effects which no transaction can undo are run once, as far as a database can see
//! to that, and that a receiver which honours key or number makes it once.
//!
//! Processes run effect and queued consumers whose effect is a call to a receiver in this process; they are killed and frozen,
//! their sessions are terminated, and the server crashes once meanwhile. Triggers write down every claim and every lease, by
//! whom and when. At the end each run is compared with the claims that stood when it began.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use inorder::{Append, ExpectedVersion, NewEvent};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Args;
use super::chaos::{self, Tally};
use super::crew::Crew;
use super::lanes::{PLAIN, SLOW};
use super::signals::Signals;
use super::site::Site;
use super::statements::{EFFECTS_FINDINGS, EFFECTS_IDLE, EFFECTS_LEFT, EFFECTS_RUNS, EFFECTS_TABLES};
use super::story::Story;
use super::trouble::{CouldNot, Result};
use super::witness::Witness;

pub(crate) mod hand;
mod receiver;

use receiver::{Books, Receiver};

/// How long what is run stays its process's own.
const LEASE: Duration = Duration::from_secs(1);
/// How long a handler may take.
const LIMIT: Duration = Duration::from_secs(2);
/// The consumers, and the only type that each wants.
const HANDLERS: [(&str, Option<&str>); 5] = [
    ("mail", None),
    ("queue", None),
    ("ordered", None),
    ("lingering", Some(SLOW)),
    ("lingering-queue", Some(SLOW)),
];
/// How long nothing may be run of what is left when nothing is struck any more.
const PATIENCE: Duration = Duration::from_secs(45);
/// Between two events of a writer, in milliseconds.
const PACE: std::ops::Range<u64> = 10..60;

/// What the proof came to.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    seed: u64,
    seconds: f64,
    processes: u32,
    events: u64,
    handlers: usize,
    kills: usize,
    kills_in_handler: usize,
    freezes: usize,
    freezes_in_handler: usize,
    lease_ms: u64,
    session_terminations: usize,
    database_restarts: usize,
    /// Calls that arrived at the receiver, before it checked key and number.
    arrived: u64,
    accepted: u64,
    accepted_twice: u64,
    refused_by_key: u64,
    refused_by_number: u64,
    overlapped_with_freeze: u64,
    overlapped_without_freeze: u64,
    /// How often sessions were looked at while handlers ran, and how often one of ours sat in a transaction.
    looks_for_idle_in_transaction: u64,
    idle_in_transaction: u64,
    #[serde(flatten)]
    findings: Map<String, Value>,
    examples: Vec<String>,
}

/// Findings that must be 0, each.
const MUST_BE_NOTHING: [&str; 6] = [
    "started_while_claimed",
    "runs_after_done",
    "never_run",
    "unfenced_writes",
    "out_of_stream_order",
    "unfinished",
];

impl Report {
    pub(crate) fn is_clean(&self) -> bool {
        self.accepted_twice == 0
            && self.idle_in_transaction == 0
            && MUST_BE_NOTHING.iter().all(|name| self.findings.get(*name).and_then(Value::as_i64) == Some(0))
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verdict = if self.is_clean() { "every effect was run once" } else { "a guarantee is broken" };
        writeln!(
            f,
            "{verdict}: {} events, {} handlers, {} calls, {} accepted",
            self.events, self.handlers, self.arrived, self.accepted
        )?;
        writeln!(
            f,
            "{} kills ({} in a handler), {} freezes longer than the lease ({} in a handler), {} sessions terminated, {} restarts of the database",
            self.kills,
            self.kills_in_handler,
            self.freezes,
            self.freezes_in_handler,
            self.session_terminations,
            self.database_restarts
        )?;
        writeln!(
            f,
            "accepted twice {}, refused by key {}, refused by number {}, overlapped {} (with a freeze {})",
            self.accepted_twice,
            self.refused_by_key,
            self.refused_by_number,
            self.overlapped_without_freeze + self.overlapped_with_freeze,
            self.overlapped_with_freeze
        )?;
        for (name, times) in &self.findings {
            writeln!(f, "{} {times}", name.replace('_', " "))?;
        }
        for example in &self.examples {
            writeln!(f, "  {example}")?;
        }
        write!(
            f,
            "idle in transaction {} of {} looks; seed {}",
            self.idle_in_transaction, self.looks_for_idle_in_transaction, self.seed
        )
    }
}

/// The whole proof. Dropped in the middle, it takes its processes with it.
pub(crate) async fn prove(args: &Args, site: &Site, story: &Story) -> Result<Report> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let mut rng = fastrand::Rng::with_seed(seed);
    site.session().await?.batch_execute(&site.sql(EFFECTS_TABLES)).await?;
    let receiver = Receiver::listen().await?;
    let witness = Arc::new(Witness::default());
    let signals = Arc::new(Signals::start()?);
    story.now("starting processes");
    let processes = usize::try_from(args.processes)?;
    let crew = Crew::start(site, processes, args.mutant, Some(&receiver.address), &witness, &signals).await?;
    let (tally, began) = (Tally::default(), Instant::now());
    let watched = storm(args, site, &crew, &tally, &receiver.books, story, &mut rng).await?;
    let seconds = began.elapsed().as_secs_f64();
    story.now("waiting until everything is run");
    crew.all_up().await?;
    let unfinished = drained(site).await?;
    story.now("comparing what was run with what was claimed");
    crew.stop().await?;
    let (mut findings, examples) = findings(site, &receiver.books).await?;
    findings.insert("unfinished".into(), unfinished.into());
    let (counts, seen) = (receiver.books.counts(), witness.counts());
    Ok(Report {
        seed,
        seconds,
        processes: args.processes,
        events: watched.events,
        handlers: HANDLERS.len(),
        kills: tally.kills.load(Ordering::Relaxed),
        kills_in_handler: crew.kills_inside(),
        freezes: seen.freezes,
        freezes_in_handler: seen.freezes_in_handler,
        lease_ms: u64::try_from(LEASE.as_millis())?,
        session_terminations: tally.watchers.load(Ordering::Relaxed) + tally.sessions.load(Ordering::Relaxed),
        database_restarts: watched.restarts,
        arrived: counts.arrived,
        accepted: counts.accepted,
        accepted_twice: counts.accepted_twice,
        refused_by_key: counts.refused_by_key,
        refused_by_number: counts.refused_by_number,
        overlapped_with_freeze: counts.overlapped_with_freeze,
        overlapped_without_freeze: counts.overlapped,
        looks_for_idle_in_transaction: watched.looks,
        idle_in_transaction: watched.idle,
        findings,
        examples: examples.into_iter().chain(watched.example).collect(),
    })
}

/// What the storm itself counted.
#[derive(Debug, Default)]
struct Watched {
    events: u64,
    restarts: usize,
    looks: u64,
    idle: u64,
    example: Option<String>,
}

async fn storm(
    args: &Args,
    site: &Site,
    crew: &Crew,
    tally: &Tally,
    books: &Books,
    story: &Story,
    rng: &mut fastrand::Rng,
) -> Result<Watched> {
    let (over, is_over) = watch::channel(false);
    let mut writers = JoinSet::new();
    for number in 0..args.writers.min(8) {
        let log = site.log(1, "inorder verify").await?;
        writers.spawn(write(log, number, rng.fork(), is_over.clone()));
    }
    let writing = async {
        let mut events = 0;
        while let Some(written) = writers.join_next().await {
            events += written??;
        }
        Ok::<_, CouldNot>(events)
    };
    let seconds = Duration::from_secs(args.seconds);
    let ending = async {
        let half = seconds / 2;
        tokio::time::sleep(half).await;
        let mut restarts = 0;
        if let (Some(server), false) = (site.throwaway(), args.no_crashes) {
            story.tell("crashing the server");
            server.crash().await?;
            server.start_again().await?;
            restarts = 1;
        }
        let until = Instant::now() + (seconds - half);
        while Instant::now() < until {
            tokio::time::sleep(Duration::from_secs(1)).await;
            crew.check()?;
        }
        over.send_replace(true);
        Ok::<_, CouldNot>(restarts)
    };
    let (events, restarts, (looks, idle, example), ..) = tokio::try_join!(
        writing,
        ending,
        watch_idle(site, books, is_over.clone()),
        chaos::kill(crew, tally, rng.fork(), is_over.clone()),
        chaos::freeze_noting(crew, rng.fork(), is_over.clone(), |process, at| books.froze(process, at)),
        chaos::cut(site, tally, rng.fork(), is_over.clone(), !args.no_crashes),
    )?;
    Ok(Watched { events, restarts, looks, idle, example })
}

/// Appends an event now and then, until it is over; each until it is there.
async fn write(
    log: inorder::Inorder,
    number: u32,
    mut rng: fastrand::Rng,
    over: watch::Receiver<bool>,
) -> Result<u64> {
    let mut written = 0;
    while !*over.borrow() {
        let kind = if rng.u32(..10) == 0 { SLOW } else { PLAIN };
        let event = NewEvent::from_json(kind, format!(r#"{{"writer": {number}, "n": {written}}}"#))
            .in_stream("account", rng.u32(..64));
        loop {
            match log.append(ExpectedVersion::Any, std::slice::from_ref(&event)).await {
                Ok(Append::Appended(_) | Append::AlreadyAppended(_)) => break,
                Ok(other) => return Err(CouldNot::new(format!("a new event was answered with {other:?}"))),
                Err(error) if error.is_retryable() || error.is_ambiguous() => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        written += 1;
        tokio::time::sleep(Duration::from_millis(rng.u64(PACE))).await;
    }
    Ok(written)
}

/// Looks for sessions of the processes that sit in a transaction while handlers run.
async fn watch_idle(
    site: &Site,
    books: &Books,
    over: watch::Receiver<bool>,
) -> Result<(u64, u64, Option<String>)> {
    let (mut looks, mut idle, mut example) = (0, 0, None);
    let mut session = None;
    while !*over.borrow() {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let client = match session.take() {
            Some(client) => client,
            // The server may be down on purpose.
            None => match site.session().await {
                Ok(client) => client,
                Err(_) => continue,
            },
        };
        if !books.is_busy() {
            session = Some(client);
            continue;
        }
        let Ok(row) = client.query_one(EFFECTS_IDLE, &[/* application_name */ &site.schema()]).await else {
            continue;
        };
        looks += 1;
        if row.get::<_, i64>("sessions") > 0 {
            idle += 1;
            let (longest, statement): (f64, Option<&str>) = (row.get("longest"), row.get("example"));
            example.get_or_insert(format!("idle in transaction for {longest:.3} s after {statement:?}"));
        }
        session = Some(client);
    }
    Ok((looks, idle, example))
}

/// Waits until everything is passed, and everything that was queued has come to its end; answers what is left when nothing is
/// run any more.
async fn drained(site: &Site) -> Result<i64> {
    let session = site.session().await?;
    let left = session.prepare(&site.sql(EFFECTS_LEFT)).await?;
    let (mut least, mut since) = (i64::MAX, Instant::now());
    loop {
        let left: i64 = session.query_one(&left, &[]).await?.get("left_over");
        if left < least {
            (least, since) = (left, Instant::now());
        }
        if left == 0 || since.elapsed() > PATIENCE {
            return Ok(left);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn findings(site: &Site, books: &Books) -> Result<(Map<String, Value>, Vec<String>)> {
    let session = site.session().await?;
    let insert = session.prepare(&site.sql(EFFECTS_RUNS)).await?;
    for runs in books.runs().chunks(5_000) {
        let handlers: Vec<&str> = runs.iter().map(|run| run.handler.as_str()).collect();
        let event_ids: Vec<uuid::Uuid> = runs.iter().map(|run| run.event_id).collect();
        let numbers: Vec<i64> = runs.iter().map(|run| run.number).collect();
        let started: Vec<i64> = runs.iter().map(|run| run.started_us).collect();
        let accepted: Vec<bool> = runs.iter().map(|run| run.accepted).collect();
        session
            .execute(
                &insert,
                &[
                    /* handlers */ &handlers, /* event_ids */ &event_ids,
                    /* numbers */ &numbers, /* started */ &started, /* accepted */ &accepted,
                ],
            )
            .await?;
    }
    session.batch_execute(&site.sql("CREATE INDEX ON inorder.verify_claims (event_id, handler, n); ANALYZE inorder.verify_claims; ANALYZE inorder.verify_runs; CREATE INDEX ON inorder.verify_runs (event_id, handler)")).await?;
    let (handlers, types): (Vec<&str>, Vec<Option<&str>>) = HANDLERS.into_iter().unzip();
    let rows =
        session.query(&site.sql(EFFECTS_FINDINGS), &[/* handlers */ &handlers, /* types */ &types]).await?;
    let (mut findings, mut examples) = (Map::new(), Vec::new());
    for row in &rows {
        let (finding, times, example): (&str, i64, Option<&str>) =
            (row.get("finding"), row.get("times"), row.get("example"));
        findings.insert(finding.to_owned(), times.into());
        examples.extend(example.filter(|_| times > 0).map(|example| format!("{finding}: {example}")));
    }
    Ok((findings, examples))
}
