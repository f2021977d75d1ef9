//! Several hosts: the primary is found among them.

use std::time::{Duration, Instant};

use inorder::testing::TempPostgres;
use inorder::{Config, ErrorKind, Inorder};

use crate::support::{LIMIT, Proxy, Recording, Writer, connect, eventually};

fn url(hosts: &[u16], words: &str) -> String {
    let ports = hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let names = vec!["127.0.0.1"; hosts.len()].join(",");
    format!("host={names} port={ports} user=postgres dbname=postgres {words}")
}

async fn port_of(log: &Inorder) -> i32 {
    let client = log.get().await.unwrap();
    client.query_one("SELECT current_setting('port')::int", &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn the_primary_is_found_wherever_it_stands() {
    let primary = TempPostgres::start().await.unwrap();
    let standby = primary.standby().await.unwrap();
    let nobody = 1;
    let hosts = [nobody, standby.port(), primary.port()];
    for words in
        ["", "target_session_attrs=read-write", "target_session_attrs=primary", "load_balance_hosts=random"]
    {
        let log = Inorder::connect(url(&hosts, words)).await.unwrap();
        assert_eq!(port_of(&log).await, i32::from(primary.port()), "{words:?}");
    }

    let refused = Inorder::connect(url(&hosts[..2], "")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Connection, "another may be it in a moment");
    let report = refused.report();
    assert!(report.contains("127.0.0.1:1/") && report.contains("the server is a standby"), "{report}");

    for words in ["any", "read-only", "standby", "prefer-standby"] {
        let refused =
            Inorder::connect(url(&hosts, &format!("target_session_attrs={words}"))).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Config, "{refused:?}");
        assert!(refused.to_string().contains("primary"), "{refused:?}");
    }
}

/// A host that takes connections and says nothing costs its own time, not that of the others.
#[tokio::test]
async fn a_host_that_says_nothing_is_passed_over_in_time() {
    let server = TempPostgres::start().await.unwrap();
    let silent = Proxy::in_front_of(server.url()).await;
    silent.black_hole();
    let silent: u16 = silent_port(&silent);
    let config =
        Config { connect_timeout: Duration::from_secs(1), ..Config::new(url(&[silent, server.port()], "")) };
    let began = Instant::now();
    let log = Inorder::with_config(config).await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(port_of(&log).await, i32::from(server.port()));
    // What the URL says of it goes before.
    let all_silent = Inorder::connect(url(&[silent, silent], "connect_timeout=1")).await.unwrap_err();
    assert!(all_silent.report().contains("no answer within 1.0 s"), "{all_silent:?}");
}

fn silent_port(proxy: &Proxy) -> u16 {
    proxy.url().parse::<tokio_postgres::Config>().unwrap().get_ports()[0]
}

/// The dispatcher goes on at the one that took over.
#[tokio::test]
async fn delivery_goes_on_where_the_standby_took_over() {
    let primary = TempPostgres::start().await.unwrap();
    let standby = primary.standby().await.unwrap();
    let log = Inorder::connect(url(&[primary.port(), standby.port()], "connect_timeout=2")).await.unwrap();
    log.migrate().await.unwrap();
    let mut seen = Recording::over(log.clone(), primary.url()).await;
    let running =
        seen.builder().poll_interval(Duration::from_millis(50)).build().unwrap().start().await.unwrap();
    Writer::on(primary.url()).await.append_many(5).await;
    eventually(LIMIT, "the first are delivered", async || seen.ids().await.len() == 5).await;
    let reader = connect(standby.url()).await;
    eventually(LIMIT, "the standby has them", async || {
        let delivered = reader.query_one("SELECT count(*) FROM public.delivered", &[]).await;
        delivered.is_ok_and(|row| row.get::<_, i64>(0) == 5)
    })
    .await;

    primary.crash().await.unwrap();
    standby.promote().await.unwrap();
    seen.look_at(standby.url());
    Writer::on(standby.url()).await.append_many(5).await;

    eventually(LIMIT, "the others are delivered", async || seen.ids().await.len() == 10).await;
    seen.assert_complete().await;
    running.stop().await.unwrap();
}
