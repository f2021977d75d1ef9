//! Statements on `instances`.
