//! Every event, in order, once: a PostgreSQL table as a dependable event log with consumers.

#[cfg(feature = "testing")]
pub mod testing;
