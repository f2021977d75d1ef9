//! Statements on `events`.
