//! The guarantees, as tests.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

/// One module per topic, in `tests/suite/`.
mod suite {
    mod admin;
    mod append;
    mod browser;
    mod claims;
    mod connecting;
    mod delivery;
    mod deployment;
    mod docs;
    mod doctor;
    mod doorbell;
    mod earthquakes;
    mod effects;
    mod epochs;
    mod failures;
    mod faults;
    mod flights;
    mod follow;
    mod handoff;
    mod http;
    mod inbound;
    mod ledger;
    mod limits;
    mod metrics;
    mod migrate;
    mod pending;
    mod read;
    mod registration;
    mod rights;
    mod safe_head;
    mod support;
    mod testing;
    mod tool;
    mod verify;
    mod waking;
}
