//! Connections, as people make them.

mod encrypted;
