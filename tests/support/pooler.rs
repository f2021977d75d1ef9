//! A pooler in front of a server: PgBouncer.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use inorder::testing::TempPostgres;
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::{LIMIT, eventually};

/// A pooler of a test's own; it is gone when dropped.
pub(crate) struct Pooler {
    port: u16,
    process: Child,
    folder: TempDir,
}

impl Pooler {
    /// Gives each transaction another of `sessions` sessions, in turn: what is left behind in one is missed in the next.
    pub(crate) async fn of_transactions(server: &TempPostgres, sessions: u32) -> Pooler {
        Pooler::start(server, &format!("pool_mode = transaction\ndefault_pool_size = {sessions}\nserver_round_robin = 1")).await
    }

    /// Gives each connection a session.
    pub(crate) async fn of_sessions(server: &TempPostgres) -> Pooler {
        Pooler::start(server, "pool_mode = session\ndefault_pool_size = 50").await
    }

    async fn start(server: &TempPostgres, mode: &str) -> Pooler {
        let folder = tempfile::Builder::new().prefix("inorder-pooler-").tempdir().unwrap();
        let port = free_port();
        let file = |name: &str| folder.path().join(name);
        let (log, users) = (file("log"), file("users"));
        let ini = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = trust\nauth_file = {}\nlogfile = {}\n{mode}\nmax_client_conn = 200\n",
            server.port(),
            users.display(),
            log.display(),
        );
        fs::write(file("ini"), ini).unwrap();
        fs::write(&users, "\"postgres\" \"\"\n").unwrap();
        // It refuses to run as root, as the server does; it runs as who runs the server.
        let owner = fs::metadata(server.data_dir()).unwrap();
        for path in [folder.path().to_owned(), file("ini"), users] {
            chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let process = program()
            .arg(file("ini"))
            .uid(owner.uid())
            .gid(owner.gid())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|e| match e.kind() {
                ErrorKind::NotFound => panic!(
                    "this test needs PgBouncer; script/setup installs it where it can, otherwise: apt-get install pgbouncer, \
                     dnf install pgbouncer, brew install pgbouncer"
                ),
                _ => panic!("pgbouncer: {e}"),
            });
        let pooler = Pooler { port, process, folder };
        eventually(LIMIT, "the pooler listens", async || TcpStream::connect(("127.0.0.1", port)).await.is_ok()).await;
        pooler
    }

    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Debian has it where ordinary accounts do not look.
fn program() -> Command {
    let found = ["/usr/sbin/pgbouncer", "/usr/local/sbin/pgbouncer"].into_iter().find(|path| fs::exists(path).unwrap_or(false));
    Command::new(found.unwrap_or("pgbouncer"))
}

fn free_port() -> u16 {
    std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// How soon what is polled for comes.
pub(crate) const POLLED: Duration = Duration::from_millis(50);
