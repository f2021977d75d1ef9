//! The words that the tests are written in.

pub(crate) mod session;
pub(crate) mod waiting;

pub(crate) use session::connect;
pub(crate) use waiting::eventually;
