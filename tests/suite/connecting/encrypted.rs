//! Encrypted connections: who is believed to be the server, and who to be the client.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use inorder::testing::TempPostgres;
use inorder::{Backoff, ErrorKind, Inorder};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{
    Act, Actor, Authority, LIMIT, connect, dispatcher, encrypting_server, eventually, let_in,
};

/// How each session of ours begins that is to be encrypted: a length, and what it asks for.
const ASKS_FOR_TLS: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

fn at(server: &TempPostgres, host: &str, words: &str) -> String {
    format!("host={host} port={} user=postgres dbname=postgres {words}", server.port())
}

fn root(file: &Path) -> String {
    format!("sslrootcert={}", file.display())
}

/// Whether the sessions of this log are encrypted.
async fn is_encrypted(url: &str) -> bool {
    let log = Inorder::connect(url).await.unwrap_or_else(|e| panic!("{url}: {e:?}"));
    let asked = "SELECT ssl FROM pg_catalog.pg_stat_ssl WHERE pid = pg_catalog.pg_backend_pid()";
    log.get().await.unwrap().query_one(asked, &[]).await.unwrap().get(0)
}

async fn refusal(url: &str) -> String {
    let error = Inorder::connect(url).await.expect_err(url);
    assert_eq!(error.kind(), ErrorKind::Connection, "{error:?}");
    error.report()
}

#[tokio::test]
async fn a_server_is_believed_by_its_ca_and_by_its_name() {
    let (ours, another) = (Authority::new("ours"), Authority::new("another"));
    let server = encrypting_server(&ours, &["localhost"], |builder| builder).await;
    let (known, unknown) = (root(&ours.root()), root(&another.root()));

    for (host, mode) in [("localhost", "verify-full"), ("localhost", "verify-ca"), ("127.0.0.1", "verify-ca")]
    {
        assert!(is_encrypted(&at(&server, host, &format!("sslmode={mode} {known}"))).await, "{host} {mode}");
    }
    for mode in ["verify-full", "verify-ca", "require"] {
        let refused = refusal(&at(&server, "localhost", &format!("sslmode={mode} {unknown}"))).await;
        assert!(refused.contains("signed by nobody who is trusted here"), "{mode}: {refused}");
        assert!(refused.contains("UnknownIssuer"), "{mode}: {refused}");
    }
    let refused = refusal(&at(&server, "127.0.0.1", &format!("sslmode=verify-full {known}"))).await;
    assert!(refused.contains("certificate is for another name"), "{refused}");
}

/// What does not ask who answers is encrypted all the same.
#[tokio::test]
async fn encryption_is_used_where_the_server_has_it_and_can_be_required() {
    let ours = Authority::new("ours");
    let server = encrypting_server(&ours, &["localhost"], |builder| builder).await;
    for (words, encrypted) in [
        ("", true),
        ("sslmode=prefer", true),
        ("sslmode=require", true),
        ("sslmode=allow", false),
        ("sslmode=disable", false),
    ] {
        assert_eq!(is_encrypted(&at(&server, "127.0.0.1", words)).await, encrypted, "{words:?}");
    }

    let_in(&server, "hostssl all all 127.0.0.1/32 trust\n").await;
    assert!(is_encrypted(&at(&server, "127.0.0.1", "sslmode=allow")).await, "the server wants it");
    assert!(refusal(&at(&server, "127.0.0.1", "sslmode=disable")).await.contains("no encryption"));

    let_in(&server, "hostnossl all all 127.0.0.1/32 trust\n").await;
    assert!(!is_encrypted(&at(&server, "127.0.0.1", "")).await, "the server does not want it");
    assert!(refusal(&at(&server, "127.0.0.1", "sslmode=require")).await.contains("28000"));
}

#[tokio::test]
async fn a_server_without_encryption_is_refused_where_it_is_required() {
    let server = TempPostgres::start().await.unwrap();
    assert!(!is_encrypted(&at(&server, "127.0.0.1", "")).await);
    let ours = Authority::new("ours");
    for words in ["sslmode=require", &format!("sslmode=verify-full {}", root(&ours.root()))] {
        let refused = refusal(&at(&server, "127.0.0.1", words)).await;
        assert!(refused.contains("server does not support TLS"), "{words}: {refused}");
    }
}

#[tokio::test]
async fn a_client_is_believed_by_its_certificate() {
    let (ours, another) = (Authority::new("ours"), Authority::new("another"));
    let server = encrypting_server(&ours, &["localhost"], |builder| builder).await;
    let_in(&server, "hostssl all all 127.0.0.1/32 cert\n").await;
    let with = |(certificate, key): (std::path::PathBuf, std::path::PathBuf)| {
        let own = format!("sslcert={} sslkey={}", certificate.display(), key.display());
        at(&server, "localhost", &format!("sslmode=verify-full {} {own}", root(&ours.root())))
    };

    assert!(is_encrypted(&with(ours.client("postgres"))).await);

    let none = at(&server, "localhost", &format!("sslmode=verify-full {}", root(&ours.root())));
    assert!(refusal(&none).await.contains("requires a valid client certificate"));
    let of_another_user = refusal(&with(ours.client("eve"))).await;
    assert!(of_another_user.contains("certificate authentication failed"), "{of_another_user}");
    let of_another_ca = refusal(&with(another.client("postgres"))).await;
    assert!(of_another_ca.contains("does it accept this client's certificate"), "{of_another_ca}");
}

