//! The words that the other tests are written in mean what they say.

use std::time::Duration;

use tokio_postgres::error::SqlState;

use crate::support::{Proxy, connect, database, empty_database, eventually, versatile_database};

const LIMIT: Duration = Duration::from_secs(30);

/// Long enough that an answer which is on its way has arrived.
const A_MOMENT: Duration = Duration::from_millis(200);

#[tokio::test]
async fn every_test_has_a_database_of_its_own() {
    let (first, second, empty) = (database().await, database().await, empty_database().await);
    first.client().await.batch_execute("CREATE TABLE only_here ()").await.unwrap();
    for other in [second, empty] {
        let error = other.client().await.batch_execute("SELECT FROM only_here").await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::UNDEFINED_TABLE));
    }
}

#[tokio::test]
async fn a_cut_ends_connections_and_lets_new_ones_through() {
    let proxy = Proxy::in_front_of(database().await.url()).await;
    let client = connect(proxy.url()).await;
    client.batch_execute("SELECT 1").await.unwrap();

    proxy.cut();

    eventually(LIMIT, "the client notices", async || client.is_closed()).await;
    connect(proxy.url()).await.batch_execute("SELECT 1").await.unwrap();
}

#[tokio::test]
async fn a_refusing_proxy_takes_no_connection_until_healed() {
    let proxy = Proxy::in_front_of(database().await.url()).await;
    proxy.refuse();
    assert!(tokio_postgres::connect(proxy.url(), tokio_postgres::NoTls).await.is_err());
    proxy.heal();
    connect(proxy.url()).await.batch_execute("SELECT 1").await.unwrap();
}

#[tokio::test]
async fn nothing_comes_out_of_a_black_hole_until_it_is_healed() {
    let proxy = Proxy::in_front_of(database().await.url()).await;
    let client = connect(proxy.url()).await;

    proxy.black_hole();

    let answer = client.batch_execute("SELECT 1");
    tokio::pin!(answer);
    let new = tokio_postgres::connect(proxy.url(), tokio_postgres::NoTls);
    tokio::pin!(new);
    assert!(tokio::time::timeout(A_MOMENT, &mut answer).await.is_err(), "an existing connection hangs");
    assert!(tokio::time::timeout(A_MOMENT, &mut new).await.is_err(), "so does a new one");
    assert_eq!(proxy.connections(), 2);

    proxy.heal();

    tokio::time::timeout(LIMIT, answer).await.expect("answers after all").unwrap();
    let (client, connection) = tokio::time::timeout(LIMIT, new).await.expect("connects after all").unwrap();
    drop((client, connection));
}

#[tokio::test]
async fn a_silenced_connection_stays_silent_and_a_new_one_goes_through() {
    let proxy = Proxy::in_front_of(database().await.url()).await;
    let client = connect(proxy.url()).await;
    client.batch_execute("SELECT 1").await.unwrap();

    proxy.silence();
    let new = connect(proxy.url()).await;
    proxy.heal();

    assert!(tokio::time::timeout(A_MOMENT, client.batch_execute("SELECT 1")).await.is_err());
    new.batch_execute("SELECT 1").await.unwrap();
}

#[tokio::test]
async fn new_connections_lead_to_another_server_and_open_ones_stay() {
    let (first, second) = (database().await, versatile_database().await);
    let proxy = Proxy::in_front_of(first.url()).await;
    let names = second.url().rsplit_once('/').unwrap().1;
    let there = proxy.url().rsplit_once('/').unwrap().0;
    let old = connect(proxy.url()).await;

    proxy.lead_to(second.url()).await;

    let new = connect(&format!("{there}/{names}")).await;
    let name: String = new.query_one("SELECT current_database()::text", &[]).await.unwrap().get(0);
    assert_eq!(name, names);
    old.batch_execute("SELECT 1").await.unwrap();
}

#[tokio::test]
async fn a_statement_whose_answer_is_swallowed_has_happened() {
    let database = database().await;
    let direct = database.client().await;
    direct.batch_execute("CREATE TABLE t (n int)").await.unwrap();
    let proxy = Proxy::in_front_of(database.url()).await;
    let client = connect(proxy.url()).await;

    proxy.swallow_answers();
    let insert = client.batch_execute("INSERT INTO t VALUES (1)");
    tokio::pin!(insert);
    assert!(tokio::time::timeout(A_MOMENT, &mut insert).await.is_err());
    eventually(LIMIT, "the row is there", async || {
        direct.query_one("SELECT count(*) FROM t", &[]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;

    proxy.cut();
    assert!(insert.await.unwrap_err().is_closed());
}

#[tokio::test]
async fn a_delay_is_felt_in_each_direction() {
    let proxy = Proxy::in_front_of(database().await.url()).await;
    let client = connect(proxy.url()).await;
    proxy.delay(Duration::from_millis(30));
    let began = std::time::Instant::now();
    client.batch_execute("SELECT 1").await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(60), "{:?}", began.elapsed());
}
