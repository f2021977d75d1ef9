//! The sequence that says until when somebody sleeps: an append looks at it and not at the table.

use std::time::Duration;

use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::database::Database;
use crate::support::{database, eventually};

const LIMIT: Duration = Duration::from_secs(30);

/// A session that plays the watcher of a process.
struct Process {
    id: Uuid,
    session: Client,
}

impl Process {
    async fn enter(db: &Database) -> Process {
        let (id, session) = (Uuid::new_v4(), db.client().await);
        let enter = "INSERT INTO inorder.instances (id, epoch, host, pid, version) VALUES ($1, gen_random_uuid(), 'here', 1, '0')";
        session.execute(enter, &[&id]).await.unwrap();
        Process { id, session }
    }

    async fn run(&self, sql: &str) {
        self.session.batch_execute(sql).await.unwrap();
    }

    async fn sleep_for(&self, seconds: f64) {
        let mark = "UPDATE inorder.instances SET sleeping_until = clock_timestamp() + make_interval(secs => $2) WHERE id = $1";
        self.session.execute(mark, &[&self.id, &seconds]).await.unwrap();
    }

    async fn awake(&self) {
        let mark = "UPDATE inorder.instances SET sleeping_until = NULL WHERE id = $1";
        self.session.execute(mark, &[&self.id]).await.unwrap();
    }

    async fn leave(&self) {
        self.session.execute("DELETE FROM inorder.instances WHERE id = $1", &[&self.id]).await.unwrap();
    }
}

/// How many seconds the doorbell lies ahead of now, and is it below the latest mark?
async fn doorbell(client: &Client) -> (f64, bool) {
    let look = "SELECT (last_value - date_part('epoch', clock_timestamp()))::float8, \
            coalesce(last_value < (SELECT date_part('epoch', max(sleeping_until)) FROM inorder.instances), false) \
        FROM inorder.doorbell";
    let row = client.query_one(look, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

async fn is_set(client: &Client) -> bool {
    let (ahead, too_low) = doorbell(client).await;
    assert!(!too_low, "an append would not ring for a process that sleeps");
    ahead > 0.0
}

/// Waits until a session of the database waits for an advisory lock.
async fn somebody_waits(client: &Client) {
    let waiting = "SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database \
        WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted";
    eventually(LIMIT, "one waits for the other", async || {
        client.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;
}

#[tokio::test]
async fn the_doorbell_is_set_while_any_process_sleeps_and_not_longer() {
    let db = database().await;
    let client = db.client().await;
    let (one, other) = (Process::enter(&db).await, Process::enter(&db).await);
    assert!(!is_set(&client).await);
    one.sleep_for(3_600.0).await;
    assert!(is_set(&client).await);
    other.sleep_for(60.0).await;
    one.awake().await;
    assert!(is_set(&client).await, "the other sleeps");
    assert!(doorbell(&client).await.0 < 100.0, "but not as long");
    one.sleep_for(60.0).await;
    other.leave().await;
    assert!(is_set(&client).await, "the one sleeps again");
    one.awake().await;
    assert!(!is_set(&client).await);
}

/// I-1. What one process takes away must not be what another, which commits at the same time, has set.
#[tokio::test]
async fn a_mark_that_is_set_while_another_goes_is_kept_by_the_doorbell() {
    let db = database().await;
    let client = db.client().await;
    let (one, other) = (Process::enter(&db).await, Process::enter(&db).await);
    for one_commits in [true, false] {
        one.sleep_for(60.0).await;
        // The one that goes is first.
        one.run("BEGIN ISOLATION LEVEL READ COMMITTED").await;
        one.awake().await;
        let marking = async {
            other.sleep_for(60.0).await;
        };
        let committing = async {
            somebody_waits(&client).await;
            one.run(if one_commits { "COMMIT" } else { "ROLLBACK" }).await;
        };
        tokio::join!(marking, committing);
        assert!(is_set(&client).await);
        // The one that comes is first.
        other.awake().await;
        one.sleep_for(60.0).await;
        other.run("BEGIN ISOLATION LEVEL READ COMMITTED").await;
        other.sleep_for(60.0).await;
        let going = async {
            one.awake().await;
        };
        let committing = async {
            somebody_waits(&client).await;
            other.run("COMMIT").await;
        };
        tokio::join!(going, committing);
        assert!(is_set(&client).await);
        other.awake().await;
        assert!(!is_set(&client).await);
    }
}

/// I-8. The whole of what an append pays while nobody sleeps: the trigger's condition, and not its function.
#[tokio::test]
async fn an_append_does_not_call_the_bells_function_while_nobody_sleeps() {
    let db = database().await;
    let client = db.client().await;
    let process = Process::enter(&db).await;
    let trap = "CREATE OR REPLACE FUNCTION inorder.ring() RETURNS trigger LANGUAGE plpgsql \
        AS $$ BEGIN RAISE EXCEPTION 'called'; END $$";
    client.batch_execute(trap).await.unwrap();
    let append = "INSERT INTO inorder.events (event_type, payload) VALUES ('x', '{}')";
    client.batch_execute(append).await.unwrap();
    process.sleep_for(60.0).await;
    let error = client.batch_execute(append).await.unwrap_err();
    assert_eq!(error.as_db_error().unwrap().message(), "called");
    process.awake().await;
    client.batch_execute(append).await.unwrap();
}
