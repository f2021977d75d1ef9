//! The section `[serve]`: where the site listens, and who may read and act.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// What the file says of the site. Flags and variables come before it.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Serve {
    /// Where to listen.
    pub listen: Option<SocketAddr>,
    /// Other names under which the site is reached.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// A file with the token for reading.
    pub read_token_file: Option<PathBuf>,
    /// A file with the token for acting.
    pub act_token_file: Option<PathBuf>,
    /// The token for reading.
    pub read_token: Option<String>,
    /// The token for acting.
    pub act_token: Option<String>,
}

impl Serve {
    /// Names of files are those beside the file that names them.
    pub(super) fn beside(self, folder: &Path) -> Self {
        let beside = |file: Option<PathBuf>| file.map(|file| folder.join(file));
        let (read, act) = (beside(self.read_token_file), beside(self.act_token_file));
        Self { read_token_file: read, act_token_file: act, ..self }
    }
}

impl fmt::Debug for Serve {
    /// Without the tokens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serve")
            .field("listen", &self.listen)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}
