//! What a scraper sees.

use std::time::{Duration, Instant};

use inorder::http::{ProcessMetrics, Site};
use inorder::{Consumer, Inorder};

use super::{READ, READER, code, guarded, token};
use crate::support::http::{Answer, Served};
use crate::support::prometheus::{Prometheus, lint};
use crate::support::{LIMIT, Proxy, Role, Stage, Writer, eventually, within};

/// As one label set of a consumer.
fn of(name: &str, consumer: &str) -> String {
    format!("{name}{{consumer=\"{consumer}\",consumer_instance=\"\",partition=\"0\"}}")
}

fn lag(scrape: &Answer, consumer: &str) -> Option<f64> {
    scrape.sample(&of("inorder_consumer_lag_events", consumer))
}

/// Consumers in every state, of three events; nobody runs them.
async fn with_every_state() -> Stage {
    let stage = Stage::with_events(3).await;
    stage
        .sql(
            "INSERT INTO inorder.consumers (name, kind, position, status, attempts, processed, next_attempt_at) VALUES \
              ('dead', 'batch', 1, 'dead', 10, 1, NULL), ('disabled', 'batch', 0, 'disabled', 0, 0, NULL), \
              ('expired', 'batch', 2, 'expired', 0, 2, NULL), ('idle', 'batch', 3, 'idle', 0, 3, NULL), \
              ('waiting', 'queued', 3, 'idle', 2, 0, clock_timestamp() + interval '1 hour')",
        )
        .await;
    stage
        .sql(
            "INSERT INTO inorder.ledger (event_id, handler, status, position, token) \
             SELECT event_id, 'waiting', 'pending', id, 1 FROM inorder.events; \
             INSERT INTO inorder.handoffs (scope, key, taken_by) VALUES ('mail', gen_random_uuid(), 'direct'); \
             INSERT INTO inorder.dead_letters (consumer, position, event_id, reason) \
             SELECT 'dead', id, event_id, 'rejected' FROM inorder.events WHERE id = 1; \
             INSERT INTO inorder.instances (id, epoch, host, pid, version) \
             SELECT gen_random_uuid(), gen_random_uuid(), 'here', n, '0.1.0' FROM generate_series(1, 2) AS n",
        )
        .await;
    stage
}

#[tokio::test]
async fn every_registered_consumer_is_in_the_scrape_while_nobody_runs_any() {
    let stage = with_every_state().await;
    let site = Served::start(Site::new(&stage.log).sample_at_most_every(Duration::ZERO)).await;
    let scrape = site.get("/metrics").await;
    assert_eq!(
        (code(&scrape), scrape.header("content-type")),
        (200, "text/plain; version=0.0.4; charset=utf-8")
    );
    assert_eq!(scrape.sample("inorder_up"), Some(1.0));
    for state in ["dead", "disabled", "expired", "idle", "waiting"] {
        let status = format!(
            "inorder_consumer_status{{consumer=\"{state}\",consumer_instance=\"\",partition=\"0\",status=\"{state}\"}}"
        );
        assert_eq!(scrape.sample(&status), Some(1.0), "{}", scrape.text);
    }
    assert_eq!(
        ["dead", "disabled", "expired", "idle"].map(|c| lag(&scrape, c)),
        [2.0, 3.0, 1.0, 0.0].map(Some)
    );
    assert!(scrape.sample(&of("inorder_consumer_lag_seconds", "dead")) > Some(0.0));
    assert_eq!(scrape.sample(&of("inorder_consumer_attempts", "dead")), Some(10.0));
    assert_eq!(scrape.sample(&of("inorder_dead_letters_open", "dead")), Some(1.0));
    assert_eq!(
        scrape.sample(&of("inorder_queue_oldest_due_seconds", "waiting")).map(|s| s > 0.0),
        Some(true)
    );
    for (series, value) in [
        ("inorder_log_head", 3.0),
        ("inorder_log_safe_head", 3.0),
        ("inorder_log_hole_age_seconds", 0.0),
        ("inorder_log_unsafe_reasons", 0.0),
        ("inorder_instances{version=\"0.1.0\"}", 2.0),
        ("inorder_ledger_unfinished{handler=\"waiting\",status=\"pending\"}", 3.0),
        ("inorder_handoffs_unfinished{scope=\"mail\"}", 1.0),
        (
            "inorder_consumer_events_total{consumer=\"idle\",consumer_instance=\"\",partition=\"0\",result=\"processed\"}",
            3.0,
        ),
    ] {
        assert_eq!(scrape.sample(series), Some(value), "{series} in {}", scrape.text);
    }

    stage.append(2).await;
    stage.log.admin().unregister("dead").await.unwrap();
    let later = site.get("/metrics").await;
    assert_eq!((lag(&later, "disabled"), lag(&later, "dead")), (Some(5.0), None), "what is gone is gone");
    site.stop().await;
}

