//! A schema becomes what the library needs: whoever else is at it, whatever happens meanwhile, or not at all.

use std::sync::Arc;
use std::time::Duration;

use inorder::testing::TempPostgres;
use inorder::{Config, Error, ErrorKind, Inorder, Migrated};
use tokio::sync::Barrier;
use tokio_postgres::Client;

use crate::support::{Proxy, connect, database, empty_database, eventually};

const LIMIT: Duration = Duration::from_secs(30);

/// The migration lock of a schema, as documented.
fn lock(schema: &str) -> String {
    format!("1768845165, ('x' || left(md5('{schema}'), 8))::bit(32)::int")
}

async fn log_in(url: &str, schema: &str) -> Inorder {
    Inorder::with_config(Config { schema: schema.into(), ..Config::new(url) }).await.unwrap()
}

/// A log whose patience is soon over.
async fn hasty(url: &str, statement_timeout: Duration) -> Inorder {
    Inorder::with_config(Config { statement_timeout, ..Config::new(url) }).await.unwrap()
}

/// The URL for sessions that begin with a setting.
fn with_setting(url: &str, name: &str, value: &str) -> String {
    format!("{url}{}options=-c{name}%3D{value}", if url.contains('?') { '&' } else { '?' })
}

async fn one<T: for<'a> tokio_postgres::types::FromSql<'a>>(client: &Client, query: &str) -> T {
    client.query_one(query, &[]).await.unwrap_or_else(|e| panic!("{query}: {e:?}")).get(0)
}

/// Refused, and the message names all of this.
#[track_caller]
fn assert_refused<T: std::fmt::Debug>(outcome: Result<T, Error>, names: &[&str]) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Migration, "{error:?}");
    for name in names {
        assert!(error.to_string().contains(name), "no {name:?} in: {error}");
    }
}

fn nothing_done(migrated: &Migrated) -> bool {
    !migrated.is_changed() && migrated.from == migrated.to && migrated.to > 0
}

#[tokio::test]
async fn a_schema_is_made_once_and_left_alone_afterwards() {
    let database = empty_database().await;
    let log = Inorder::connect(database.url()).await.unwrap();
    assert_refused(log.check_schema().await, &["\"inorder\"", "no log in it", "inorder migrate"]);

    let first = log.migrate().await.unwrap();
    assert_eq!((first.from, first.functions_replaced), (0, true));
    assert_eq!(first.applied[0], "0001_log_and_consumers");
    assert_eq!(first.applied.len(), usize::try_from(first.to).unwrap());
    log.check_schema().await.unwrap();

    let client = database.client().await;
    let written = "SELECT string_agg(version || xmin::text || ctid::text, ' ' ORDER BY version) FROM inorder.migrations";
    let before: String = one(&client, written).await;
    // Not even the lock is taken.
    let hold = format!("SELECT pg_advisory_lock({})", lock("inorder"));
    client.batch_execute(&hold).await.unwrap();
    assert!(nothing_done(&log.migrate().await.unwrap()));
    assert_eq!(one::<String>(&client, written).await, before);
}

#[tokio::test]
async fn of_twenty_that_start_together_all_succeed_and_one_applies() {
    let database = empty_database().await;
    let start = Arc::new(Barrier::new(20));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let log = Inorder::connect(database.url()).await.unwrap();
        let start = Arc::clone(&start);
        tasks.spawn(async move {
            start.wait().await;
            log.migrate().await.unwrap_or_else(|e| panic!("{e:?}"))
        });
    }
    let outcomes = tasks.join_all().await;
    assert_eq!(outcomes.iter().filter(|m| m.is_changed()).count(), 1);
    assert_eq!(outcomes.iter().filter(|m| nothing_done(m)).count(), 19);
}

