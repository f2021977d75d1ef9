//! Whether a pooler gives each of our transactions another session of the server.

use std::sync::{Arc, OnceLock};

/// What stands between us and the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pooler {
    /// It is found out with the first connection: what a session of ours says of itself at its start is not there where somebody
    /// else has started it. A pooler that is found counts as [`Transaction`](Self::Transaction).
    #[default]
    Detect,
    /// Nothing, or something that passes on each connection as it is.
    None,
    /// A pooler that gives each connection a session of its own for as long as it lasts. It is as if there were none.
    Session,
    /// A pooler that gives each transaction a session. Nothing is prepared, set or listened for: dispatchers poll.
    Transaction,
}

impl Pooler {
    pub(crate) const NAMES: &[(&str, Self)] = &[
        ("detect", Self::Detect),
        ("none", Self::None),
        ("session", Self::Session),
        ("transaction", Self::Transaction),
    ];
}

/// What is known of it so far; clones know the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pooling(Arc<OnceLock<bool>>);

impl Pooling {
    pub(crate) fn new(pooler: Pooler) -> Self {
        let pooling = Self::default();
        match pooler {
            Pooler::Detect => {}
            Pooler::None | Pooler::Session => pooling.is_found(false),
            Pooler::Transaction => pooling.is_found(true),
        }
        pooling
    }

    pub(crate) fn is_known(&self) -> bool {
        self.0.get().is_some()
    }

    /// Whoever finds out first is believed: they all see the same.
    pub(crate) fn is_found(&self, pooled: bool) {
        let _ = self.0.set(pooled);
    }

    /// Known with the first connection; no statement is run before.
    pub(crate) fn is_pooled(&self) -> bool {
        self.0.get().copied().unwrap_or(false)
    }
}