/// One that holds an old hole open is named.
#[tokio::test]
async fn who_holds_an_old_hole_open_is_in_the_scrape() {
    let stage = Stage::with_events(1).await;
    let site = Served::start(Site::new(&stage.log).sample_at_most_every(Duration::ZERO)).await;
    let writer = Writer::in_transaction(stage.database.url()).await;
    writer.append().await;
    stage.append(1).await;
    let pid: i32 = writer.client().query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let named = format!("inorder_log_oldest_blocker_info{{pid=\"{pid}\"");
    let mut scrape = site.get("/metrics").await;
    assert_eq!(
        (scrape.sample("inorder_log_safe_head"), scrape.sample("inorder_log_writers")),
        (Some(1.0), Some(1.0))
    );
    assert!(!scrape.text.contains(&named), "not before it is old");
    eventually(LIMIT, "the hole is old", async || {
        scrape = site.get("/metrics").await;
        scrape.text.contains(&named)
    })
    .await;
    assert!(scrape.sample("inorder_log_hole_age_seconds") >= Some(5.0), "{}", scrape.text);
    assert_eq!(scrape.sample("inorder_log_blockers"), Some(1.0));
    writer.roll_back().await;
    let scrape = site.get("/metrics").await;
    assert_eq!(
        (scrape.sample("inorder_log_hole_age_seconds"), scrape.sample("inorder_log_safe_head")),
        (Some(0.0), Some(3.0))
    );
    assert!(!scrape.text.contains(&named));
    site.stop().await;
}

/// Where a dispatcher runs in the process, its own measurements are there, too, and no name is there twice.
#[tokio::test]
async fn what_the_process_measured_is_in_the_scrape_and_no_name_is_there_twice() {
    let metrics = ProcessMetrics::record().unwrap();
    let stage = with_every_state().await;
    let handled = Consumer::transactional_fn("handled", |_, _| Box::pin(async { Ok(()) }));
    let running = stage.dispatcher([handled]).build().unwrap().start().await.unwrap();
    let site =
        Site::new(&stage.log).sample_at_most_every(Duration::ZERO).process_metrics(move || metrics.render());
    let site = Served::start(site).await;
    let mut scrape = site.get("/metrics").await;
    eventually(LIMIT, "it has handled all", async || {
        scrape = site.get("/metrics").await;
        scrape.sample(&of("inorder_events_processed_total", "handled")) == Some(3.0)
            && scrape.sample(&of("inorder_pass_duration_seconds_count", "handled")).is_some()
            // The sample was taken before the counters were read.
            && lag(&scrape, "handled") == Some(0.0)
    })
    .await;
    assert_eq!(scrape.sample("inorder_listener_connected"), Some(1.0), "{}", scrape.text);
    let mut series: Vec<&str> =
        scrape.text.lines().filter_map(|line| line.rsplit_once(' ').map(|(name, _)| name)).collect();
    let all = series.len();
    series.sort_unstable();
    series.dedup();
    assert_eq!(series.len(), all, "{}", scrape.text);
    assert_eq!(lint(&scrape.text).await, "");
    running.stop().await.unwrap();
    site.stop().await;
}

/// Whatever a name holds.
#[tokio::test]
async fn the_scrape_passes_the_linter_with_any_name() {
    let stage = with_every_state().await;
    let hostile = "a\"b\\c\nd{e=\"f\"} 1 <script>";
    let register = "INSERT INTO inorder.consumers (name, kind, position) VALUES ($1, 'batch', 0)";
    stage.client.execute(register, &[&hostile]).await.unwrap();
    let site = guarded(&stage).await;
    let scrape = site.get_with("/metrics", &[READER]).await;
    assert_eq!(lint(&scrape.text).await, "", "{}", scrape.text);
    let escaped = r#"inorder_consumer_position{consumer="a\"b\\c\nd{e=\"f\"} 1 <script>",consumer_instance="",partition="0"}"#;
    assert_eq!(scrape.sample(escaped), Some(0.0), "{}", scrape.text);
    assert_ne!(lint("inorder_total 1\n").await, "", "the linter finds what is wrong");
    site.stop().await;
}