/// Ends the migrator's session in front of each of its DDL commands in turn. A sequence counts them: it does not roll back.
async fn kill_before_each_command(client: &Client, log: &Inorder, mut check: impl AsyncFnMut()) -> i32 {
    client
        .batch_execute(
            "CREATE SCHEMA trap; CREATE SEQUENCE trap.command; CREATE SEQUENCE trap.victim;
            CREATE FUNCTION trap.spring() RETURNS event_trigger LANGUAGE plpgsql AS $body$
            BEGIN
                IF nextval('trap.command') = (SELECT last_value FROM trap.victim) THEN
                    PERFORM pg_terminate_backend(pg_backend_pid());
                END IF;
            END $body$;
            CREATE EVENT TRIGGER trap ON ddl_command_start EXECUTE FUNCTION trap.spring()",
        )
        .await
        .unwrap();
    for victim in 1.. {
        let set = "SELECT setval('trap.victim', $1), setval('trap.command', 1, false)";
        client.query_one(set, &[&i64::from(victim)]).await.unwrap();
        match log.migrate().await {
            Ok(migrated) => {
                assert!(migrated.is_changed());
                client.batch_execute("DROP EVENT TRIGGER trap; DROP SCHEMA trap CASCADE").await.unwrap();
                return victim - 1;
            }
            Err(e) => assert_eq!(e.kind(), ErrorKind::Connection, "{e:?}"),
        }
        check().await;
    }
    unreachable!()
}

#[tokio::test]
async fn a_migrator_killed_anywhere_leaves_nothing_and_the_next_one_completes() {
    let database = empty_database().await;
    let client = database.client().await;
    let log = Inorder::connect(database.url()).await.unwrap();
    let kills = kill_before_each_command(&client, &log, async || {
        assert!(one::<bool>(&client, "SELECT to_regnamespace('inorder') IS NULL").await);
    })
    .await;
    assert!(kills >= 20, "{kills}");
    log.check_schema().await.unwrap();

    // The same for the functions of an existing log.
    client.batch_execute("UPDATE inorder.migrations SET checksum = 'old' WHERE version = 0").await.unwrap();
    let kills = kill_before_each_command(&client, &log, async || {
        let recorded = "SELECT checksum FROM inorder.migrations WHERE version = 0";
        assert_eq!(one::<String>(&client, recorded).await, "old");
    })
    .await;
    assert!(kills >= 5, "{kills}");
    log.check_schema().await.unwrap();
}

/// The server commits, then waits for a standby that does not exist: everything that ends the wait leaves us without an answer.
#[tokio::test]
async fn a_lost_answer_to_the_commit_is_ambiguous() {
    let server =
        TempPostgres::builder().setting("synchronous_standby_names", "nobody").start().await.unwrap();
    let admin = connect(server.url()).await;
    for by_the_server in [true, false] {
        let url = server.create_database(&format!("ambiguous_{by_the_server}")).await.unwrap();
        let proxy = Proxy::in_front_of(&with_setting(&url, "synchronous_commit", "on")).await;
        let log = Inorder::connect(proxy.url()).await.unwrap();
        let migrating = tokio::spawn(async move { log.migrate().await });
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        eventually(LIMIT, "the commit waits", async || one::<i64>(&admin, waiting).await == 1).await;
        let end =
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        if by_the_server {
            assert!(one::<bool>(&admin, end).await);
        } else {
            proxy.cut();
        }
        let error = migrating.await.unwrap().unwrap_err();
        assert!(error.is_ambiguous() && error.to_string().contains("call migrate() again"), "{error:?}");
        if !by_the_server {
            assert!(one::<bool>(&admin, end).await);
        }
        assert!(nothing_done(&Inorder::connect(url).await.unwrap().migrate().await.unwrap()));
    }
}

#[tokio::test]
async fn another_migrator_is_waited_for_and_named_when_it_does_not_end() {
    let database = empty_database().await;
    let other = database.client().await;
    other.batch_execute("SET application_name = 'slow coach'").await.unwrap();
    let hold = format!("BEGIN; SELECT pg_advisory_xact_lock({})", lock("inorder"));
    other.batch_execute(&hold).await.unwrap();

    let log = hasty(database.url(), Duration::from_millis(300)).await;
    let error = log.migrate().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
    assert!(error.is_retryable());
    for part in
        ["slow coach", "migrating it", &one::<i32>(&other, "SELECT pg_backend_pid()").await.to_string()]
    {
        assert!(error.to_string().contains(part), "no {part:?} in: {error}");
    }

    // Another schema has another lock.
    log_in(database.url(), "elsewhere").await.migrate().await.unwrap();

    let log = Inorder::connect(database.url()).await.unwrap();
    let migrating = tokio::spawn(async move { log.migrate().await });
    let client = database.client().await;
    let waiting =
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = 1768845165";
    eventually(LIMIT, "it waits", async || one::<i64>(&client, waiting).await == 1).await;
    other.batch_execute("COMMIT").await.unwrap();
    assert!(migrating.await.unwrap().unwrap().is_changed());
}

