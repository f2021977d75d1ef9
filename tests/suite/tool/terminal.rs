//! The tool on a terminal of 80 columns and 24 rows: readable, and gone without a trace.

use std::path::Path;

use inorder::{ExpectedVersion, Inorder, NewEvent};

use super::operate::Dead;
use super::{LIMIT, ended, file, flights, inorder, inorder_with, interrupt, read_until, run, run_with};
use crate::support::terminal::Terminal;
use crate::support::{Proxy, database, eventually};

/// A terminal whose shell knows the tool, and the database at this address.
async fn terminal(url: &str) -> Terminal {
    let tool = Path::new(env!("CARGO_BIN_EXE_inorder")).parent().unwrap();
    let path = format!("{}:{}", tool.display(), std::env::var("PATH").unwrap_or_default());
    Terminal::open(80, 24, &[("PATH", &path), ("INORDER_DATABASE_URL", url), ("NO_COLOR", "")]).await
}

/// Nothing is wider than the terminal: tmux would have wrapped it, and cut a word off.
fn fits(screen: &str, columns: usize) -> bool {
    screen.lines().all(|line| line.chars().count() <= columns)
}

#[tokio::test]
async fn a_watched_status_shows_what_moves_and_gives_the_terminal_back() {
    let dead = Dead::new().await;
    let terminal = terminal(dead.url()).await;
    let folder = tempfile::tempdir().unwrap();
    let modes = |name: &str| folder.path().join(name).display().to_string();
    terminal.line(&format!("stty -g > {}; echo saved", modes("before")));
    terminal.shows("\nsaved").await;
    terminal.line("clear");
    terminal.shows_that("an empty screen", |screen| screen.trim() == "ready>").await;
    for leave in ["q", "C-c"] {
        terminal.line("inorder status --watch --interval 0.2");
        let screen = terminal.shows("inorder skip picky --event 4").await;
        assert!(screen.lines().next().unwrap().ends_with("every 0.2s · q quits"), "{screen}");
        assert!(
            fits(&screen, 80) && screen.contains("EVENTS/S") && screen.contains("four is too many"),
            "{screen}"
        );
        assert_eq!(terminal.modes(), (true, false), "another screen, without a cursor");
        let log = Inorder::connect(dead.url()).await.unwrap();
        let before = log.safe_head().await.unwrap() - 3;
        let more = vec![NewEvent::from_json("counted", "4"); 1];
        let moving = eventually(LIMIT, "the lag grows before one's eyes", async || {
            let event = more[0].clone().event_id(uuid::Uuid::new_v4());
            let _ = log.append(ExpectedVersion::Any, &[event]).await.unwrap();
            let screen = terminal.screen();
            let lag = screen
                .lines()
                .find(|line| line.starts_with("picky"))
                .and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
            lag.is_some_and(|lag: i64| lag > before)
                && screen.contains('▲')
                && !screen.contains("\n0 events appended")
        });
        moving.await;
        terminal.key(leave);
        let screen = terminal
            .shows_that("what was there before", |screen| screen.trim_end().ends_with("ready>"))
            .await;
        assert!(screen.contains("--watch") && !screen.contains("safe head"), "{screen}");
        assert_eq!(terminal.modes(), (false, true));
        terminal.line("echo ended with $?");
        terminal.shows("ended with 0").await;
        terminal.line("clear");
        terminal.shows_that("an empty screen", |screen| screen.trim() == "ready>").await;
    }
    terminal.line(&format!("stty -g > {}; echo written", modes("after")));
    terminal.shows("\nwritten").await;
    let read = |name: &str| std::fs::read_to_string(modes(name)).unwrap();
    assert_eq!(read("before"), read("after"));
}

#[tokio::test]
async fn a_watched_status_fits_a_small_terminal_whatever_its_size() {
    let dead = Dead::new().await;
    let fill = "INSERT INTO inorder.consumers (name, kind, position, partitions, partition) \
        SELECT 'a-consumer-with-a-rather-long-name', 'batch', 10, 40, p FROM generate_series(0, 39) AS p";
    dead.db.client().await.batch_execute(fill).await.unwrap();
    let terminal = terminal(dead.url()).await;
    terminal.line("inorder status --watch --interval 0.2");
    let whole = |screen: &str, rows: usize| {
        screen.contains("picky")
            && screen.contains("more lines")
            && screen.contains("safe head")
            && screen.lines().count() <= rows
    };
    terminal.shows_that("the table, cut, with all below it", |screen| whole(screen, 24)).await;
    terminal.resize(60, 16);
    let screen =
        terminal.shows_that("the same in less room", |screen| whole(screen, 16) && fits(screen, 60)).await;
    assert!(screen.contains("a-consumer-w…") || screen.contains("a-consumer-with-a"), "{screen}");
    terminal.resize(100, 60);
    terminal.shows_that("all of it", |screen| screen.contains("/39") && !screen.contains("more lines")).await;
    terminal.key("q");
    terminal.shows_that("the shell", |screen| screen.trim_end().ends_with("ready>")).await;
}

