//! The feed: read, delivered, received, and handled.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use inorder::{Consumer, Event, Inorder, NewEvent, Received};
use serde::Deserialize;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A message of the feed: its id there, and its text.
#[derive(Clone, Debug)]
pub(crate) struct Quake {
    id: String,
    line: String,
}

impl Quake {
    fn event(&self) -> NewEvent {
        // The text is stored byte for byte.
        NewEvent::from_json("earthquake.reported", &*self.line)
    }
}

pub(crate) fn read(file: &Path) -> Result<Vec<Quake>> {
    #[derive(Deserialize)]
    struct Feature {
        id: String,
    }
    let opened = File::open(file).map_err(|e| format!("opening {}: {e}", file.display()))?;
    let mut quakes = Vec::new();
    for line in BufReader::new(opened).lines() {
        let line = line?;
        let Feature { id } = serde_json::from_str(&line)?;
        quakes.push(Quake { id, line });
    }
    Ok(quakes)
}

/// How many quakes the file is about, by itself.
pub(crate) fn distinct(quakes: &[Quake]) -> usize {
    quakes.iter().map(|quake| &quake.id).collect::<HashSet<_>>().len()
}

/// What became of a delivery of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) new: usize,
    pub(crate) duplicates: usize,
    pub(crate) mismatches: usize,
}

impl Delivery {
    fn count(mut self, received: impl IntoIterator<Item = Received>) -> Self {
        for one in received {
            match one {
                Received::New { .. } => self.new += 1,
                Received::Duplicate { .. } => self.duplicates += 1,
                Received::Mismatch { .. } => self.mismatches += 1,
            }
        }
        self
    }
}

impl fmt::Display for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { new, duplicates, mismatches } = self;
        write!(f, "{new} new, {duplicates} duplicates, {mismatches} mismatches")
    }
}

/// Two that went on at the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deliveries {
    pub(crate) in_order: Delivery,
    pub(crate) shuffled: Delivery,
}

pub(crate) async fn deliver_twice(log: &Inorder, quakes: &[Quake]) -> Result<Deliveries> {
    let (in_order, shuffled) =
        futures_util::try_join!(deliver_in_order(log, quakes), deliver_shuffled(log, quakes))?;
    Ok(Deliveries { in_order, shuffled })
}

/// The file as it is, 100 messages at a time.
pub(crate) async fn deliver_in_order(log: &Inorder, quakes: &[Quake]) -> Result<Delivery> {
    let feed = log.inbound("usgs");
    let mut delivery = Delivery::default();
    for part in quakes.chunks(100) {
        let messages = part.iter().map(|quake| (&*quake.id, quake.event()));
        delivery = delivery.count(feed.receive_all(messages).await?);
    }
    Ok(delivery)
}

/// The file in any order, one message at a time, four of them at once.
async fn deliver_shuffled(log: &Inorder, quakes: &[Quake]) -> Result<Delivery> {
    let feed = log.inbound("usgs");
    let mut order: Vec<&Quake> = quakes.iter().collect();
    fastrand::shuffle(&mut order);
    let received: Vec<Received> = stream::iter(order)
        .map(|quake| feed.receive(&quake.id, quake.event()))
        .buffer_unordered(4)
        .try_collect()
        .await?;
    Ok(Delivery::default().count(received))
}

/// What the handler was called with: a service that sends alerts would be behind it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handled(Arc<Mutex<BTreeMap<String, usize>>>);

impl Handled {
    /// A queued consumer: many at once, each quake once.
    pub(crate) fn consumer(&self, name: &str) -> Consumer {
        let handled = self.clone();
        Consumer::queued_fn(name, move |event, _| {
            let handled = handled.clone();
            Box::pin(async move { Ok(handled.handle(event)?) })
        })
        .only(["earthquake.reported"])
    }

    fn handle(&self, event: &Event) -> std::result::Result<(), inorder::Undecodable> {
        #[derive(Deserialize)]
        struct Feature {
            id: String,
        }
        let Feature { id } = event.payload()?;
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *runs.entry(id).or_default() += 1;
        Ok(())
    }

    /// How often it was called.
    pub(crate) fn runs(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }

    /// With how many quakes.
    pub(crate) fn quakes(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Until every event is passed and nothing is left to be handled.
pub(crate) async fn wait_until_handled(log: &Inorder) -> Result<()> {
    let client = log.get().await?;
    let left = "SELECT count(*) FROM inorder.ledger WHERE status IN ('pending', 'in_progress')";
    loop {
        let passed = log.admin().list().await?.iter().all(|consumer| consumer.lag == 0);
        if passed && client.query_one(left, &[]).await?.get::<_, i64>(0) == 0 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) async fn count_events(log: &Inorder) -> Result<usize> {
    let count = "SELECT count(*) FROM inorder.events";
    Ok(log.get().await?.query_one(count, &[]).await?.get::<_, i64>(0).try_into()?)
}
