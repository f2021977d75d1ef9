//! Where a consumer is moved to, and on what terms.

use crate::consumer::Start;
use crate::pg::admin::ResetTerms;

/// Where a consumer is moved to. A [`Start`] is one that accepts nothing out of the ordinary.
///
/// ```
/// use inorder::{Reset, Start};
///
/// let again = Reset::to(Start::Beginning).repeat_effects();
/// # let _ = again;
/// ```
#[derive(Clone, Debug)]
pub struct Reset {
    pub(super) to: Start,
    pub(super) terms: ResetTerms,
}

impl Reset {
    /// To this place: the next event that it is given is the first above it.
    pub fn to(place: Start) -> Self {
        let terms = ResetTerms { accept_pruned: false, repeat_effects: false, max_effects: 100_000 };
        Self { to: place, terms }
    }

    /// Accepts that events above the place were pruned. A dead letter keeps the range.
    #[must_use]
    pub fn accept_pruned(mut self) -> Self {
        self.terms.accept_pruned = true;
        self
    }

    /// Lets an effect or queued consumer run again what it has done, or given up, above the place. Without it, what is done stays
    /// done, though its events are read again.
    #[must_use]
    pub fn repeat_effects(mut self) -> Self {
        self.terms.repeat_effects = true;
        self
    }

    /// How many effects of a partition may be repeated; with more it is refused, as all of them are forgotten in one transaction.
    /// Default 100,000.
    #[must_use]
    pub fn max_effects(mut self, most: i32) -> Self {
        self.terms.max_effects = most;
        self
    }
}

impl From<Start> for Reset {
    fn from(place: Start) -> Self {
        Self::to(place)
    }
}
