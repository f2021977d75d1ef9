//! A feed of earthquakes, delivered twice at the same time and out of order, and every quake handled once:
//! `cargo run --release --example earthquakes --features testing -- earthquakes.jsonl`.
//!
//! A line of the file is a GeoJSON feature: `{"type": "Feature", "properties": {"mag": 2, …}, "geometry": …, "id": "ci37868143"}`.

mod feed;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use inorder::testing::TempPostgres;
use inorder::{Dispatcher, Inorder};

use feed::{Deliveries, Handled};

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let Some(file) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: earthquakes FILE.jsonl");
        return Ok(ExitCode::from(2));
    };
    let quakes = feed::read(&file)?;
    let server = TempPostgres::start().await?;
    let log = Inorder::connect(server.url()).await?;
    log.migrate().await?;

    let handled = Handled::default();
    let running = Dispatcher::builder(&log).consumer(handled.consumer("alerts")).build()?.start().await?;

    let began = Instant::now();
    let Deliveries { in_order, shuffled } = feed::deliver_twice(&log, &quakes).await?;
    println!("in order, 100 at a time:     {in_order}");
    println!("shuffled, one by one:        {shuffled}");
    println!("again, when all was there:   {}", feed::deliver_in_order(&log, &quakes).await?);
    feed::wait_until_handled(&log).await?;
    running.stop().await?;

    let distinct = feed::distinct(&quakes);
    let events = feed::count_events(&log).await?;
    println!("\n{} lines, {distinct} distinct, in {:.1?}", quakes.len(), began.elapsed());
    println!("{events} distinct events, {} runs of the handler", handled.runs());
    let once = events == distinct && handled.runs() == distinct && handled.quakes() == distinct;
    Ok(if once { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
