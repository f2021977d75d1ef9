//! Where it is said which server is meant, and which of that counts.

use std::path::Path;

use serde_json::Value;

use crate::suite::tool::{Ran, ended, file, program};
use crate::support::database;

/// The tool, with these variables.
async fn ran(arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
    let mut command = program();
    command.args(arguments).env_remove("INORDER_DATABASE_URL").env("HOME", "/nonexistent");
    command.envs(variables.iter().copied());
    ended(command.spawn().unwrap()).await
}

/// What it goes by: the value, and who said so.
async fn settings(
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> impl Fn(&str) -> (String, String) + use<> {
    let answer = ran(&[&["config", "--json"], arguments].concat(), variables).await.json();
    move |name: &str| {
        let settings = answer["settings"].as_array().unwrap();
        let found = settings.iter().find(|setting| setting["name"] == name);
        let text = |value: &Value| value.as_str().unwrap_or("(none)").to_owned();
        found.map_or_else(Default::default, |setting| (text(&setting["value"]), text(&setting["source"])))
    }
}

fn said(value: &str, by: &str) -> (String, String) {
    (value.to_owned(), by.to_owned())
}

#[tokio::test]
async fn the_first_that_names_a_server_counts_and_the_next_is_asked_without_it() {
    let config = file("[database]\nurl = \"postgres://in-file/d\"\nschema = \"of_file\"\n");
    let config = config.path().to_str().unwrap();
    let mut variables = vec![
        ("INORDER_DATABASE_URL", "postgres://in-inorder/d"),
        ("INORDER_CONFIG", config),
        ("DATABASE_URL", "postgres://in-database-url/d"),
        ("PGHOST", "in-pghost"),
    ];

    let flag = settings(&["--database-url", "postgres://in-flag/d"], &variables).await;
    assert_eq!(flag("host"), said("in-flag", "--database-url"));
    for (host, by) in [
        ("in-inorder", "INORDER_DATABASE_URL"),
        ("in-file", &*format!("{config}:2")),
        ("in-database-url", "DATABASE_URL"),
        ("in-pghost", "PGHOST"),
    ] {
        let now = settings(&[], &variables).await;
        assert_eq!(now("host"), said(host, by));
        // What speaks of no server is taken from wherever it is said.
        let schema = if variables.iter().any(|(name, _)| *name == "INORDER_CONFIG") {
            said("of_file", &format!("{config}:3"))
        } else {
            said("inorder", "default")
        };
        assert_eq!(now("schema"), schema);
        variables.remove(0);
    }
    let nobody = settings(&[], &variables).await;
    assert_eq!(nobody("host").1, "default");
}

/// A user, a password and certificates that were meant for one server are not given to another.
#[tokio::test]
async fn what_was_meant_for_one_server_is_not_given_to_another() {
    let config =
        file("[database]\nhost = \"a\"\nuser = \"of-a\"\npassword = \"of-a\"\nsslcert = \"of-a.crt\"\n");
    let config = config.path().to_str().unwrap();
    let variables = [("DATABASE_URL", "postgres://of-b:of-b@b/b"), ("PGSSLMODE", "verify-full")];

    let flag = settings(&["--config", config, "--database-url", "postgres://c"], &variables).await;
    assert_eq!(
        ["host", "user", "password", "sslcert", "dbname"].map(|name| flag(name).0),
        ["c", "", "", "", ""]
    );
    let in_file = settings(&["--config", config], &variables).await;
    assert_eq!(["host", "user", "dbname"].map(|name| in_file(name).0), ["a", "of-a", ""]);

    // What the PG variables say holds for every server, as it does for psql.
    assert_eq!(flag("sslmode"), said("verify-full", "PGSSLMODE"));
    // And a file that names no server speaks of any.
    let words =
        file("[database]\nsslmode = \"require\"\nsslrootcert = \"ca.crt\"\nport = 7\nconnect_timeout = 2\n");
    let any = settings(&["--config", words.path().to_str().unwrap()], &variables).await;
    assert_eq!(
        (any("host").0, any("user").0, any("sslmode").0),
        ("b".into(), "of-b".into(), "require".into())
    );
    let beside = words.path().parent().unwrap().join("ca.crt");
    assert_eq!(Path::new(&any("sslrootcert").0), beside, "a name in a file is that of one beside it");
}

#[tokio::test]
async fn flags_count_more_than_variables_and_variables_more_than_a_file() {
    let config =
        file("[database]\nschema = \"of_file\"\nstatement_timeout = 3\nconnect_timeout = 3\npool_size = 3\n");
    let variables = [
        ("INORDER_CONFIG", config.path().to_str().unwrap()),
        ("INORDER_STATEMENT_TIMEOUT", "2"),
        ("INORDER_CONNECT_TIMEOUT", "2"),
        ("PGCONNECT_TIMEOUT", "9"),
    ];
    let now = settings(&["--connect-timeout", "1"], &variables).await;
    assert_eq!(now("connect_timeout"), said("1", "--connect-timeout"));
    assert_eq!(now("statement_timeout"), said("2", "INORDER_STATEMENT_TIMEOUT"));
    assert_eq!(now("pool_size").0, "3");
    assert_eq!(now("schema").0, "of_file");
}

#[tokio::test]
async fn what_is_wrong_is_named_with_the_place_where_it_stands() {
    let config = file("[database]\nhost = \"h\"\nsslmode = \"hunter2\"\n");
    let config = config.path().to_str().unwrap();
    for (arguments, variables, says) in [
        (&["--config", config] as &[&str], &[] as &[(&str, &str)], format!("{config}:3: sslmode")),
        (&[], &[("PGSSLMODE", "hunter2")], "PGSSLMODE: sslmode".into()),
        (&["--connect-timeout", "hunter2"], &[], "--connect-timeout: connect_timeout".into()),
        (
            &[],
            &[("INORDER_STATEMENT_TIMEOUT", "hunter2")],
            "INORDER_STATEMENT_TIMEOUT: statement_timeout".into(),
        ),
        (
            &[],
            &[("INORDER_DATABASE_URL", "mysql://hunter2")],
            "INORDER_DATABASE_URL: the database URL".into(),
        ),
        (&[], &[("PGSERVICE", "shop")], "PGSERVICE".into()),
        (&["--config", "/nowhere/inorder.toml"], &[], "/nowhere/inorder.toml".into()),
    ] {
        let ran = ran(&[&["status"], arguments].concat(), variables).await;
        let message = ran.failed(2);
        assert!(message.contains(&says), "{says}: {message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
}

/// What psql would connect to with nothing but its own variables.
#[tokio::test]
async fn the_variables_of_psql_are_enough() {
    let database = database().await;
    let config: tokio_postgres::Config = database.url().parse().unwrap();
    let tokio_postgres::config::Host::Tcp(host) = &config.get_hosts()[0] else { panic!("{config:?}") };
    let port = config.get_ports()[0].to_string();
    let password = String::from_utf8(config.get_password().unwrap_or_default().to_vec()).unwrap();
    let variables = [
        ("PGHOST", host.as_str()),
        ("PGPORT", &port),
        ("PGUSER", config.get_user().unwrap_or_default()),
        ("PGPASSWORD", &password),
        ("PGDATABASE", config.get_dbname().unwrap()),
    ];
    assert_eq!(ran(&["tail", "-n", "1"], &variables).await.said(), "");
}
