//! Random interleavings.