/// Files that are of no use are named before anything is tried.
#[tokio::test]
async fn a_file_that_is_of_no_use_is_named() {
    let ours = Authority::new("ours");
    let (certificate, key) = ours.client("postgres");
    let (_, other_key) = ours.server(&["x"]);
    let empty = tempfile::NamedTempFile::new().unwrap();
    let [certificate, key, other_key, empty] =
        [&*certificate, &*key, &*other_key, empty.path()].map(|path| path.display().to_string());
    for (words, says) in [
        ("sslmode=verify-full sslrootcert=/nowhere/ca.crt".to_owned(), "/nowhere/ca.crt".to_owned()),
        (format!("sslmode=verify-ca sslrootcert={empty}"), empty),
        (format!("sslmode=require sslcert={certificate} sslkey=/nowhere/key"), "/nowhere/key".into()),
        (format!("sslmode=require sslcert={certificate} sslkey={other_key}"), certificate.clone()),
        (format!("sslmode=require sslcert={key} sslkey={key}"), key),
    ] {
        let error = Inorder::connect(format!("host=127.0.0.1 port=1 {words}")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{words}: {error:?}");
        assert!(error.report().contains(&says), "{words}: {error:?}");
    }
}

/// The password is bound to the connection that it was meant for.
#[tokio::test]
async fn a_password_is_bound_to_the_encrypted_connection() {
    let ours = Authority::new("ours");
    let server = encrypting_server(&ours, &["localhost"], |builder| builder).await;
    let client = connect(server.url()).await;
    client.batch_execute("CREATE ROLE ada LOGIN PASSWORD 'p@ss'").await.unwrap();
    let_in(&server, "host all all 127.0.0.1/32 scram-sha-256\n").await;
    let url = |words: &str| {
        format!("host=localhost port={} dbname=postgres user=ada password='p@ss' {words}", server.port())
    };
    let encrypted = format!("sslmode=verify-full {} channel_binding=require", root(&ours.root()));
    assert!(is_encrypted(&url(&encrypted)).await);
    let plain = refusal(&url("sslmode=disable channel_binding=require")).await;
    assert!(plain.contains("channel binding"), "{plain}");
}

/// The sessions of the pools, the tracker's, and the requests that cancel a statement.
#[tokio::test]
async fn everything_that_a_dispatcher_says_is_encrypted() {
    let ours = Authority::new("ours");
    let server = encrypting_server(&ours, &["localhost"], |builder| builder).await;
    let (port, openings) = overheard(server.port()).await;
    let url = format!(
        "host=localhost port={port} user=postgres dbname=postgres sslmode=verify-full {}",
        root(&ours.root())
    );
    let log = Inorder::connect(url).await.unwrap();
    log.migrate().await.unwrap();
    let client = connect(server.url()).await;
    client.batch_execute("CREATE TABLE effects (consumer text, event bigint)").await.unwrap();
    client
        .batch_execute("INSERT INTO inorder.events (event_type, payload) VALUES ('e', '{}'), ('e', '{}')")
        .await
        .unwrap();
    let slow = Actor::new("slow").at_first(2, 1, Act::Sql("SELECT pg_catalog.pg_sleep(3600)"));
    let slow = slow
        .transactional()
        .handler_timeout(Duration::from_millis(300))
        .backoff(Backoff::constant(Duration::from_millis(10)));

    let running = dispatcher(&log, [slow]).build().unwrap().start().await.unwrap();
    eventually(LIMIT, "both events are handled", async || {
        let count = "SELECT count(*) FROM effects";
        client.query_one(count, &[]).await.unwrap().get::<_, i64>(0) == 2
    })
    .await;
    running.stop().await.unwrap();

    let openings = openings.lock().unwrap();
    // The log's own, the tracker's, a pass's, and the cancel's.
    assert!(openings.len() >= 4, "{openings:?}");
    assert!(openings.iter().all(|opening| *opening == ASKS_FOR_TLS), "{openings:?}");
}

/// Leads to the server at this port; keeps how each connection began.
async fn overheard(server: u16) -> (u16, Arc<Mutex<Vec<[u8; 8]>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = Arc::<Mutex<Vec<[u8; 8]>>>::default();
    let openings = Arc::clone(&heard);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let heard = Arc::clone(&heard);
            tokio::spawn(async move {
                let mut opening = [0; 8];
                if client.read_exact(&mut opening).await.is_err() {
                    return;
                }
                heard.lock().unwrap().push(opening);
                let mut server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                server.write_all(&opening).await.unwrap();
                // Either side may go first.
                let _ = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    (port, openings)
}