#[tokio::test]
async fn a_watched_status_outlives_an_outage_and_says_what_is_wrong() {
    let dead = Dead::new().await;
    let proxy = Proxy::in_front_of(dead.url()).await;
    let terminal = terminal(proxy.url()).await;
    terminal.line("inorder status --watch --interval 0.2");
    terminal.shows("picky").await;
    proxy.refuse();
    proxy.cut();
    let screen = terminal.shows("no answer for").await;
    assert!(
        screen.contains("trying again") && screen.contains("picky"),
        "what was seen last stays: {screen}"
    );
    proxy.heal();
    terminal
        .shows_that("an answer again", |screen| screen.contains("picky") && !screen.contains("no answer"))
        .await;
    // Nobody says no: then there is no answer either.
    proxy.black_hole();
    terminal.shows("no answer for").await;
    terminal.key("q");
    terminal.shows_that("the shell", |screen| screen.trim_end().ends_with("ready>")).await;
    assert_eq!(terminal.modes(), (false, true));
}

#[tokio::test]
async fn a_watch_without_a_terminal_prints_blocks_and_lines() {
    let dead = Dead::new().await;
    let mut child = inorder(dead.url(), "status --watch --interval 0.1").spawn().unwrap();
    let mut text = read_until(&mut child, "\n\n").await;
    while text.matches("\n\n").count() < 2 {
        text.push_str(&read_until(&mut child, "\n").await);
    }
    assert!(text.contains("picky") && text.contains("safe head 10") && !text.contains('\u{1b}'), "{text}");
    interrupt(&child);
    let ran = ended(child).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");

    let mut child = inorder_with(dead.url(), &["status", "picky", "--watch", "--json"]).spawn().unwrap();
    let mut text = String::new();
    while text.matches('\n').count() < 2 {
        text.push_str(&read_until(&mut child, "\n").await);
    }
    let second: serde_json::Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
    assert_eq!(
        (&second["consumers"][0]["name"], &second["per_second"]["appended"]),
        (&"picky".into(), &0.0.into())
    );
    interrupt(&child);
    assert_eq!(ended(child).await.code, 0);
    assert!(run(dead.url(), "status nobody --watch").await.failed(4).contains("nobody"));
    for arguments in ["status --watch --check", "status --interval 2", "status --watch --interval 0"] {
        assert_eq!(run(dead.url(), arguments).await.code, 2, "{arguments}");
    }
}

#[tokio::test]
async fn an_append_shows_how_far_it_is_and_ctrl_c_leaves_a_clean_line() {
    // A file that was appended before the key was there says nothing; a longer one does.
    for events in [60_000, 240_000, 960_000] {
        if is_interrupted_cleanly(events).await {
            return;
        }
    }
    panic!("every append was faster than the key");
}

/// False where it was done before.
async fn is_interrupted_cleanly(events: usize) -> bool {
    let db = database().await;
    let terminal = terminal(db.url()).await;
    let file = file(&flights(events));
    terminal.line(&format!("stty -g; inorder append {}; echo ended with $?; stty -g", file.path().display()));
    let screen = terminal
        .shows_that("how far it is", |screen| screen.contains(" % ") && screen.contains("events"))
        .await;
    assert!(fits(&screen, 80), "{screen}");
    terminal.key("C-c");
    let screen = terminal.shows_that("the shell", |screen| screen.trim_end().ends_with("ready>")).await;
    if screen.contains(" events: ") && screen.contains("ended with 0") {
        return false;
    }
    assert!(screen.contains(" appended, 0 already there") && screen.contains("run it again"), "{screen}");
    assert!(!screen.contains(" % "), "the bar is gone: {screen}");
    let modes: Vec<&str> = screen.lines().filter(|line| line.matches(':').count() > 20).collect();
    assert!(modes.len() == 2 && modes[0] == modes[1], "{screen}");
    assert!(screen.contains("ended with 130"), "{screen}");
    assert_eq!(terminal.modes(), (false, true));
    true
}

#[tokio::test]
async fn a_prune_asks_and_shows_how_far_it_is_and_ctrl_c_is_a_no() {
    let db = database().await;
    let events = file(&flights(3_000));
    run_with(db.url(), &["append", events.path().to_str().unwrap()]).await.said();
    let terminal = terminal(db.url()).await;
    terminal.line("inorder prune --older-than 0s --step-size 1");
    let screen = terminal.shows("Delete 3,000 events for ever? [y/N]").await;
    assert!(screen.contains("3,000 events would go, up to id 3,000") && fits(&screen, 80), "{screen}");
    terminal.key("C-c");
    let screen = terminal.shows_that("the shell", |screen| screen.trim_end().ends_with("ready>")).await;
    assert!(screen.contains("\ninorder: interrupted"), "{screen}");
    terminal.line("echo ended with $?");
    terminal.shows("ended with 130").await;
    terminal.line("clear");
    let count = "SELECT count(*) FROM inorder.events";
    let left = async || db.client().await.query_one(count, &[]).await.unwrap().get::<_, i64>(0);
    assert_eq!(left().await, 3_000);

    terminal.shows_that("an empty screen", |screen| screen.trim() == "ready>").await;
    terminal.line("inorder prune --older-than 0s --step-size 1");
    terminal.shows("[y/N]").await;
    terminal.line("y");
    let screen = terminal.shows_that("how far it is", |screen| screen.contains(" of 3,000 events")).await;
    assert!(fits(&screen, 80), "{screen}");
    terminal.key("C-c");
    let screen = terminal.shows_that("the shell", |screen| screen.trim_end().ends_with("ready>")).await;
    assert!(screen.contains(" deleted, up to id ") && screen.contains("run it again to go on"), "{screen}");
    terminal.line("echo ended with $?");
    terminal.shows("ended with 130").await;
    let left = left().await;
    assert!(left > 0 && left < 3_000, "{left}");
}