/// Replacing triggers needs the table for itself; a lock that is waited for makes every append wait behind it.
#[tokio::test]
async fn a_migration_that_waits_for_a_writer_does_not_hold_up_the_others() {
    const INSERT: &str = "INSERT INTO inorder.events (event_type, payload) VALUES ('a', '1')";
    let database = database().await;
    let writer = database.client().await;
    let client = database.client().await;
    writer.batch_execute("UPDATE inorder.migrations SET checksum = 'old' WHERE version = 0").await.unwrap();
    writer.batch_execute("SET application_name = 'long writer'; BEGIN").await.unwrap();
    writer.batch_execute(INSERT).await.unwrap();

    let error = hasty(database.url(), Duration::from_millis(700)).await.migrate().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
    assert!(error.to_string().contains("long writer"), "{error}");

    let log = Inorder::connect(database.url()).await.unwrap();
    let migrating = tokio::spawn(async move { log.migrate().await });
    let waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'inorder.events'::regclass AND NOT granted";
    eventually(LIMIT, "it waits for the table", async || one::<i64>(&client, waiting).await == 1).await;
    // Fails after ten seconds, long before the migrator's patience is over.
    client.batch_execute("SET lock_timeout = '10s'").await.unwrap();
    client.batch_execute(INSERT).await.unwrap();
    assert!(!migrating.is_finished());
    writer.batch_execute("COMMIT").await.unwrap();
    assert!(migrating.await.unwrap().unwrap().functions_replaced);
}

#[tokio::test]
async fn any_name_of_a_schema_will_do_and_logs_live_side_by_side() {
    let database = empty_database().await;
    let client = database.client().await;
    let long = "ü".repeat(31) + "x";
    let names =
        ["We ird", "SHOP", "user", long.as_str(), "a\"b", "it's", "100%", "\\", "events", "inorder.x"];
    for name in names {
        let log = log_in(database.url(), name).await;
        log.migrate().await.unwrap_or_else(|e| panic!("{name}: {e:?}"));
        log.check_schema().await.unwrap();
        assert!(nothing_done(&log.migrate().await.unwrap()), "{name}");

        let schema = format!("\"{}\"", name.replace('"', "\"\""));
        let events: i64 = one(&client, &format!("SELECT count(*) FROM {schema}.events")).await;
        assert_eq!(events, 0, "{name}");
        let insert = format!("INSERT INTO {schema}.events (event_type, payload) VALUES ('a', '1')");
        client.batch_execute(&insert).await.unwrap_or_else(|e| panic!("{name}: {e:?}"));
        let refused = client.batch_execute(&format!("DELETE FROM {schema}.events")).await.unwrap_err();
        let refused = refused.as_db_error().unwrap();
        assert!(refused.message().contains("append-only"), "{name}: {refused}");
        assert_eq!(one::<i64>(&client, &format!("SELECT {schema}.safe_head()")).await, 1, "{name}");
    }
    // Nothing that was made for one of them stands in another.
    let count = "SELECT count(DISTINCT n) FROM (
        SELECT count(*) AS n FROM pg_proc WHERE pronamespace::regnamespace::text NOT LIKE 'pg!_%' ESCAPE '!'
            AND pronamespace <> 'information_schema'::regnamespace GROUP BY pronamespace) AS s";
    assert_eq!(one::<i64>(&client, count).await, 1);
}

#[tokio::test]
async fn a_renamed_schema_gets_functions_of_its_new_name() {
    let database = database().await;
    let client = database.client().await;
    client.batch_execute("ALTER SCHEMA inorder RENAME TO shop").await.unwrap();
    let log = log_in(database.url(), "shop").await;
    assert_refused(log.check_schema().await, &["\"shop\"", "functions"]);
    let migrated = log.migrate().await.unwrap();
    assert!(migrated.functions_replaced && migrated.applied.is_empty());
    client.batch_execute("INSERT INTO shop.events (event_type, payload) VALUES ('a', '1')").await.unwrap();
    assert_eq!(one::<i64>(&client, "SELECT shop.safe_head()").await, 1);
}

