//! Connections, as people make them.

mod encrypted;
mod said;
mod secrets;
