//! The folder of one server, and running PostgreSQL's programs in it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::Error;
use super::account::{self, Account};
use super::binaries::Binaries;

/// How much of the log an error quotes, in bytes.
const QUOTED: usize = 4_000;

/// A folder that goes away when dropped, the programs, and the account that runs them (`None`: ours).
#[derive(Debug)]
pub(super) struct Site {
    binaries: Binaries,
    account: Option<Account>,
    folder: TempDir,
}

impl Site {
    pub(super) fn new() -> Result<Site, Error> {
        let binaries = Binaries::find()?;
        let folder = temp_folder(&std::env::temp_dir())?;
        if !owned_by_root(folder.path())? {
            return Ok(Site { binaries, account: None, folder });
        }
        let account = Account::unprivileged()?;
        let folder = temp_folder(&account::common_temp_dir()?)?;
        chown(folder.path(), Some(account.uid), Some(account.gid)).map_err(|e| {
            Error::io(
                format!("could not give {} to the account {}", folder.path().display(), account.name),
                e,
            )
        })?;
        Ok(Site { binaries, account: Some(account), folder })
    }

    pub(super) fn bin_dir(&self) -> &Path {
        self.binaries.folder()
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    pub(super) fn log_file(&self) -> PathBuf {
        self.folder().join("log")
    }

    /// Appends to the log, whoever writes.
    pub(super) fn open_log(&self) -> Result<File, Error> {
        let path = self.log_file();
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(|e| Error::io(format!("could not open the log {}", path.display()), e))
    }

    /// The end of what was logged after the first `skip` bytes, for an error.
    pub(super) fn log_since(&self, skip: u64) -> String {
        let log = fs::read(self.log_file()).unwrap_or_default();
        let new = &log[usize::try_from(skip).unwrap_or(0).min(log.len())..];
        String::from_utf8_lossy(&new[new.len().saturating_sub(QUOTED)..]).trim_end().to_owned()
    }

    pub(super) fn log_length(&self) -> u64 {
        fs::metadata(self.log_file()).map_or(0, |found| found.len())
    }

    /// One of PostgreSQL's programs, run by the account, untouched by the `PG…` variables of our environment and
    /// out of reach of a Ctrl-C in our terminal.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.binaries.program(program));
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("PG")) {
                command.env_remove(name);
            }
        }
        command
            .env("LC_ALL", "C")
            .env("HOME", self.folder())
            .current_dir(self.folder())
            .process_group(0)
            .stdin(Stdio::null());
        if let Some(account) = &self.account {
            command.uid(account.uid).gid(account.gid);
        }
        command
    }

    /// Runs a program to its end; what it printed is part of the error.
    pub(super) fn run(&self, command: &mut Command) -> Result<(), Error> {
        let output = command.output().map_err(|e| self.not_run(command, e))?;
        if output.status.success() {
            return Ok(());
        }
        Err(Error::failed(format!(
            "{command:?} failed ({}): {}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr),
            String::from_utf8_lossy(&output.stdout),
        )))
    }

    pub(super) fn not_run(&self, command: &Command, error: std::io::Error) -> Error {
        let account = self.account.as_ref().map_or(String::new(), |a| format!(" as the account {}", a.name));
        Error::io(format!("could not run {}{account}", command.get_program().display()), error)
    }
}

fn temp_folder(parent: &Path) -> Result<TempDir, Error> {
    tempfile::Builder::new()
        .prefix("inorder-postgres-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(parent)
        .map_err(|e| Error::io(format!("could not make a folder for the server in {}", parent.display()), e))
}

/// Files that we make belong to us, so this tells whether we are root.
fn owned_by_root(folder: &Path) -> Result<bool, Error> {
    let found = folder.metadata();
    found
        .map(|found| found.uid() == 0)
        .map_err(|e| Error::io(format!("could not look at the folder {}", folder.display()), e))
}
