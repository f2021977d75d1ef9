//! Where the programs of PostgreSQL are on this machine.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Error;

/// The oldest major version that is supported.
const OLDEST: u32 = 14;

/// The programs that are run; a folder without one of them (a client-only installation) does not count.
const NEEDED: [&str; 3] = ["initdb", "postgres", "pg_ctl"];

/// The folder with `initdb`, `postgres` and the others.
#[derive(Clone, Debug)]
pub(super) struct Binaries {
    folder: PathBuf,
}

impl Binaries {
    /// Looks in `INORDER_PG_BIN`, where `pg_config` points, where packages install, and in `PATH`, in this order.
    pub(super) fn find() -> Result<Binaries, Error> {
        if let Some(folder) = env::var_os("INORDER_PG_BIN").filter(|folder| !folder.is_empty()) {
            return Binaries::named(PathBuf::from(folder));
        }
        let mut passed_over = Vec::new();
        for folder in candidates() {
            match judge(&folder) {
                Verdict::Usable => return Ok(Binaries { folder }),
                Verdict::TooOld(version) => passed_over.push(format!("{} ({version})", folder.display())),
                Verdict::Incomplete(_) => {}
            }
        }
        Err(not_found(&passed_over))
    }

    /// The folder that the environment names: used, or refused; never passed over in silence.
    fn named(folder: PathBuf) -> Result<Binaries, Error> {
        match judge(&folder) {
            Verdict::Usable => Ok(Binaries { folder }),
            Verdict::TooOld(version) => Err(Error::missing(format!(
                "INORDER_PG_BIN names {}, which holds PostgreSQL {version}; {OLDEST} or later is needed",
                folder.display()
            ))),
            Verdict::Incomplete(program) => Err(Error::missing(format!(
                "INORDER_PG_BIN names {}, which holds no working `{program}`; name the folder that holds the \
                 server's programs, for example /usr/lib/postgresql/16/bin, or unset it",
                folder.display()
            ))),
        }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

enum Verdict {
    Usable,
    TooOld(u32),
    Incomplete(&'static str),
}

fn judge(folder: &Path) -> Verdict {
    if let Some(program) = NEEDED.into_iter().find(|program| !folder.join(program).is_file()) {
        return Verdict::Incomplete(program);
    }
    match version(&folder.join("postgres")) {
        Some(version) if version >= OLDEST => Verdict::Usable,
        Some(version) => Verdict::TooOld(version),
        None => Verdict::Incomplete("postgres"),
    }
}

fn version(postgres: &Path) -> Option<u32> {
    let output = Command::new(postgres).arg("--version").output().ok()?;
    major(&String::from_utf8_lossy(&output.stdout))
}

/// The major version in `postgres (PostgreSQL) 15.14 (Debian …)`, `… 17beta1`, `… 18`.
fn major(text: &str) -> Option<u32> {
    let rest = text.split("(PostgreSQL)").nth(1)?.trim_start();
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

fn candidates() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = pg_config().into_iter().collect();
    for (parent, prefix, below) in [
        ("/usr/lib/postgresql", "", "bin"),
        ("/usr", "pgsql-", "bin"),
        ("/opt/homebrew/opt", "postgresql", "bin"),
        ("/usr/local/opt", "postgresql", "bin"),
        ("/home/linuxbrew/.linuxbrew/opt", "postgresql", "bin"),
        ("/Applications/Postgres.app/Contents/Versions", "", "bin"),
        ("/usr/local", "pgsql", "bin"),
    ] {
        folders.extend(newest_first(Path::new(parent), prefix).into_iter().map(|found| found.join(below)));
    }
    folders.extend(env::var_os("PATH").iter().flat_map(env::split_paths));
    folders
}

fn pg_config() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    let folder = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| PathBuf::from(folder.trim()))
}

/// The entries of `parent` that begin with `prefix`, the highest number in the name first.
fn newest_first(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = fs::read_dir(parent)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some((entry.as_ref().ok()?.file_name().into_string().ok()?, entry.ok()?.path())))
        .filter(|(name, _)| name.starts_with(prefix))
        .map(|(name, path)| (number_in(&name), path))
        .collect();
    found.sort_by(|(left, a), (right, b)| right.cmp(left).then_with(|| a.cmp(b)));
    found.into_iter().map(|(_, path)| path).collect()
}

fn number_in(name: &str) -> u32 {
    let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().unwrap_or(0)
}

fn not_found(passed_over: &[String]) -> Error {
    let older = if passed_over.is_empty() {
        String::new()
    } else {
        format!(" (too old: {})", passed_over.join(", "))
    };
    Error::missing(format!(
        "no PostgreSQL server, version {OLDEST} or later, was found on this machine{older}; install it \
         (Debian, Ubuntu: `apt-get install postgresql`; Fedora, RHEL: `dnf install postgresql-server`; \
         macOS: `brew install postgresql@17`), or name the folder that holds `initdb` and `postgres` in INORDER_PG_BIN, \
         or an existing server in INORDER_DATABASE_URL"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read_from_what_postgres_prints() {
        for (printed, version) in [
            ("postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)\n", Some(15)),
            ("postgres (PostgreSQL) 18\n", Some(18)),
            ("postgres (PostgreSQL) 17beta1\n", Some(17)),
            ("postgres: command not found", None),
        ] {
            assert_eq!(major(printed), version, "{printed:?}");
        }
    }

    #[test]
    fn the_newest_installation_comes_first() {
        let parent = tempfile::tempdir().unwrap();
        for name in ["postgresql@9", "postgresql@17", "postgresql@14", "mysql@99"] {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        let found = newest_first(parent.path(), "postgresql");
        let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["postgresql@17", "postgresql@14", "postgresql@9"]);
    }
}
