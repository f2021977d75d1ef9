//! Without the feature `tls`: connections that are never encrypted.

use super::target::Encryption;
use crate::error::Error;

pub(crate) type MakeTls = tokio_postgres::NoTls;

/// Whether connections can be encrypted at all.
pub(super) const AVAILABLE: bool = false;

#[expect(clippy::unnecessary_wraps, reason = "the same as with the feature")]
pub(super) fn make(_: &Encryption) -> Result<MakeTls, Error> {
    Ok(tokio_postgres::NoTls)
}

pub(super) fn advice(_: &tokio_postgres::Error) -> Option<&'static str> {
    None
}

/// The same; what is not there needs no closing.
pub(super) fn unclosed(tls: MakeTls, _: &str) -> MakeTls {
    tls
}
