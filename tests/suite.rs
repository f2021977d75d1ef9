//! The guarantees, as tests.
