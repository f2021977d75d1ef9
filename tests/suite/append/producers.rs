//! What a producer may do, and nothing else.

use futures_util::SinkExt as _;
use inorder::{Append, Consumer, Dispatcher, ExpectedVersion, Inorder, NewEvent};

use super::{Given, WAYS, Way, append, batch, count, one};
use crate::support::{Role, database};
use ExpectedVersion::{Any, NoStream};

#[tokio::test]
async fn a_producer_appends_in_every_way() {
    let db = database().await;
    let producer = Role::of("producer", &db).await;
    let log = producer.log().await;
    let mut client = producer.client().await;
    let who = log.get().await.unwrap().query_one("SELECT current_user::text", &[]).await.unwrap();
    assert_eq!(who.get::<_, &str>(0), producer.name);

    for way in WAYS {
        let given = Given::of("thing", &format!("{way:?}"));
        let given = std::slice::from_ref(&given);
        append(way, &log, &mut client, NoStream, given).await;
        append(way, &log, &mut client, NoStream, given).await;
        append(way, &log, &mut client, NoStream, &[given[0].with(|e| e.event_id = uuid::Uuid::new_v4())])
            .await;
    }
    batch(&client, Any, &[Given::of("thing", "1"), Given::new("x", "1")]).await;
    one(&client, Any, &Given::of("thing", "1")).await.unwrap();
    assert!(matches!(log.append(Any, &[NewEvent::from_json("x", "1")]).await.unwrap(), Append::Appended(_)));
    client
        .batch_execute(
            "INSERT INTO inorder.events (event_id, tenant_id, stream_type, stream_id, stream_version, event_type,
                schema_version, payload, metadata, correlation_id, causation_id, created_by, recorded_at)
            VALUES (gen_random_uuid(), 't', 's', '1', 1, 'x', 1, '1', '{}', gen_random_uuid(), gen_random_uuid(), 'me', now())",
        )
        .await
        .unwrap();
    let copy = client.copy_in("COPY inorder.events (event_type, payload) FROM STDIN").await.unwrap();
    let mut copy = Box::pin(copy);
    copy.send(&b"copied\t1\n"[..]).await.unwrap();
    assert_eq!(copy.as_mut().finish().await.unwrap(), 1);
    assert_eq!(count(&producer.owner).await, 4 + 2 + 1 + 1 + 1 + 1);
    drop((client, log));
    producer.drop().await;
}

#[tokio::test]
async fn a_producer_receives_and_records_for_queued_consumers() {
    let db = database().await;
    let producer = Role::of("producer", &db).await;
    let owner = Inorder::connect(db.url()).await.unwrap();
    let consumer = Consumer::queued_fn("mail", |_, _| Box::pin(async { Ok(()) }));
    Dispatcher::builder(&owner).consumer(consumer).build().unwrap().register().await.unwrap();
    let log = producer.log().await;
    let received = log.inbound("feed").receive("1", NewEvent::from_json("x", "1")).await.unwrap();
    assert!(received.is_new());
    let mut client = producer.client().await;
    let receive = "SELECT outcome FROM inorder.receive('feed', '1', 'x', '1')";
    assert_eq!(client.query_one(receive, &[]).await.unwrap().get::<_, &str>(0), "duplicate");
    let tx = client.transaction().await.unwrap();
    let Append::Appended(ids) = log.append_in(&tx, Any, &[NewEvent::from_json("x", "1")]).await.unwrap()
    else {
        panic!("it is new")
    };
    let pending = log.record_pending_in(&tx, &ids, "mail").await.unwrap();
    assert_eq!(pending.consumers(), ["mail"]);
    tx.commit().await.unwrap();
    let rows = "SELECT count(*) FROM inorder.ledger WHERE status = 'pending'";
    assert_eq!(producer.owner.query_one(rows, &[]).await.unwrap().get::<_, i64>(0), 2);
    drop((client, log));
    producer.drop().await;
}

