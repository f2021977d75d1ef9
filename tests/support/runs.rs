//! Queued consumers that keep what they were called with.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use inorder::{Backoff, Consumer, Event};
use std::time::Duration;
use uuid::Uuid;

/// How often each event was run, and in which order: id and `event_id`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(Arc<Mutex<Vec<(i64, Uuid)>>>);

impl Runs {
    /// A queued consumer that keeps every call and is done with it.
    pub(crate) fn consumer(&self, name: &str) -> Consumer {
        let runs = self.clone();
        Consumer::queued_fn(name, move |event, _| {
            runs.0.lock().unwrap().push((event.id(), event.event_id()));
            Box::pin(async { Ok(()) })
        })
        .backoff(Backoff::constant(Duration::from_millis(1)))
    }

    /// Keeps a call.
    pub(crate) fn note(&self, event: &Event) {
        self.0.lock().unwrap().push((event.id(), event.event_id()));
    }

    /// In the order of the calls.
    pub(crate) fn ids(&self) -> Vec<i64> {
        self.0.lock().unwrap().iter().map(|(id, _)| *id).collect()
    }

    /// By event.
    pub(crate) fn times(&self) -> BTreeMap<Uuid, usize> {
        let mut times = BTreeMap::new();
        for (_, event_id) in self.0.lock().unwrap().iter() {
            *times.entry(*event_id).or_default() += 1;
        }
        times
    }

    /// How often something was run.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}
