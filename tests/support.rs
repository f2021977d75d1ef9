//! The words that the tests are written in.
//!
//! - [`database()`]: a migrated database of the test's own, on a server that all tests of this process share;
//! - [`empty_database()`]: the same without the schema;
//! - [`versatile_database()`]: the same on a server of our own, which allows prepared transactions;
//! - [`connect()`]: a session;
//! - [`eventually()`]: waiting for something to become true;
//! - [`Writer`]: a program that appends; [`Recording`]: a log whose consumers keep what they are handed;
//! - [`Words`]: what the library logs;
//! - [`Proxy`]: a network that fails.
//!
//! A test that crashes or restarts a server, or needs settings of its own, starts one: `TempPostgres::start()`.

pub(crate) mod database;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod recording;
pub(crate) mod session;
pub(crate) mod versatile;
pub(crate) mod waiting;
pub(crate) mod words;
pub(crate) mod writer;

pub(crate) use database::{database, empty_database};
pub(crate) use proxy::Proxy;
pub(crate) use recording::Recording;
pub(crate) use session::connect;
pub(crate) use versatile::{versatile_database, versatile_server};
pub(crate) use waiting::eventually;
pub(crate) use words::Words;
pub(crate) use writer::Writer;
