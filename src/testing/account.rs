//! The unprivileged account that runs the server when we are root: PostgreSQL refuses to run as root.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Error;

/// An account of `/etc/passwd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl Account {
    /// `postgres` where it exists, else `nobody`.
    pub(super) fn unprivileged() -> Result<Account, Error> {
        let passwd = fs::read_to_string("/etc/passwd")
            .map_err(|e| Error::io("could not read /etc/passwd to find an unprivileged account", e))?;
        ["postgres", "nobody"].into_iter().find_map(|name| named(&passwd, name)).ok_or_else(|| {
            Error::failed(
                "PostgreSQL refuses to run as root, and /etc/passwd has neither an account `postgres` nor `nobody`; \
                 run as an ordinary user, or add the account `postgres`",
            )
        })
    }
}

fn named(passwd: &str, name: &str) -> Option<Account> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (found, _password, uid, gid) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        if found != name {
            return None;
        }
        Some(Account { name: name.to_owned(), uid: uid.parse().ok()?, gid: gid.parse().ok()? })
    })
}

/// The folder for temporary files, or, where another account could not reach it (root's own `TMPDIR`), a common one.
pub(super) fn common_temp_dir() -> Result<PathBuf, Error> {
    let wanted = env::temp_dir();
    [wanted.as_path(), Path::new("/tmp"), Path::new("/var/tmp")]
        .into_iter()
        .find(|folder| reachable_by_all(folder))
        .map(Path::to_path_buf)
        .ok_or_else(|| {
            Error::failed(format!(
                "no folder for temporary files that every account can enter (tried {}, /tmp, /var/tmp); \
                 set TMPDIR to one",
                wanted.display()
            ))
        })
}

fn reachable_by_all(folder: &Path) -> bool {
    let Ok(folder) = folder.canonicalize() else { return false };
    folder.ancestors().all(|part| part.metadata().is_ok_and(|found| found.mode() & 0o001 != 0))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_account_is_found_by_its_whole_name() {
        let passwd =
            "root:x:0:0::/root:/bin/sh\npostgres2:x:7:7::/:\npostgres:x:101:104:PG,,,:/var:/bin/sh\n";
        let found = Account { name: "postgres".to_owned(), uid: 101, gid: 104 };
        assert_eq!(named(passwd, "postgres"), Some(found));
        assert_eq!(named(passwd, "nobody"), None);
    }

    #[test]
    fn a_folder_below_a_closed_one_is_not_reachable() {
        let outer = tempfile::tempdir_in("/tmp").unwrap();
        let inner = outer.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let set =
            |folder: &Path, mode| fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
        set(&inner, 0o755);
        set(outer.path(), 0o700);
        assert!(!reachable_by_all(&inner));
        set(outer.path(), 0o711);
        assert!(reachable_by_all(&inner));
    }
}
