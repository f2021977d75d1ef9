//! Connections, as people make them.

mod encrypted;
mod hosts;
mod pooled;
mod said;
mod secrets;
