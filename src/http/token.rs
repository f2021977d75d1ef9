//! Secrets that are shown to read or to act.

use std::fmt;
use std::path::Path;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::error::{Error, ErrorKind};

/// Shorter ones could be guessed.
const SHORTEST: usize = 16;

/// A secret that is shown to read or to act. It is not printed, and compared in constant time.
///
/// ```
/// use inorder::http::Token;
///
/// let token = Token::new("k3Vq0mZ8hT5sYxW2")?;
/// assert_eq!(format!("{token:?}"), "Token(…)");
/// assert!(Token::new("secret").is_err()); // could be guessed
/// # Ok::<(), inorder::Error>(())
/// ```
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// The token, without white space around it.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for fewer than 16 characters, and for any that a header could not carry: white space and what is not
    /// ASCII. The token is not repeated.
    pub fn new(token: impl Into<String>) -> Result<Self, Error> {
        let token = token.into().trim().to_owned();
        let wrong = if token.len() < SHORTEST {
            format!("has {} characters; it needs at least {SHORTEST}", token.len())
        } else if token.bytes().any(|byte| !byte.is_ascii_graphic()) {
            "holds white space or what is not ASCII".to_owned()
        } else {
            return Ok(Self(token));
        };
        Err(Error::new(ErrorKind::Config, format!("the token {wrong}; make one with: openssl rand -hex 32")))
    }

    /// The token that a file holds, and nothing else.
    ///
    /// # Errors
    /// As for [`new`](Self::new), and for a file that cannot be read.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let what = format!("reading a token from {}", path.display());
        match std::fs::read_to_string(path) {
            Ok(text) => Self::new(text).map_err(|e| Error::with_source(ErrorKind::Config, what, e)),
            Err(e) => Err(Error::with_source(ErrorKind::Config, what, e)),
        }
    }

    /// Is it this one?
    pub(super) fn is(&self, shown: &str) -> bool {
        // Of the same length whatever is shown.
        Sha256::digest(&self.0).ct_eq(&Sha256::digest(shown)).into()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.is(&other.0)
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}