#[tokio::test]
async fn a_producer_may_do_nothing_else() {
    let db = database().await;
    let producer = Role::of("producer", &db).await;
    let mut client = producer.client().await;
    append(Way::Batch, &producer.log().await, &mut client, Any, &[Given::new("x", "1")]).await;
    producer
        .may_not(&[
            "COPY inorder.events (id, event_type, payload) FROM STDIN",
            "INSERT INTO inorder.events (id, event_type, payload) OVERRIDING SYSTEM VALUE VALUES (7, 'x', '1')",
            "INSERT INTO inorder.events (id, event_type, payload) OVERRIDING USER VALUE VALUES (7, 'x', '1')",
            "INSERT INTO inorder.events (event_type, payload) VALUES ('x', '1') RETURNING id",
            "SELECT id FROM inorder.events",
            "COPY inorder.events TO STDOUT",
            "UPDATE inorder.events SET event_type = 'y'",
            "DELETE FROM inorder.events",
            "TRUNCATE inorder.events",
            "ALTER TABLE inorder.events DISABLE TRIGGER ALL",
            "SELECT nextval('inorder.events_id_seq')",
            "SELECT setval('inorder.events_id_seq', 1)",
            "SELECT * FROM inorder.consumers",
            "SELECT * FROM inorder.dead_letters",
            "SELECT * FROM inorder.ledger",
            "INSERT INTO inorder.ledger (event_id, handler, status) VALUES (gen_random_uuid(), 'mail', 'done')",
            "SELECT * FROM inorder.instances",
            "SELECT * FROM inorder.audit",
            "SELECT * FROM inorder.log_state",
            "SELECT * FROM inorder.migrations",
            "SELECT inorder.safe_head()",
            "CREATE TABLE inorder.mine ()",
            "SELECT inorder.grant_producer(current_user)",
            "SELECT inorder.restart('x')",
        ])
        .await;
    assert_eq!(count(&producer.owner).await, 1);
    drop(client);
    producer.drop().await;
}

/// Who may only look around in the schema does not append: the functions are not everybody's.
#[tokio::test]
async fn the_use_of_the_schema_alone_does_not_append() {
    let db = database().await;
    let producer = Role::of("producer", &db).await;
    let revoke = format!("DROP OWNED BY \"{0}\"; GRANT USAGE ON SCHEMA inorder TO \"{0}\"", producer.name);
    producer.owner.batch_execute(&revoke).await.unwrap();
    let client = producer.client().await;
    for statement in [
        "SELECT inorder.append('x', '1')",
        "SELECT inorder.append_events(NULL, '{5f7b8d5e-2d6f-4b38-9f77-6d2a25f0c001}', '{x}', '{1}')",
        "INSERT INTO inorder.events (event_type, payload) VALUES ('x', '1')",
        "SELECT inorder.receive('feed', '1', 'x', '1')",
        "SELECT inorder.receive_events('feed', '{1}', NULL, '{x}', '{1}')",
        "SELECT inorder.record_pending('mail', '{1}')",
    ] {
        let error = client.query(statement, &[]).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "42501", "{statement}: {error:?}");
    }
    drop(client);
    producer.drop().await;
}

/// The functions do not look anything up where the caller says.
#[tokio::test]
async fn a_search_path_of_the_callers_changes_nothing() {
    let db = database().await;
    let producer = Role::of("producer", &db).await;
    let trap = "CREATE SCHEMA trap; GRANT USAGE ON SCHEMA trap TO PUBLIC;
        CREATE FUNCTION trap.coalesce_trap() RETURNS int LANGUAGE sql AS 'SELECT 1';
        CREATE FUNCTION trap.hashtext(text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
        CREATE FUNCTION trap.octet_length(text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
        CREATE FUNCTION trap.pg_advisory_xact_lock(int, int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$";
    producer.owner.batch_execute(trap).await.unwrap();
    let client = producer.client().await;
    client.batch_execute("SET search_path = trap, pg_catalog").await.unwrap();
    batch(&client, Any, &[Given::of("thing", "1"), Given::of("thing", "2")]).await;
    one(&client, Any, &Given::of("thing", "1")).await.unwrap();
    assert_eq!(count(&producer.owner).await, 3);
    drop(client);
    producer.drop().await;
}
