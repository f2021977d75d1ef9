//! What all passes of a process share, and how they are told to end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use uuid::Uuid;

use super::supply::{Readers, Window};
use crate::connect::SessionTerms;
use crate::consumer::BoxFuture;
use crate::safe_head::Mutant;
use crate::store::Inorder;

/// What all passes of a process share.
pub(crate) struct Context {
    pub(crate) log: Inorder,
    /// This process, as `instances` knows it.
    pub(crate) process: Uuid,
    /// The passes' own connections: handlers that borrow another cannot starve them.
    pub(crate) passes: Pool,
    /// How many of them may be kept for events to come: half, so that others need not wait for that.
    pub(crate) lingering: Arc<Semaphore>,
    pub(crate) readers: Pool,
    /// For leases, whose renewal waits for no pass, and for what queues claim and settle.
    pub(crate) leases: Pool,
    /// For what effect consumers lease, claim and settle.
    pub(crate) claims: Pool,
    /// On what terms the sessions of these two are made, and kept.
    pub(crate) terms: Arc<SessionTerms>,
    pub(crate) window: Window,
    pub(crate) hold_ups: HoldUps,
    pub(crate) page_bytes: usize,
    pub(crate) phase: watch::Receiver<Phase>,
    pub(crate) mutant: Option<Mutant>,
}

impl Context {
    /// For a lane that keeps its row for an event to come; `None` when enough others do.
    pub(crate) fn linger(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.lingering).try_acquire_owned().ok()
    }

    pub(super) fn readers(&self) -> Readers<'_> {
        Readers {
            log: &self.log,
            pool: &self.readers,
            window: &self.window,
            process: self.process,
            bytes: self.page_bytes,
        }
    }

    /// How often a lease is renewed, so that two renewals may fail before it runs out.
    pub(super) fn renewed_every(&self, lease: Duration) -> Duration {
        match self.mutant {
            Some(Mutant::LateRenewal) => lease.mul_f64(1.5),
            _ => lease / 3,
        }
    }
}

/// The sessions that all consumers may have to wait for, by pid: they hold a hole open. A pass that is one of them, because
/// something that its handler did has appended an event, commits as soon as it can.
#[derive(Default)]
pub(crate) struct HoldUps(Mutex<Vec<i32>>);

impl HoldUps {
    pub(crate) fn set(&self, sessions: &[i32]) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != sessions {
            tracing::debug!(?sessions, "in front of a hole");
            *known = sessions.to_vec();
        }
    }

    pub(super) fn contains(&self, session: i32) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&session)
    }
}

/// How far a dispatcher is in stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Running,
    /// Handlers in flight finish; no further event is taken.
    Draining,
    /// Handlers in flight are dropped.
    Cancelling,
}

/// The safe head, and the epoch in which it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) id: i64,
    pub(crate) epoch: Uuid,
}

/// Up to where a pass may deliver.
pub(crate) enum Lookout {
    Known(Head),
    /// The head is about to move from here, and the row is locked meanwhile.
    Moving(Head, BoxFuture<'static, Head>),
}

impl Lookout {
    /// Waits for the head, where it is about to move.
    pub(super) async fn head(self) -> Head {
        match self {
            Self::Known(head) => head,
            Self::Moving(_, moved) => moved.await,
        }
    }

    /// A row whose position is below this id has something to do.
    pub(super) fn asks_for(&self) -> i64 {
        match self {
            Self::Known(head) => head.id,
            Self::Moving(..) => i64::MAX,
        }
    }
}
