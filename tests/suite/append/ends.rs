//! How an append ends with its transaction, and when nobody knows.

use std::time::Duration;

use inorder::{Append, Config, ErrorKind, ExpectedVersion, Inorder, NewEvent};
use tokio_postgres::Client;

use super::{Given, count, log, new_events};
use crate::support::{Proxy, database, eventually};
use ExpectedVersion::{Any, NoStream};

/// A rollback, to a savepoint as well, leaves nothing, and nothing that stands in the way of another try.
#[tokio::test]
async fn a_rollback_leaves_nothing() {
    let db = database().await;
    let log = log(db.url()).await;
    let mut client = db.client().await;
    let events = new_events(&[Given::of("thing", "1"), Given::new("x", "1")]);
    for _ in 0..2 {
        let mut tx = client.transaction().await.unwrap();
        let savepoint = tx.transaction().await.unwrap();
        let append = log.append_in(&savepoint, NoStream, &events[..1]).await.unwrap();
        assert!(matches!(append, Append::Appended(_)));
        savepoint.rollback().await.unwrap();
        let append = log.append_in(&tx, NoStream, &events[..1]).await.unwrap();
        assert!(matches!(append, Append::Appended(_)));
        let append = log.append_in(&tx, Any, &events).await.unwrap();
        assert!(matches!(append, Append::Completed { already: 1, .. }));
        tx.rollback().await.unwrap();
    }
    assert_eq!(count(&client).await, 0);
    assert!(matches!(log.append(Any, &events).await.unwrap(), Append::Appended(_)));
}

/// Business data and event commit together.
#[tokio::test]
async fn an_append_is_part_of_the_callers_transaction() {
    let db = database().await;
    let log = log(db.url()).await;
    let observer = db.client().await;
    let mut client = log.get().await.unwrap();
    client.batch_execute("CREATE TABLE orders (id int)").await.unwrap();
    let tx = client.transaction().await.unwrap();
    tx.execute("INSERT INTO orders VALUES (1)", &[]).await.unwrap();
    let append = log.append_in(&tx, Any, &[NewEvent::from_json("order.placed", "1")]).await.unwrap();
    assert!(matches!(append, Append::Appended(_)));
    assert_eq!(count(&observer).await, 0);
    tx.commit().await.unwrap();
    assert_eq!(count(&observer).await, 1);
}

/// Its own transaction is READ COMMITTED and writes, whatever somebody made of the session.
#[tokio::test]
async fn a_transaction_of_its_own_is_read_committed() {
    let db = database().await;
    let log = Inorder::with_config(Config { pool_size: 1, ..Config::new(db.url()) }).await.unwrap();
    for setting in ["default_transaction_isolation = 'serializable'", "default_transaction_read_only = on"] {
        log.get().await.unwrap().batch_execute(&format!("SET {setting}")).await.unwrap();
    }
    let trigger = "CREATE FUNCTION level() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN ASSERT current_setting('transaction_isolation') = 'read committed'; RETURN NULL; END $$;
        CREATE TRIGGER level AFTER INSERT ON inorder.events EXECUTE FUNCTION level()";
    db.client().await.batch_execute(trigger).await.unwrap();
    let append = log.append(Any, &[NewEvent::from_json("x", "1")]).await.unwrap();
    assert_eq!(append, Append::Appended(vec![1]));
}

/// A commit that the server refuses is a failure, not an unknown.
#[tokio::test]
async fn a_commit_that_is_refused_is_an_error() {
    let db = database().await;
    let log = log(db.url()).await;
    let client = db.client().await;
    let trigger = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'not today' USING ERRCODE = '23514'; END $$;
        CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON inorder.events DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION refuse()";
    client.batch_execute(trigger).await.unwrap();
    let error = log.append(Any, &[NewEvent::from_json("x", "1")]).await.unwrap_err();
    assert_eq!((error.kind(), error.sqlstate()), (ErrorKind::Database, Some("23514")), "{error:?}");
    assert!(error.report().contains("not today"));
    assert_eq!(count(&client).await, 0);
    // The session is none the worse.
    client.batch_execute("DROP TRIGGER refuse ON inorder.events").await.unwrap();
    assert!(matches!(log.append(Any, &[NewEvent::from_json("x", "1")]).await.unwrap(), Append::Appended(_)));
}

/// The answer to the commit never comes: the outcome is unknown, says so, and trying again finds out.
#[tokio::test]
async fn a_lost_answer_to_the_commit_is_ambiguous() {
    let db = database().await;
    let client = db.client().await;
    for silent in [false, true] {
        let before = count(&client).await;
        let proxy = Proxy::in_front_of(db.url()).await;
        let statement_timeout = Duration::from_millis(if silent { 500 } else { 30_000 });
        let config = Config { statement_timeout, pool_size: 1, ..Config::new(proxy.url()) };
        let log = Inorder::with_config(config).await.unwrap();
        let before_it = backend(&log).await;
        proxy.swallow_answers();
        let events = [NewEvent::from_json("x", "1")];
        let appending = tokio::spawn({
            let (log, events) = (log.clone(), events.clone());
            async move { log.append(Any, &events).await }
        });
        until_count(&client, before + 1).await;
        if !silent {
            proxy.cut();
        }
        let error = appending.await.unwrap().unwrap_err();
        assert!(error.is_ambiguous() && error.to_string().contains("do the same again"), "{error:?}");
        proxy.heal();
        assert_ne!(backend(&log).await, before_it, "the session owes an answer");
        let again = log.append(Any, &events).await.unwrap();
        assert!(matches!(again, Append::AlreadyAppended(_)), "{again:?}");
    }
}

/// A session that was ended while an append waited: the commit had been sent along.
#[tokio::test]
async fn a_terminated_session_is_ambiguous() {
    let db = database().await;
    let log = log(db.url()).await;
    let mut holder = db.client().await;
    let client = db.client().await;
    let tx = holder.transaction().await.unwrap();
    let append = log.append_in(&tx, Any, &new_events(&[Given::of("thing", "1")])).await.unwrap();
    assert!(matches!(append, Append::Appended(_)));
    let appending = tokio::spawn({
        let log = log.clone();
        async move { log.append(Any, &new_events(&[Given::of("thing", "1")])).await }
    });
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE wait_event_type = 'Lock' AND wait_event = 'advisory' AND datname = current_database()";
    eventually(Duration::from_secs(20), "an append waits", async || {
        client.query_opt(end, &[]).await.unwrap().is_some()
    })
    .await;
    let error = appending.await.unwrap().unwrap_err();
    assert!(error.is_ambiguous(), "{error:?}");
}

/// The session that the pool gives.
async fn backend(log: &Inorder) -> i32 {
    let client = log.get().await.unwrap();
    client.query_typed_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
}

async fn until_count(client: &Client, expected: i64) {
    eventually(Duration::from_secs(20), "the event is there", async || count(client).await == expected).await;
}

/// The futures can be spawned.
#[tokio::test]
async fn an_append_can_run_on_any_thread() {
    let db = database().await;
    let log = log(db.url()).await;
    let task = tokio::spawn(async move {
        let mut client = log.get().await?;
        let tx = client.transaction().await.unwrap();
        let append = log.append_in(&tx, Any, &[NewEvent::from_json("x", "1")]).await?;
        tx.commit().await.unwrap();
        Ok::<_, inorder::Error>(append)
    });
    assert_eq!(task.await.unwrap().unwrap(), Append::Appended(vec![1]));
}