/// A role of one test's own, which may do nothing by itself.
async fn ordinary_role(client: &Client) -> String {
    let role = format!("inorder_test_{:08x}", fastrand::u32(..));
    client.batch_execute(&format!("CREATE ROLE {role}")).await.unwrap();
    role
}

async fn log_as(url: &str, role: &str) -> Inorder {
    let log = Inorder::connect(with_setting(url, "role", role)).await.unwrap();
    let client = log.get().await.unwrap();
    let row =
        client.query_one("SELECT current_user::text, current_setting('is_superuser')", &[]).await.unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get::<_, &str>(1)), (role, "off"));
    log
}

async fn drop_role(client: &Client, role: &str) {
    client.batch_execute(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}")).await.unwrap();
}

#[tokio::test]
async fn an_ordinary_role_that_owns_the_database_can_migrate() {
    let database = empty_database().await;
    let client = database.client().await;
    let role = ordinary_role(&client).await;
    let log = log_as(database.url(), &role).await;
    assert_refused(log.migrate().await, &[&role, "GRANT CREATE ON DATABASE"]);

    let name: String = one(&client, "SELECT quote_ident(current_database())").await;
    client.batch_execute(&format!("ALTER DATABASE {name} OWNER TO {role}")).await.unwrap();
    assert!(log.migrate().await.unwrap().is_changed());
    client.batch_execute(&format!("ALTER DATABASE {name} OWNER TO CURRENT_USER")).await.unwrap();
    drop_role(&client, &role).await;
}

/// `CREATE SCHEMA IF NOT EXISTS` would need CREATE on the database even then.
#[tokio::test]
async fn an_ordinary_role_that_owns_the_schema_can_migrate() {
    let database = empty_database().await;
    let client = database.client().await;
    let role = ordinary_role(&client).await;
    client.batch_execute("CREATE SCHEMA inorder").await.unwrap();
    let log = log_as(database.url(), &role).await;
    assert_refused(log.migrate().await, &[&role, "GRANT ALL ON SCHEMA", "which owns it"]);

    client.batch_execute(&format!("ALTER SCHEMA inorder OWNER TO {role}")).await.unwrap();
    assert!(log.migrate().await.unwrap().is_changed());
    assert!(nothing_done(&log.migrate().await.unwrap()));
    client.batch_execute("UPDATE inorder.migrations SET checksum = 'old' WHERE version = 0").await.unwrap();
    assert!(log.migrate().await.unwrap().functions_replaced);
    drop_role(&client, &role).await;
}

#[tokio::test]
async fn who_finds_nothing_to_do_needs_no_right_to_do_it() {
    let database = database().await;
    let client = database.client().await;
    let role = ordinary_role(&client).await;
    let grant =
        format!("GRANT USAGE ON SCHEMA inorder TO {role}; GRANT SELECT ON inorder.migrations TO {role}");
    client.batch_execute(&grant).await.unwrap();
    let log = log_as(database.url(), &role).await;
    log.check_schema().await.unwrap();
    assert!(nothing_done(&log.migrate().await.unwrap()));
    drop_role(&client, &role).await;
}

#[tokio::test]
async fn a_migration_that_was_altered_or_is_unknown_is_refused() {
    let cases: [(&str, &[&str]); 3] = [
        (
            "UPDATE inorder.migrations SET checksum = 'abcdef0123456789', library = '0.0.7' WHERE version = 1",
            &["migration 1 (log_and_consumers) was altered", "abcdef01…", "0.0.7"],
        ),
        (
            "INSERT INTO inorder.migrations (version, name, checksum, library)
                VALUES ((SELECT max(version) + 1 FROM inorder.migrations), 'tomorrow', 'x', '9.8.7')",
            &["tomorrow", "9.8.7", "newer library"],
        ),
        (
            "UPDATE inorder.migrations SET version = version + 1 WHERE version = (SELECT max(version) FROM inorder.migrations)",
            &["newer library"],
        ),
    ];
    for (alteration, names) in cases {
        let database = database().await;
        let client = database.client().await;
        client.batch_execute(alteration).await.unwrap();
        let log = Inorder::connect(database.url()).await.unwrap();
        assert_refused(log.migrate().await, names);
        assert_refused(log.check_schema().await, names);
    }
}

