//! Passwords: where they are taken from, and that they are never told.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use inorder::testing::TempPostgres;
use inorder::{Config, Inorder};

use crate::suite::tool::{Ran, ended, file, program};
use crate::support::{Words, connect, let_in};

const PASSWORD: &str = "hunter2 p@ss/w:rd?&='\\%41#";
/// The same in a URL.
const ENCODED: &str = "hunter2%20p%40ss%2Fw%3Ard%3F%26%3D%27%5C%2541%23";

/// A server that wants a password of everybody.
async fn server() -> TempPostgres {
    let server = TempPostgres::start().await.unwrap();
    let client = connect(server.url()).await;
    let quoted = PASSWORD.replace('\'', "''");
    client.batch_execute(&format!("CREATE ROLE ada SUPERUSER LOGIN PASSWORD '{quoted}'")).await.unwrap();
    let_in(&server, "host all all 127.0.0.1/32 scram-sha-256\n").await;
    server
}

/// Its whole and its parts, as they are and as they are written elsewhere.
fn tells_the_password(text: &str) -> bool {
    ["hunter2", "p@ss", "w:rd", "p%40ss"].iter().any(|part| text.contains(part))
}

async fn ran(arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
    let mut command = program();
    command.args(arguments).env_remove("INORDER_DATABASE_URL").env("HOME", "/nonexistent");
    command.envs(variables.iter().copied());
    ended(command.spawn().unwrap()).await
}

#[tokio::test]
async fn a_password_is_found_wherever_psql_finds_one() {
    let server = server().await;
    let port = server.port();
    let url = format!("postgres://ada@127.0.0.1:{port}/postgres");
    let home = tempfile::tempdir().unwrap();
    let passfile = |path: &Path, mode: u32| {
        let password = PASSWORD.replace('\\', "\\\\").replace(':', "\\:");
        fs::write(path, format!("127.0.0.1:1:*:*:wrong\n127.0.0.1:{port}:*:ada:{password}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let named = home.path().join("named");
    passfile(&named, 0o600);
    passfile(&home.path().join(".pgpass"), 0o600);
    let named = named.to_str().unwrap();

    let with_password = format!("postgres://ada:{ENCODED}@127.0.0.1:{port}/postgres");
    let migrated = ran(&["migrate"], &[("INORDER_DATABASE_URL", &with_password)]).await;
    assert_eq!(migrated.code, 0, "{migrated:?}");

    let status = |variables: &[(&str, &str)]| {
        let variables: Vec<(String, String)> =
            variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let url = url.clone();
        async move {
            let mut variables: Vec<(&str, &str)> =
                variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            variables.push(("INORDER_DATABASE_URL", &url));
            ran(&["status"], &variables).await
        }
    };
    for variables in
        [[("PGPASSWORD", PASSWORD)], [("PGPASSFILE", named)], [("HOME", home.path().to_str().unwrap())]]
    {
        let ran = status(&variables).await;
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    assert!(status(&[]).await.failed(3).contains("password missing"));

    // A file that others can read is not used, and that is said.
    passfile(&home.path().join(".pgpass"), 0o644);
    let open = status(&[("HOME", home.path().to_str().unwrap())]).await;
    assert_eq!(open.code, 3);
    assert!(open.err.contains("others can read it"), "{open:?}");
}

/// Whatever goes wrong, and however much is logged.
#[tokio::test]
async fn no_message_tells_the_password() {
    let server = server().await;
    let here = format!("127.0.0.1:{}", server.port());
    let config = file(&format!(
        "[database]\nhost = \"127.0.0.1\"\nport = {}\nuser = \"ada\"\npassword = '''{PASSWORD}'''\n",
        server.port()
    ));
    let config = config.path().to_str().unwrap();
    let urls = [
        format!("postgres://ada:{ENCODED}@{here}/postgres"),
        format!("postgres://ada:{ENCODED}@{here}/nonexistent"),
        format!("postgres://eve:{ENCODED}@{here}/postgres"),
        format!("postgres://ada:{ENCODED}@127.0.0.1:1/postgres"),
        format!("postgres://ada:{ENCODED}@{here}/postgres?sslmode=require"),
        format!("postgres://ada:{PASSWORD}@{here}/postgres"),
        format!("host=127.0.0.1 password={PASSWORD}"),
    ];
    let mut outputs = Vec::new();
    for url in &urls {
        for arguments in
            [&["status", "-vvv"] as &[_], &["config"], &["config", "--json"], &["migrate", "--json"]]
        {
            outputs.push(ran(arguments, &[("INORDER_DATABASE_URL", url)]).await);
            outputs.push(ran(&[arguments, &["--database-url", url]].concat(), &[]).await);
        }
    }
    for arguments in [&["config"] as &[_], &["config", "--json"], &["status", "-vvv"]] {
        outputs.push(ran(arguments, &[("INORDER_CONFIG", config)]).await);
        outputs.push(
            ran(arguments, &[("PGHOST", "127.0.0.1"), ("PGPORT", "1"), ("PGPASSWORD", PASSWORD)]).await,
        );
    }
    assert!(outputs.iter().any(|ran| ran.code == 0) && outputs.iter().any(|ran| ran.code == 3));
    for ran in outputs {
        assert!(!tells_the_password(&format!("{}{}", ran.out, ran.err)), "{ran:?}");
    }
}

/// Neither in Rust.
#[tokio::test]
async fn nothing_that_can_be_printed_tells_the_password() {
    let words = Words::listen();
    let server = server().await;
    let here = format!("127.0.0.1:{}", server.port());
    let mut printed = String::new();
    for url in [
        format!("postgres://ada:{ENCODED}@{here}/postgres"),
        format!("postgres://eve:{ENCODED}@{here}/postgres"),
        format!("postgres://ada:{ENCODED}@{here}/postgres?sslmode=nonsense"),
    ] {
        printed += &format!("{:?}", Config::new(&url));
        match Inorder::connect(&url).await {
            Ok(log) => printed += &format!("{log:?}{:?}", log.get().await.unwrap()),
            Err(error) => printed += &format!("{error}{error:?}{}", error.report()),
        }
    }
    printed += &words.with(&[]).join("\n");
    assert!(printed.contains("Inorder(") && printed.contains("28P01"), "{printed}");
    assert!(!tells_the_password(&printed), "{printed}");
}
