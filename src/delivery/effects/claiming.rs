//! Claiming the events of a slice in the ledger: what is new at once, and only then, whatever else can be.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use deadpool_postgres::ClientWrapper;
use uuid::Uuid;

use crate::delivery::keeper::Keeper;
use crate::delivery::{Context, Runner};
use crate::error::Error;
use crate::event::Event;
use crate::metrics;
use crate::pg::ledger::{self, Asked, Entry, Terms};
use crate::pg::{On, ask};

/// How often a claim is asked for that others are making at the same moment.
const TRIES: usize = 3;

/// What was claimed of a slice together with the settlement of the one before it.
pub(super) struct Ahead {
    pub(super) asked_at: Instant,
    pub(super) claimed: Vec<(Uuid, i64)>,
}

/// An event that is ours to run.
pub(super) struct Claimed {
    pub(super) event: Event,
    pub(super) token: i64,
    pub(super) attempts: i32,
    pub(super) faults: i32,
}

/// What claiming a slice came to.
pub(super) enum Claims {
    /// The first so many events are dealt with when these were run.
    Held { events: usize, to_run: Vec<Claimed> },
    /// The first event is another's for so long.
    Others(Duration),
    /// The first event lies where the ledger has forgotten what was done.
    Forgotten,
    /// The row is not ours any more.
    Lost,
}

impl Runner {
    /// Claims as many of the first events as can be run together.
    pub(super) async fn claim(
        &self,
        cx: &Context,
        keeper: &Keeper,
        slice: &[Event],
        mut ahead: Option<Ahead>,
        repeat: bool,
    ) -> Result<Claims, Error> {
        for _ in 0..TRIES {
            let (asked_at, entries) = self.entries(cx, keeper, slice, ahead.take(), repeat).await?;
            keeper.hold(entries.values().filter_map(|e| Some((e.event_id, e.token?))).collect());
            let late = asked_at.elapsed() >= keeper.lease() && cx.mutant.is_none();
            if late || !keeper.has_row() {
                return Ok(Claims::Lost);
            }
            if let Some(claims) = self.first_of(slice, entries) {
                // What lies behind another's event was claimed with the rest, and is not run: nor is it settled with it.
                match &claims {
                    Claims::Held { to_run, .. } => {
                        keeper.run_only(to_run.iter().map(|claimed| claimed.token));
                    }
                    _ => keeper.run_only(std::iter::empty()),
                }
                return Ok(claims);
            }
        }
        Ok(Claims::Lost)
    }

    /// How each event of the slice stands in the ledger now, and when that was asked for, at the latest.
    async fn entries(
        &self,
        cx: &Context,
        keeper: &Keeper,
        slice: &[Event],
        ahead: Option<Ahead>,
        repeat: bool,
    ) -> Result<(Instant, HashMap<Uuid, Entry>), Error> {
        let asked_at = ahead.as_ref().map_or_else(Instant::now, |ahead| ahead.asked_at);
        let entries = match ahead {
            Some(ahead) if ahead.claimed.len() == slice.len() => entries_of(ahead.claimed),
            ahead => {
                let what = On("claiming for consumer", &self.key);
                ask(&cx.claims, cx.log.limit(), what, async |client| {
                    self.ask_for_claims(client, cx, keeper, slice, ahead, repeat).await
                })
                .await?
            }
        };
        Ok((asked_at, entries))
    }

    /// What can be run of the first events; `None` where another was claiming the first at the same moment.
    fn first_of(&self, slice: &[Event], mut entries: HashMap<Uuid, Entry>) -> Option<Claims> {
        let (mut events, mut to_run) = (0, Vec::new());
        for event in slice {
            let Some(entry) = entries.remove(&event.event_id()) else { break };
            metrics::claim(&self.key, &entry);
            match (entry.token, entry.status.as_deref()) {
                (Some(token), _) => to_run.push(Claimed {
                    event: event.clone(),
                    token,
                    attempts: entry.attempts,
                    faults: entry.faults,
                }),
                (None, Some("done" | "dead")) => {}
                (None, Some(_)) if events == 0 => {
                    return Some(Claims::Others(entry.held_for.unwrap_or_default()));
                }
                (None, None) if events == 0 && entry.below_floor => return Some(Claims::Forgotten),
                (None, _) => break,
            }
            events += 1;
        }
        (events > 0).then_some(Claims::Held { events, to_run })
    }

    /// Claims what is new, which most events are, and only then, whatever else can be. An entry for each event.
    async fn ask_for_claims(
        &self,
        client: &ClientWrapper,
        cx: &Context,
        keeper: &Keeper,
        slice: &[Event],
        ahead: Option<Ahead>,
        repeat: bool,
    ) -> Result<HashMap<Uuid, Entry>, tokio_postgres::Error> {
        let mut entries = entries_of(match ahead {
            Some(ahead) => ahead.claimed,
            None if repeat => Vec::new(),
            None => self.claim_new(client, cx, keeper, slice).await?,
        });
        let others = slice.iter().filter(|event| !entries.contains_key(&event.event_id()));
        let asked: Vec<Asked> =
            others.map(|e| Asked { event_id: e.event_id(), position: Some(e.id()) }).collect();
        if !asked.is_empty() {
            let on = Terms {
                handler: &self.handler_name,
                lease: keeper.lease(),
                owner: Some(cx.process),
                repeat,
                row: Some((&self.key, keeper.token())),
            };
            let claimed = ledger::claim(client, cx.log.schema(), &asked, on).await?;
            entries.extend(claimed.into_iter().map(|entry| (entry.event_id, entry)));
        }
        Ok(entries)
    }

    pub(super) async fn claim_new(
        &self,
        client: &ClientWrapper,
        cx: &Context,
        keeper: &Keeper,
        slice: &[Event],
    ) -> Result<Vec<(Uuid, i64)>, tokio_postgres::Error> {
        let asked: Vec<(Uuid, i64)> = slice.iter().map(|e| (e.event_id(), e.id())).collect();
        let (schema, handler, row) = (cx.log.schema(), &self.handler_name, (&self.key, keeper.token()));
        ledger::claim_new(client, schema, &asked, handler, keeper.lease(), cx.process, row).await
    }
}

fn entries_of(claimed: Vec<(Uuid, i64)>) -> HashMap<Uuid, Entry> {
    claimed.into_iter().map(|(event_id, token)| (event_id, Entry::new(event_id, token))).collect()
}