#[tokio::test]
async fn an_older_library_does_not_replace_the_functions_of_a_newer_one() {
    let database = database().await;
    let client = database.client().await;
    let log = Inorder::connect(database.url()).await.unwrap();
    let ours: String = one(&client, "SELECT checksum FROM inorder.migrations WHERE version = 0").await;
    for (library, replaced) in [("99.0.0", false), ("0.0.1", true)] {
        let other = "UPDATE inorder.migrations SET checksum = 'other', library = $1 WHERE version = 0";
        client.execute(other, &[&library]).await.unwrap();
        if replaced {
            assert_refused(log.check_schema().await, &["functions", "inorder migrate"]);
        } else {
            log.check_schema().await.unwrap();
        }
        assert_eq!(log.migrate().await.unwrap().functions_replaced, replaced);
        let recorded: String =
            one(&client, "SELECT checksum FROM inorder.migrations WHERE version = 0").await;
        assert_eq!(recorded == ours, replaced);
    }
}

#[tokio::test]
async fn a_schema_without_its_records_is_refused() {
    let database = database().await;
    let client = database.client().await;
    let log = Inorder::connect(database.url()).await.unwrap();
    client.batch_execute("DROP TABLE inorder.migrations").await.unwrap();
    for outcome in [log.migrate().await.map(drop), log.check_schema().await] {
        assert_refused(outcome, &["consumers", "events", "no table migrations"]);
    }
    // Whichever of them is left.
    let others = "SELECT relname::text FROM pg_class WHERE relnamespace = 'inorder'::regnamespace AND relkind = 'r' AND relname <> 'migrations'";
    let tables: Vec<String> = client.query(others, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    let refused = log.migrate().await.unwrap_err().to_string();
    assert!(tables.len() >= 9);
    for table in tables {
        assert!(refused.contains(&table), "{table} is not known to be ours: {refused}");
    }
    client.batch_execute("CREATE TABLE inorder.migrations (id int, version text)").await.unwrap();
    for outcome in [log.migrate().await.map(drop), log.check_schema().await] {
        assert_refused(outcome, &["\"inorder\".migrations", "somebody else"]);
    }
}

#[tokio::test]
async fn a_schema_that_lost_something_is_refused_by_name() {
    let cases = [
        ("DROP TRIGGER events_append_only ON inorder.events", "trigger events.events_append_only is missing"),
        (
            "ALTER TABLE inorder.events DISABLE TRIGGER events_ring",
            "trigger events.events_ring is now `disabled",
        ),
        ("ALTER TABLE inorder.events DROP COLUMN created_by", "column events.created_by is missing"),
        ("ALTER TABLE inorder.events ALTER payload TYPE jsonb", "column events.payload is now `jsonb"),
        ("ALTER TABLE inorder.events ALTER recorded_at DROP DEFAULT", "column events.recorded_at is now"),
        ("DROP INDEX inorder.events_stream_key", "index events.events_stream_key is missing"),
        (
            "ALTER TABLE inorder.events DROP CONSTRAINT events_event_id_key",
            "constraint events.events_event_id_key",
        ),
        (
            "ALTER TABLE inorder.consumers DROP CONSTRAINT consumers_status_known",
            "constraint consumers.consumers_status_known",
        ),
        ("ALTER SEQUENCE inorder.events_id_seq CACHE 20", "sequence events_id_seq is now `cache 20"),
        ("ALTER TABLE inorder.dead_letters SET UNLOGGED", "table dead_letters is now `not logged`"),
        ("DROP TABLE inorder.instances", "table instances is missing"),
        ("DROP FUNCTION inorder.safe_head()", "function safe_head() is missing"),
        (
            "CREATE OR REPLACE FUNCTION inorder.safe_head() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'",
            "function safe_head() is now `body",
        ),
    ];
    for (alteration, names) in cases {
        let database = database().await;
        database
            .client()
            .await
            .batch_execute(alteration)
            .await
            .unwrap_or_else(|e| panic!("{alteration}: {e:?}"));
        let log = Inorder::connect(database.url()).await.unwrap();
        assert_refused(log.migrate().await, &["\"inorder\"", names, "put that back"]);
    }
}

#[tokio::test]
async fn functions_and_triggers_are_put_back_when_an_operator_says_so() {
    let database = database().await;
    let client = database.client().await;
    let log = Inorder::connect(database.url()).await.unwrap();
    client
        .batch_execute("DROP TRIGGER events_append_only ON inorder.events; DROP FUNCTION inorder.safe_head()")
        .await
        .unwrap();
    assert_refused(log.migrate().await, &["DELETE FROM \"inorder\".migrations WHERE version = 0"]);
    client.batch_execute("DELETE FROM inorder.migrations WHERE version = 0").await.unwrap();
    assert!(log.migrate().await.unwrap().functions_replaced);
    assert!(nothing_done(&log.migrate().await.unwrap()));
    client.batch_execute("DELETE FROM inorder.events").await.unwrap_err();
    assert_eq!(one::<i64>(&client, "SELECT inorder.safe_head()").await, 0);
    // What is there now is what must stay.
    client.batch_execute("DROP INDEX inorder.events_stream_key").await.unwrap();
    assert_refused(log.migrate().await, &["index events.events_stream_key is missing"]);
}

#[tokio::test]
async fn what_others_add_is_theirs_to_add_and_to_take_away() {
    let database = empty_database().await;
    let client = database.client().await;
    let log = Inorder::connect(database.url()).await.unwrap();
    client.batch_execute("CREATE SCHEMA inorder; CREATE TABLE inorder.theirs (id int)").await.unwrap();
    log.migrate().await.unwrap();
    client
        .batch_execute(
            "CREATE INDEX their_index ON inorder.events (event_type);
            ALTER TABLE inorder.consumers ADD COLUMN their_note text;
            DROP TABLE inorder.theirs",
        )
        .await
        .unwrap();
    assert!(nothing_done(&log.migrate().await.unwrap()));
    // Nor do they become ours when functions are replaced.
    client.batch_execute("UPDATE inorder.migrations SET checksum = 'old' WHERE version = 0").await.unwrap();
    assert!(log.migrate().await.unwrap().functions_replaced);
    client
        .batch_execute("DROP INDEX inorder.their_index; ALTER TABLE inorder.consumers DROP COLUMN their_note")
        .await
        .unwrap();
    assert!(nothing_done(&log.migrate().await.unwrap()));
}

#[tokio::test]
async fn a_standby_is_refused() {
    let server = TempPostgres::start().await.unwrap();
    let standby = server.standby().await.unwrap();
    let refused = Inorder::connect(standby.url()).await.unwrap_err();
    assert!(refused.report().contains("the server is a standby"), "{refused:?}");
}

#[tokio::test]
async fn a_database_that_is_not_utf8_is_refused() {
    let utf8 = empty_database().await;
    let client = utf8.client().await;
    let name = format!("inorder_test_latin_{:08x}", fastrand::u32(..));
    let create = format!("CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
    client.batch_execute(&create).await.unwrap();
    let here: String = one(&client, "SELECT current_database()::text").await;
    let log = Inorder::connect(utf8.url().replace(&here, &name)).await.unwrap();
    assert_refused(log.migrate().await, &["LATIN1", "UTF8", &name]);
    drop(log);
    client.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await.unwrap();
}

/// Functions are created without a look into their bodies, so that their order does not matter; here is the look.
#[tokio::test]
async fn every_function_has_a_body_that_the_server_accepts() {
    let client = database().await.client().await;
    let functions = "SELECT p.oid::regprocedure::text, pg_get_functiondef(p.oid) \
        FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname = 'inorder'";
    let functions = client.query(functions, &[]).await.unwrap();
    assert!(functions.len() > 1);
    client.batch_execute("SET check_function_bodies = on; SET search_path = pg_catalog").await.unwrap();
    for function in functions {
        let (name, text): (String, String) = (function.get(0), function.get(1));
        client.batch_execute(&text).await.unwrap_or_else(|e| panic!("{name}: {e:?}"));
    }
}
