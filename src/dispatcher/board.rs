//! What the watcher tells the lanes: how far it is safe to deliver, and how every consumer's row stood when last looked at.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use crate::delivery::Head;
use crate::pg::consumers::Key;
use crate::pg::consumers::poll::Standing;

/// The latest of everything; replaced as a whole.
#[derive(Clone, Debug, Default)]
pub(crate) struct Board {
    /// `None` while it is not known: nothing can be delivered.
    pub(crate) head: Option<Head>,
    pub(crate) standings: Arc<HashMap<Key, Standing>>,
    /// When the standings were asked for; `None` before the first time.
    pub(crate) polled: Option<Instant>,
    /// Appenders ring, and no hole is open: a ring means that the head is about to move.
    pub(crate) rung_for: bool,
}
