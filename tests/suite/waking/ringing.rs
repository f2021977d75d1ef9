//! Who rings, and who does not.

use std::time::Duration;

use inorder::{Config, Inorder};

use super::{Ear, LIMIT, NEVER, Scene, TRACKER, ringing_database, set, sleeping, terminate};
use crate::support::{Recording, Words, Writer, database, eventually, versatile_database};

/// I-8.
#[tokio::test]
async fn nobody_rings_while_nobody_sleeps() {
    let db = ringing_database().await;
    let (ear, writer) = (Ear::in_database(&db).await, Writer::on(db.url()).await);
    writer.append().await;
    assert_eq!(ear.heard().await, 0);
    let scene = Scene::in_database(db, NEVER).await;
    scene.asleep().await;
    writer.append_many(100).await;
    assert_eq!(ear.heard().await, 1, "once a statement");
    writer.run("BEGIN").await;
    writer.append().await;
    writer.append().await;
    writer.commit().await;
    assert_eq!(ear.heard().await, 2, "once a transaction");
    scene.stop().await;
    writer.append().await;
    assert_eq!(ear.heard().await, 2, "it has left");
}

/// I-8: ringing costs appenders something, so the mark goes while events come fast, and comes back.
#[tokio::test]
async fn the_mark_goes_while_events_come_fast_and_comes_back_when_they_do_not() {
    let scene = Scene::polling_every(NEVER).await;
    scene.asleep().await;
    let (writer, client) = (scene.writer().await, scene.db.client().await);
    let marked_for = sleeping(&client).await.unwrap();
    assert!((50.0..=60.0).contains(&marked_for), "{marked_for}");
    for _ in 0..5 {
        writer.append().await;
    }
    assert!(sleeping(&client).await.is_some(), "light traffic rings");
    let mut appended = 5;
    eventually(LIMIT, "the mark is gone", async || {
        appended += writer.append_many(100).await.len();
        sleeping(&client).await.is_none()
    })
    .await;
    scene.words.forget();
    scene.asleep().await;
    assert!(sleeping(&client).await.is_some());
    eventually(LIMIT, "all are delivered", async || scene.seen.ids().await.len() == appended).await;
    scene.stop().await;
}

/// A transaction that has notified cannot be prepared, so by default nobody notifies where transactions may be.
#[tokio::test]
async fn a_server_that_allows_prepared_transactions_is_polled_and_that_is_said() {
    let db = versatile_database().await;
    let ear = Ear::in_database(&db).await;
    let scene = Scene::in_database(db, Duration::from_millis(100)).await;
    scene.words.say(LIMIT, &["appends do not ring on this server"]).await;
    let writer = scene.writer().await;
    // As if somebody slept.
    writer.run("UPDATE inorder.instances SET sleeping_until = now() + interval '1 hour'").await;
    writer.append().await;
    writer.run("BEGIN").await;
    writer.append().await;
    let gid = format!("waking {}", scene.db.url());
    writer.run(&format!("PREPARE TRANSACTION '{gid}'")).await;
    writer.run(&format!("COMMIT PREPARED '{gid}'")).await;
    scene.delivered(&[1, 2]).await;
    assert_eq!(ear.heard().await, 0);
    assert!(scene.words.with(&["asleep"]).is_empty());
    scene.stop().await;
}

#[tokio::test]
async fn a_server_that_allows_prepared_transactions_rings_where_the_setting_says_so() {
    let db = versatile_database().await;
    set(&db, "inorder.ring", "on").await;
    let scene = Scene::in_database(db, NEVER).await;
    scene.asleep().await;
    let writer = scene.writer().await;
    writer.append().await;
    scene.delivered(&[1]).await;
    assert!(scene.words.with(&["appends do not ring"]).is_empty());
    scene.stop().await;
}

#[tokio::test]
async fn the_setting_that_stops_the_bell_leaves_the_poll() {
    let db = database().await;
    set(&db, "inorder.ring", "off").await;
    let ear = Ear::in_database(&db).await;
    let scene = Scene::in_database(db, Duration::from_millis(100)).await;
    scene.words.say(LIMIT, &["appends do not ring on this server"]).await;
    let writer = scene.writer().await;
    writer.run("UPDATE inorder.instances SET sleeping_until = now() + interval '1 hour'").await;
    writer.append().await;
    scene.delivered(&[1]).await;
    assert_eq!(ear.heard().await, 0);
    scene.stop().await;
}

/// The setting may change under a dispatcher that sleeps.
#[tokio::test]
async fn a_bell_that_is_taken_away_meanwhile_is_noticed() {
    let db = database().await;
    set(&db, "inorder.ring", "on").await;
    let scene = Scene::in_database(db, Duration::from_millis(100)).await;
    scene.asleep().await;
    scene.words.forget();
    set(&scene.db, "inorder.ring", "off").await;
    eventually(LIMIT, "the tracker is ended", async || terminate(&scene.db, TRACKER).await > 0).await;
    scene.words.say(LIMIT, &["appends do not ring on this server"]).await;
    scene.writer().await.append().await;
    scene.delivered(&[1]).await;
    scene.stop().await;
}

