//! What a scraper sees.

use inorder::http::Site;

use crate::support::Stage;
use crate::support::http::Served;

#[tokio::test]
async fn every_registered_consumer_is_in_the_scrape_while_nobody_runs_any() {
    let stage = Stage::with_events(3).await;
    stage
        .sql(
            "INSERT INTO inorder.consumers (name, kind, position, status, attempts, processed) VALUES \
              ('dead', 'batch', 1, 'dead', 10, 1), ('off', 'batch', 0, 'disabled', 0, 0), ('idle', 'batch', 3, 'idle', 0, 3)",
        )
        .await;
    let site = Served::start(Site::new(&stage.log)).await;
    let scrape = site.get("/metrics").await;
    println!("{}", scrape.text);
    assert_eq!(scrape.sample("inorder_up"), Some(1.0));
    site.stop().await;
}
