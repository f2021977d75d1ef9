//! A projection of a file of flights, compared with a fold over the same file that knows nothing of inorder:
//! `cargo run --release --example flights --features testing -- flights.jsonl`.
//!
//! A line of the file is `{"event_id": …, "event_type": "flight.landed", "stream_type": "airport", "stream_id": "MCI", "payload":
//! {"delay": 5, "destination": "MCI", …}}`.

mod landings;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use inorder::Inorder;
use inorder::testing::TempPostgres;

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let Some(file) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: flights FILE.jsonl");
        return Ok(ExitCode::from(2));
    };
    let server = TempPostgres::start().await?;
    let log = Inorder::connect(server.url()).await?;
    log.migrate().await?;

    let began = Instant::now();
    let (appended, already) = landings::append(&log, &file).await?;
    println!("{appended} events appended, {already} already there, in {:.1?}", began.elapsed());

    let began = Instant::now();
    let delivered = landings::project(&log).await?;
    println!("{delivered} events delivered, one at a time, in {:.1?}", began.elapsed());

    let (projected, folded) = (landings::projected(&log).await?, landings::fold(&file)?);
    let mut busiest: Vec<_> = projected.iter().collect();
    busiest.sort_by_key(|(airport, landed)| (-landed.count, airport.as_str()));
    println!("\nairport  landings  total delay");
    for (airport, landed) in busiest.iter().take(5) {
        println!("{airport:<7}  {:>8}  {:>7} min", landed.count, landed.delay);
    }
    if projected != folded {
        println!("\nthe projection differs from the fold over the file");
        return Ok(ExitCode::FAILURE);
    }
    println!("\n{} airports: the projection equals the fold over the file", projected.len());
    Ok(ExitCode::SUCCESS)
}