/// Through a pooler that gives each transaction another session, LISTEN hears nothing.
#[tokio::test]
async fn a_dispatcher_that_only_polls_neither_listens_nor_has_anybody_ring() {
    let db = database().await;
    let words = Words::listen();
    let ear = Ear::in_database(&db).await;
    let seen = Recording::on(db.url()).await;
    let dispatcher = seen.builder().poll_only().poll_interval(Duration::from_millis(50)).build().unwrap();
    let running = dispatcher.start().await.unwrap();
    let (writer, client) = (Writer::on(db.url()).await, db.client().await);
    for n in 1..=5 {
        writer.append().await;
        eventually(LIMIT, "it is delivered", async || seen.ids().await.len() == n).await;
        assert_eq!(sleeping(&client).await, None);
    }
    assert_eq!(ear.heard().await, 0);
    assert_eq!(words.with(&["listening"]), [""; 0]);
    running.stop().await.unwrap();
}

/// I-8. The trigger looks into a table that a producer may not.
#[tokio::test]
async fn a_producer_without_any_right_on_the_processes_appends_while_one_sleeps() {
    let db = versatile_database().await;
    set(&db, "inorder.ring", "on").await;
    let scene = Scene::in_database(db, NEVER).await;
    scene.asleep().await;
    let producer = scene.writer().await;
    let role = format!("producer_of_{}", scene.db.url().rsplit('/').next().unwrap());
    let grants = format!(
        "CREATE ROLE {role};
         GRANT USAGE ON SCHEMA inorder TO {role};
         GRANT INSERT (event_type, payload) ON inorder.events TO {role};
         SET ROLE {role}"
    );
    producer.run(&grants).await;
    producer.run("INSERT INTO inorder.events (event_type, payload) VALUES ('produced', '{}')").await;
    scene.delivered(&[1]).await;
    assert!(producer.client().batch_execute("SELECT FROM inorder.instances").await.is_err());
    scene.stop().await;
}

/// The trigger's function runs with its owner's rights, under the producer's search path.
#[tokio::test]
async fn a_producer_cannot_put_its_own_functions_in_the_place_of_those_that_the_bell_uses() {
    let scene = Scene::polling_every(NEVER).await;
    scene.asleep().await;
    let producer = scene.writer().await;
    producer
        .run(
            "CREATE SCHEMA evil;
             CREATE TABLE evil.instances (sleeping_until timestamptz);
             CREATE FUNCTION evil.trap() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
             CREATE FUNCTION evil.later(timestamptz, timestamptz) RETURNS boolean LANGUAGE sql AS 'SELECT evil.trap()';
             CREATE FUNCTION evil.same(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT evil.trap()';
             CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT now() WHERE evil.trap()';
             CREATE FUNCTION evil.current_setting(text) RETURNS text LANGUAGE sql AS 'SELECT $1 WHERE evil.trap()';
             CREATE FUNCTION evil.md5(text) RETURNS text LANGUAGE sql AS 'SELECT $1 WHERE evil.trap()';
             CREATE FUNCTION evil.pg_notify(text, text) RETURNS void LANGUAGE sql AS 'SELECT evil.trap()';
             CREATE OPERATOR evil.> (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = evil.later);
             CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.same);
             SET search_path = evil, pg_catalog",
        )
        .await;
    assert!(
        producer.client().batch_execute("SELECT 'a'::text = 'a'::text").await.is_err(),
        "the trap is set"
    );
    producer.run("INSERT INTO inorder.events (event_type, payload) VALUES ('produced', '{}')").await;
    scene.delivered(&[1]).await;
    scene.stop().await;
}

/// The channel is named after the schema, whatever its name.
#[tokio::test]
async fn the_bell_of_a_log_in_any_schema_is_heard_and_no_other() {
    let words = Words::listen();
    let db = ringing_database().await;
    let schema = "It's \"a\" very long name, much too long for a channel, üöä";
    let log = Inorder::with_config(Config { schema: schema.into(), ..Config::new(db.url()) }).await.unwrap();
    log.migrate().await.unwrap();
    let seen = Recording::over(log.clone(), db.url()).await;
    let running = seen.builder().poll_interval(NEVER).build().unwrap().start().await.unwrap();
    words.say(LIMIT, &["asleep"]).await;
    let ear = Ear::in_database(&db).await;
    let event = inorder::NewEvent::from_json("odd", "{}");
    let _ = log.append(inorder::ExpectedVersion::Any, &[event]).await.unwrap();
    eventually(LIMIT, "it is delivered", async || seen.ids().await == [1]).await;
    assert_eq!(ear.heard().await, 0, "that is another log's bell");
    running.stop().await.unwrap();
}
