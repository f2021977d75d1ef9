//! The words that the tests are written in.
//!
//! - [`database()`]: a migrated database of the test's own, on a server that all tests of this process share;
//! - [`empty_database()`]: the same without the schema;
//! - [`connect()`]: a session;
//! - [`eventually()`]: waiting for something to become true;
//! - [`Proxy`]: a network that fails.
//!
//! A test that crashes or restarts a server, or needs settings of its own, starts one: `TempPostgres::start()`.

pub(crate) mod database;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod session;
pub(crate) mod waiting;

pub(crate) use database::{database, empty_database};
pub(crate) use proxy::Proxy;
pub(crate) use session::connect;
pub(crate) use waiting::eventually;
