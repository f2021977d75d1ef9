//! The words that the tests are written in.
//!
//! - [`database()`]: a migrated database of the test's own, on a server that all tests of this process share;
//! - [`empty_database()`]: the same without the schema;
//! - [`versatile_database()`]: the same on a server of our own, which allows prepared transactions;
//! - [`connect()`]: a session;
//! - [`eventually()`]: waiting for something to become true; [`within()`]: for a future; [`Gate`]: for the test's word;
//! - [`Stage`]: a log with events, and what its consumers made of them; [`Actor`]: a handler that does what the test says;
//! - [`Writer`]: a program that appends; [`Recording`]: a log whose consumers keep what they are handed;
//! - [`Runs`]: queued consumers that keep what they were called with;
//! - [`Authority`]: a CA and what it signed; [`encrypting_server()`]: a server with such a certificate;
//! - [`Words`]: what the library logs;
//! - [`http::Served`]: a site that is asked over HTTP;
//! - [`browser::Browser`]: a real one, and somebody at it;
//! - [`prometheus::Prometheus`]: a real one that scrapes, and [`prometheus::lint`], its linter;
//! - [`Proxy`]: a network that fails; [`Pooler`]: a pooler that gives each transaction another session;
//! - [`terminal::Terminal`]: somebody before a terminal.
//!
//! A test that crashes or restarts a server, or needs settings of its own, starts one: `TempPostgres::start()`.

pub(crate) mod actor;
pub(crate) mod browser;
pub(crate) mod certificates;
pub(crate) mod database;
pub(crate) mod gate;
pub(crate) mod http;
pub(crate) mod pooler;
pub(crate) mod process;
pub(crate) mod prometheus;
pub(crate) mod proxy;
pub(crate) mod recording;
pub(crate) mod role;
pub(crate) mod runs;
pub(crate) mod session;
pub(crate) mod stage;
pub(crate) mod terminal;
pub(crate) mod versatile;
pub(crate) mod waiting;
pub(crate) mod words;
pub(crate) mod writer;

pub(crate) use actor::{Act, Actor};
pub(crate) use certificates::{Authority, encrypting_server, let_in};
pub(crate) use database::{Database, database, empty_database};
pub(crate) use gate::Gate;
pub(crate) use pooler::Pooler;
pub(crate) use proxy::Proxy;
pub(crate) use recording::Recording;
pub(crate) use role::Role;
pub(crate) use runs::Runs;
pub(crate) use session::connect;
pub(crate) use stage::{Stage, at_once, dispatcher};
pub(crate) use versatile::{versatile_database, versatile_server};
pub(crate) use waiting::{LIMIT, eventually, within};
pub(crate) use words::Words;
pub(crate) use writer::Writer;
