//! One database per test, cloned from a template, on a server that all tests of the process share.

use std::io::Read;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use inorder::Inorder;
use inorder::testing::Server;
use tokio::sync::OnceCell;
use tokio_postgres::Client;

use super::{connect, process};

/// A database of one test's own.
pub(crate) struct Database {
    url: String,
}

impl Database {
    pub(crate) fn of(url: String) -> Database {
        Database { url }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// A new session in this database.
    pub(crate) async fn client(&self) -> Client {
        connect(&self.url).await
    }
}

/// A database with the schema in place.
pub(crate) async fn database() -> Database {
    let shared = shared().await;
    let url = shared.server.create_database_from(&shared.next_name(), &shared.template).await.unwrap();
    Database { url }
}

/// A database with nothing in it.
pub(crate) async fn empty_database() -> Database {
    let shared = shared().await;
    let url = shared.server.create_database(&shared.next_name()).await.unwrap();
    Database { url }
}

/// What every clone begins with. No session stays open: nobody can clone a database that is in use. (The server waits
/// for sessions that are just ending.)
pub(crate) async fn fill_template(url: &str) {
    let log = Inorder::connect(url).await.unwrap_or_else(|e| panic!("{e:?}"));
    log.migrate().await.unwrap_or_else(|e| panic!("{e:?}"));
}

/// The server, a throwaway one or the one that `INORDER_DATABASE_URL` names, and the template on it.
struct Shared {
    server: Server,
    template: String,
    prefix: String,
    next: AtomicU32,
    _cleaner: Option<(Child, ChildStdin)>,
}

impl Shared {
    async fn start() -> Shared {
        let server = Server::obtain().await.unwrap_or_else(|e| panic!("the tests need PostgreSQL: {e:?}"));
        let prefix = format!("inorder_test_{}_{:08x}", std::process::id(), fastrand::u32(..));
        // A throwaway server takes its databases along.
        let cleaner = (!server.is_throwaway()).then(|| clean_up_after_us(&prefix));
        let template = format!("{prefix}_template");
        let url = server.create_database(&template).await.unwrap_or_else(|e| panic!("{}: {e:?}", server.url()));
        fill_template(&url).await;
        Shared { server, template, prefix, next: AtomicU32::new(1), _cleaner: cleaner }
    }

    fn next_name(&self) -> String {
        format!("{}_{}", self.prefix, self.next.fetch_add(1, Ordering::Relaxed))
    }
}

async fn shared() -> &'static Shared {
    static SHARED: OnceCell<Shared> = OnceCell::const_new();
    SHARED.get_or_init(Shared::start).await
}

const PREFIX: &str = "INORDER_TEST_DATABASES_TO_DROP";

/// Statics are not dropped, and we may be killed: another process waits until we are gone, then drops our databases.
fn clean_up_after_us(prefix: &str) -> (Child, ChildStdin) {
    let mut cleaner = process::this_program("support::database::drops_the_databases_of_a_run")
        .env(PREFIX, prefix)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pipe = cleaner.stdin.take().unwrap();
    (cleaner, pipe)
}

#[tokio::test]
#[ignore = "no test: runs in a process of its own, started by the tests when they use an existing server"]
async fn drops_the_databases_of_a_run() {
    let Ok(prefix) = std::env::var(PREFIX) else { return };
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    let server = Server::obtain().await.unwrap();
    let ours = "SELECT datname FROM pg_catalog.pg_database WHERE starts_with(datname, $1)";
    for row in connect(server.url()).await.query(ours, &[&prefix]).await.unwrap() {
        server.drop_database(row.get(0)).await.unwrap();
    }
}
