//! Statements on `consumers`.