/// A scraper learns that the database is down, within the limit, whatever it is that keeps the answer away; and that it is back.
#[tokio::test]
async fn a_database_that_is_down_is_told_in_time_and_one_that_is_back_is_sampled() {
    let stage = with_every_state().await;
    let proxy = Proxy::in_front_of(stage.database.url()).await;
    let log = Inorder::connect(proxy.url()).await.unwrap();
    let site = Site::new(&log).sample_at_most_every(Duration::ZERO).sample_limit(Duration::from_secs(2));
    let site = Served::start(site).await;
    let up = async || {
        let begun = Instant::now();
        let scrape = site.get("/metrics").await;
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        assert_eq!(code(&scrape), 200);
        assert_eq!(lag(&scrape, "dead").is_some(), scrape.sample("inorder_up") == Some(1.0));
        scrape.sample("inorder_up")
    };
    assert_eq!(up().await, Some(1.0));
    proxy.cut();
    assert_eq!(up().await, Some(1.0), "a session that broke is made anew at once");
    proxy.black_hole();
    assert_eq!(up().await, Some(0.0));
    assert_eq!(code(&site.get("/readyz").await), 503);
    assert_eq!(code(&site.get("/healthz").await), 200);
    proxy.heal();
    assert_eq!(up().await, Some(1.0));
    proxy.refuse();
    proxy.cut();
    assert_eq!(up().await, Some(0.0));
    proxy.heal();
    assert_eq!((up().await, code(&site.get("/readyz").await)), (Some(1.0), 200));
    site.stop().await;

    let nowhere = inorder::Config::new("postgres://nobody@127.0.0.1:1/nowhere");
    let site = Served::start(Site::new(&Inorder::unconnected(nowhere).unwrap())).await;
    assert_eq!(site.get("/metrics").await.sample("inorder_up"), Some(0.0));
    assert!(site.get("/readyz").await.text.contains("127.0.0.1:1"), "a reader is told why");
    site.stop().await;
}

/// However many scrapers there are, the database is asked once.
#[tokio::test]
async fn many_scrapers_cost_one_sample() {
    let stage = with_every_state().await;
    let site = Served::start(Site::new(&stage.log).sample_at_most_every(LIMIT)).await;
    stage.client.batch_execute("BEGIN; LOCK inorder.consumers").await.unwrap();
    let scrapes: Vec<_> = (0..20).map(|_| site.get("/metrics")).collect();
    let asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let watch = stage.database.client().await;
    let waiting = async || watch.query_one(asked, &[]).await.unwrap().get::<_, i64>(0);
    let release = async {
        eventually(LIMIT, "somebody asks", async || waiting().await > 0).await;
        assert_eq!(waiting().await, 1);
        stage.client.batch_execute("COMMIT").await.unwrap();
    };
    let (scrapes, ()) =
        within("all scrapes", async { tokio::join!(futures_util::future::join_all(scrapes), release) }).await;
    assert!(scrapes.iter().all(|scrape| lag(scrape, "dead") == Some(2.0)));
    stage.append(1).await;
    assert_eq!(lag(&site.get("/metrics").await, "dead"), Some(2.0), "the sample is young enough");
    site.stop().await;
}

/// Nothing but looking is needed for it.
#[tokio::test]
async fn a_monitor_may_sample() {
    let stage = with_every_state().await;
    let role = Role::of("monitor", &stage.database).await;
    let site = Served::start(Site::new(&role.log().await)).await;
    let scrape = site.get("/metrics").await;
    assert_eq!(
        (scrape.sample("inorder_up"), lag(&scrape, "dead")),
        (Some(1.0), Some(2.0)),
        "{}",
        scrape.text
    );
    assert_eq!(code(&site.get("/readyz").await), 200);
    site.stop().await;
    role.drop().await;
}

/// A real Prometheus, with a token: what nobody runs falls behind before its eyes.
#[tokio::test]
async fn prometheus_sees_the_lag_of_dead_and_disabled_consumers_grow_while_nobody_runs_any() {
    let stage = with_every_state().await;
    let site = Served::start(Site::new(&stage.log).read_token(token(READ))).await;
    let prometheus = Prometheus::scraping(site.address, READ).await;
    let value = async |query: &str| prometheus.value(query).await;
    let lag = async |consumer: &str| {
        value(&format!("inorder_consumer_lag_events{{consumer=\"{consumer}\"}}")).await
    };
    let behind = async |consumer: &str| {
        value(&format!("inorder_consumer_lag_seconds{{consumer=\"{consumer}\"}}")).await
    };
    eventually(LIMIT, "it is scraped", async || {
        (lag("dead").await, lag("disabled").await) == (Some(2.0), Some(3.0))
    })
    .await;
    assert_eq!(value("up{job=\"inorder\"}").await, Some(1.0));
    let before = (behind("dead").await, behind("disabled").await);
    stage.append(4).await;
    eventually(LIMIT, "the lag has grown", async || {
        (lag("dead").await, lag("disabled").await) == (Some(6.0), Some(7.0))
    })
    .await;
    eventually(LIMIT, "in seconds, too", async || {
        behind("dead").await > before.0 && behind("disabled").await > before.1
    })
    .await;
    assert_eq!(value("inorder_consumer_status{consumer=\"dead\",status=\"dead\"}").await, Some(1.0));
    site.stop().await;
}
