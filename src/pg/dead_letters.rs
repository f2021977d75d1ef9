//! Statements on `dead_letters`.
