//! Events as trees: each hangs from its cause.

use std::collections::{HashMap, HashSet};

use inorder::TracedEvent;
use uuid::Uuid;

/// The trees that events form.
pub(super) struct Tree<'a> {
    events: &'a [TracedEvent],
    by_name: HashMap<Uuid, usize>,
    /// By their cause, in id order.
    caused: HashMap<Uuid, Vec<usize>>,
}

/// Where an event hangs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    root: usize,
    /// For each level above it that is not the root, and for itself: are there more behind it?
    more: Vec<bool>,
    /// Is it the first on its level?
    first: bool,
}

/// A walk enters each event, then all it caused, then leaves it.
pub(super) enum Turn<'a> {
    Enter { event: &'a TracedEvent, place: Place },
    Leave,
}

/// How much of a line branches may take, at most.
const WIDEST: usize = 60;
/// What a level takes.
const LEVEL: usize = 3;

impl Place {
    pub(super) fn is_root(&self) -> bool {
        self.more.is_empty()
    }

    pub(super) fn is_first(&self) -> bool {
        self.first
    }

    /// `│  ├─ `. What would go beyond the middle of the line says how deep it is instead.
    pub(super) fn branch(&self, width: Option<usize>) -> String {
        let Some((last, above)) = self.more.split_last() else { return String::new() };
        let turn = if *last { "├─ " } else { "└─ " };
        let most = (width.map_or(WIDEST, |width| width / 2) / LEVEL).max(2);
        if self.more.len() > most {
            return format!("{}{turn}{} deep: ", " ".repeat((most - 1) * LEVEL), self.more.len());
        }
        let mut branch: String = above.iter().map(|more| if *more { "│  " } else { "   " }).collect();
        branch.push_str(turn);
        branch
    }
}

impl<'a> Tree<'a> {
    pub(super) fn of(events: &'a [TracedEvent]) -> Self {
        let by_name: HashMap<Uuid, usize> = events.iter().enumerate().map(|(i, e)| (e.event_id, i)).collect();
        let mut caused: HashMap<Uuid, Vec<usize>> = HashMap::new();
        for (i, event) in events.iter().enumerate() {
            if let Some(cause) = event.causation_id.filter(|cause| *cause != event.event_id) {
                caused.entry(cause).or_default().push(i);
            }
        }
        Self { events, by_name, caused }
    }

    pub(super) fn holds(&self, name: Uuid) -> bool {
        self.by_name.contains_key(&name)
    }

    /// The first event of the tree in which this place is.
    pub(super) fn first_of(&self, place: &Place) -> &'a TracedEvent {
        &self.events[place.root]
    }

    /// Every event once. Where causes go in a circle it begins with the first of them.
    pub(super) fn walk(&self) -> Vec<Turn<'a>> {
        let mut turns = Vec::with_capacity(self.events.len() * 2);
        let mut seen = HashSet::new();
        let is_root = |event: &TracedEvent| {
            event.causation_id.is_none_or(|cause| cause == event.event_id || !self.holds(cause))
        };
        let roots = (0..self.events.len()).filter(|i| is_root(&self.events[*i]));
        // What hangs from no root is part of a circle, or hangs from one.
        for root in roots.chain(0..self.events.len()) {
            if !seen.contains(&root) {
                let first = turns.is_empty();
                self.walk_from(root, first, &mut seen, &mut turns);
            }
        }
        turns
    }

    fn walk_from(&self, root: usize, first: bool, seen: &mut HashSet<usize>, turns: &mut Vec<Turn<'a>>) {
        let mut ahead = vec![Some((root, Place { root, more: Vec::new(), first }))];
        seen.insert(root);
        while let Some(next) = ahead.pop() {
            let Some((i, place)) = next else {
                turns.push(Turn::Leave);
                continue;
            };
            let event = &self.events[i];
            ahead.push(None);
            let caused = self.caused.get(&event.event_id).map_or(&[][..], Vec::as_slice);
            let new: Vec<usize> = caused.iter().copied().filter(|i| seen.insert(*i)).collect();
            for (n, child) in new.iter().enumerate().rev() {
                let mut more = place.more.clone();
                more.push(n + 1 < new.len());
                ahead.push(Some((*child, Place { root, more, first: n == 0 })));
            }
            turns.push(Turn::Enter { event, place });
        }
    }
}
