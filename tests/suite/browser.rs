//! The admin page in a real browser, with somebody at it.

use fantoccini::key::Key;
use inorder::http::{Site, Token};
use inorder::{AuditRows, Dispatcher, NewEvent};
use serde_json::json;

use crate::support::browser::Browser;
use crate::support::http::Served;
use crate::support::{Act, Actor, LIMIT, Proxy, Stage, eventually};

const ACT: &str = "a-token-for-acting!";

/// A shop whose second order has a total that is negative, and a consumer that dies of it.
struct Shop {
    stage: Stage,
    site: Served,
    running: inorder::Running,
}

impl Shop {
    async fn open() -> Shop {
        let stage = Stage::with_events(0).await;
        stage.append_events(&[order(99.5)]).await;
        let revenue =
            Actor::new("revenue-per-day").at(2, Act::Reject("negative total: -12.50")).transactional();
        let mail = Actor::new("receipts").transactional();
        let dispatcher: Dispatcher = stage.dispatcher([revenue, mail]).build().unwrap();
        let running = dispatcher.start().await.unwrap();
        let act = Token::new(ACT).unwrap();
        let site = Served::start(Site::new(&stage.log).open_to_readers().act_token(act)).await;
        Shop { stage, site, running }
    }

    fn url(&self, page: &str) -> String {
        format!("http://{}/{page}", self.site.address)
    }

    async fn sell_at_a_loss(&self) {
        self.stage.append_events(&[order(-12.5), order(7.0)]).await;
    }

    async fn is_dead(&self) {
        eventually(LIMIT, "the consumer dies", async || {
            self.stage.standing("revenue-per-day").await.status == "dead"
        })
        .await;
    }

    /// It has gone on behind the event, which a dead letter keeps; and the audit names who did it, and why.
    async fn was_skipped_by(&self, who: &str, why: &str) {
        eventually(LIMIT, "the consumer recovers", async || {
            let row = self.stage.standing("revenue-per-day").await;
            row.status == "idle" && row.position == 3
        })
        .await;
        assert_eq!(self.stage.effects("revenue-per-day").await, [1, 3]);
        let letters = self.stage.dead_letters().await;
        assert_eq!((letters.len(), letters[0].event, letters[0].reason.as_str()), (1, 2, "operator_skip"));
        let audit = self.stage.log.admin().audit(&AuditRows::any()).await.unwrap();
        assert_eq!(audit.len(), 1);
        assert_eq!(
            (audit[0].action.as_str(), audit[0].by.as_str(), audit[0].why.as_deref()),
            ("skip_poison", who, Some(why))
        );
    }

    async fn close(self, browser: Browser) {
        browser.close().await;
        self.site.stop().await;
        self.running.stop().await.unwrap();
    }
}

fn order(total: f64) -> NewEvent {
    NewEvent::new("order.placed", &json!({"customer": "ada", "total": total})).unwrap()
}

/// All of it: a consumer dies while somebody looks, he logs in, skips the event through the confirmation, and sees it recover; nothing
/// is loaded again by hand.
#[tokio::test]
async fn an_operator_sees_a_consumer_die_skips_its_event_and_sees_it_recover() {
    let shop = Shop::open().await;
    let browser = Browser::start().await;
    browser.open(&shop.url("")).await;
    browser.sees("revenue-per-day").await;
    assert!(browser.row("revenue-per-day").await.contains("idle"));
    shop.sell_at_a_loss().await;
    browser.sees("1 consumer is dead").await;
    let row = browser.row("revenue-per-day").await;
    assert!(row.contains("dead") && row.contains("negative total: -12.50"), "{row}");

    browser.click("Log in").await;
    browser.fill("token", ACT).await;
    browser.fill("name", "Ada").await;
    browser.click("Log in").await;
    browser.sees("acting as Ada").await;
    browser.click("revenue-per-day").await;
    browser.click("Skip the event").await;
    browser.sees("Skip this event?").await;
    let question = browser.text().await;
    let event = shop
        .stage
        .client
        .query_one("SELECT event_id::text FROM inorder.events WHERE id = 2", &[])
        .await
        .unwrap();
    for named in [event.get(0), "order.placed", "negative total: -12.50", "\"total\": -12.5"] {
        assert!(question.contains(named), "{named} is not named: {question}");
    }
    browser.fill("why", "test order").await;
    browser.click("Skip the event").await;

    browser.sees("Done: skip_poison of revenue-per-day, by Ada").await;
    shop.was_skipped_by("Ada", "test order").await;
    browser.click("Overview").await;
    eventually(LIMIT, "the overview shows it", async || {
        let row = browser.row("revenue-per-day").await;
        row.contains("idle") && !row.contains("negative")
    })
    .await;
    browser.click("Audit").await;
    browser.sees("What operators did, the newest first").await;
    let row = browser.row("skip_poison").await;
    assert!(row.contains("Ada") && row.contains("test order"), "{row}");
    shop.close(browser).await;
}

/// Only Tab, Enter and letters.
#[tokio::test]
async fn the_keyboard_alone_is_enough() {
    let shop = Shop::open().await;
    shop.sell_at_a_loss().await;
    shop.is_dead().await;
    let browser = Browser::start().await;
    browser.open(&shop.url("login")).await;
    browser.sees("Log in").await;
    browser.write(ACT).await;
    browser.tab_to("Your name").await;
    browser.write("Grace").await;
    browser.press(Key::Enter).await;
    browser.sees("acting as Grace").await;

    browser.tab_to("Skip to the content").await;
    browser.press(Key::Enter).await;
    browser.tab_to("revenue-per-day").await;
    browser.press(Key::Enter).await;
    browser.sees("What you can do").await;
    browser.tab_to("Skip the event").await;
    browser.press(Key::Enter).await;
    browser.sees("Skip this event?").await;
    browser.tab_to("Why, for the audit").await;
    browser.write("by keyboard").await;
    browser.tab_to("Skip the event").await;
    browser.press(Key::Enter).await;
    browser.sees("Done: skip_poison").await;
    shop.was_skipped_by("Grace", "by keyboard").await;
    shop.close(browser).await;
}

/// A refresh leaves alone what somebody is at: where the focus is, and what he has written.
#[tokio::test]
async fn a_refresh_takes_nobodys_focus_nor_words_away() {
    let shop = Shop::open().await;
    shop.sell_at_a_loss().await;
    shop.is_dead().await;
    let browser = Browser::start().await;
    browser.open(&shop.url("login?next=consumer%3Fname%3Drevenue-per-day")).await;
    browser.fill("token", ACT).await;
    browser.fill("name", "Ada").await;
    browser.press(Key::Enter).await;
    browser.sees("What you can do").await;
    browser.fill("why", "half a sent").await;
    shop.stage.append_events(&[order(1.0), order(2.0)]).await;
    browser.sees("lag 4").await;
    browser.write("ence").await;
    let written = browser.run("return document.activeElement.value").await;
    assert_eq!(written, "half a sentence");
    shop.close(browser).await;
}

#[tokio::test]
async fn nothing_but_the_refresh_needs_javascript() {
    let shop = Shop::open().await;
    shop.sell_at_a_loss().await;
    shop.is_dead().await;
    let browser = Browser::without_javascript().await;
    browser.open(&shop.url("")).await;
    browser.sees("1 consumer is dead").await;
    assert!(!browser.text().await.contains("Live"), "no button that does nothing");
    browser.click("Log in").await;
    browser.fill("token", ACT).await;
    browser.fill("name", "Ada").await;
    browser.click("Log in").await;
    browser.click("revenue-per-day").await;
    browser.click("Skip the event").await;
    browser.fill("why", "no script").await;
    browser.click("Skip the event").await;
    browser.sees("Done: skip_poison").await;
    shop.was_skipped_by("Ada", "no script").await;
    browser.open(&shop.url("overview")).await;
    browser.sees("receipts").await;
    assert!(browser.row("revenue-per-day").await.contains("idle"));
    browser.open(&shop.url("dead-letters")).await;
    browser.fill("consumer", "receipts").await;
    browser.click("Show").await;
    browser.sees("There are none of these").await;
    shop.close(browser).await;
}

/// While the database is down the page says so and keeps what it showed; then it goes on by itself. A page that could not be shown at
/// all comes by itself, too.
#[tokio::test]
async fn a_page_comes_back_with_the_database() {
    let stage = Stage::with_events(1).await;
    stage.sql("INSERT INTO inorder.consumers (name, kind, position) VALUES ('all', 'batch', 1)").await;
    let proxy = Proxy::in_front_of(stage.database.url()).await;
    let log = Stage::log_through(proxy.url(), std::time::Duration::from_secs(2)).await;
    let site = Served::start(Site::new(&log)).await;
    let browser = Browser::start().await;
    let url = format!("http://{}/overview", site.address);
    browser.open(&url).await;
    browser.sees("Safe head").await;
    let down = || {
        proxy.refuse();
        proxy.cut();
    };
    down();
    browser.sees("Not refreshed since").await;
    assert!(browser.row("all").await.contains("idle"));
    proxy.heal();
    stage.sql("UPDATE inorder.consumers SET status = 'disabled'").await;
    eventually(LIMIT, "it is refreshed", async || {
        !browser.text().await.contains("Not refreshed") && browser.row("all").await.contains("disabled")
    })
    .await;
    down();
    browser.reload().await;
    browser.sees("No answer from the database").await;
    proxy.heal();
    browser.sees("Safe head").await;
    browser.close().await;
    site.stop().await;
}

/// Every page, at the width of a small phone, and in both looks: nothing is cut off at the side, and every text can be read.
#[tokio::test]
async fn every_page_fits_a_phone_and_is_legible_in_light_and_dark() {
    let shop = Shop::open().await;
    shop.sell_at_a_loss().await;
    shop.is_dead().await;
    let long = "AnErrorWithoutASinglePlaceToBreak".repeat(20);
    shop.stage
        .sql(&format!(
            "UPDATE inorder.consumers SET last_error = '{long}' WHERE name = 'revenue-per-day'; \
             INSERT INTO inorder.dead_letters (consumer, position, event_id, event_type, reason, error, attempts) \
             SELECT 'receipts', id, event_id, event_type, 'exhausted', '{long}', 10 FROM inorder.events; \
             INSERT INTO inorder.ledger (event_id, handler, status, position, token, last_error) \
             SELECT event_id, 'receipts', 'dead', id, 1, '{long}' FROM inorder.events; \
             INSERT INTO inorder.ledger (event_id, handler, status, position, token, lease_until) \
             SELECT event_id, 'previews', 'in_progress', id, 1, now() + interval '1 hour' FROM inorder.events; \
             INSERT INTO inorder.handoffs (scope, key, taken_by) SELECT 'mail', event_id, 'direct' FROM inorder.events"
        ))
        .await;
    shop.stage.log.admin().by("Ada").because("a reason").disable("receipts").await.unwrap();
    let browser = Browser::start().await;
    browser.open(&shop.url("login")).await;
    browser.fill("token", ACT).await;
    browser.fill("name", "Ada").await;
    browser.press(Key::Enter).await;
    browser.sees("acting as Ada").await;
    for page in [
        "overview",
        "consumer?name=revenue-per-day",
        "skip?name=revenue-per-day",
        "disable?name=revenue-per-day",
        "reset?name=revenue-per-day",
        "dead-letters",
        "dead-letter?id=1",
        "ledger?status=any",
        "handoffs",
        "instances",
        "audit",
        "nothing",
        "login",
    ] {
        for width in [360, 820, 1000, 1200] {
            browser.screen(width, 900, width == 360).await;
            browser.open(&shop.url(page)).await;
            let wide = browser.run(WIDER).await;
            assert_eq!(wide, json!([]), "{page} is wider than a screen of {width}");
        }
        for look in ["light", "dark"] {
            browser.prefers(look).await;
            let faint = browser.run(FAINT).await;
            assert_eq!(faint, json!([]), "{page} has text that is hard to read in the {look} look");
        }
    }
    shop.close(browser).await;
}

/// What reaches beyond the right edge of the screen.
const WIDER: &str = "
    const wide = document.documentElement.scrollWidth > document.documentElement.clientWidth ? [`page ${document.documentElement.scrollWidth}`] : [];
    for (const e of document.querySelectorAll('main *, header *')) {
      const box = e.getBoundingClientRect();
      if (box.width > 1 && box.right > document.documentElement.clientWidth + 0.5 && !e.closest('pre, thead')) wide.push(`${e.tagName}.${e.className} ${box.right}`);
    }
    return wide;";

/// Text whose contrast with its ground is below 4.5, as the guidelines for accessibility have it.
const FAINT: &str = "
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const rgba = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
    const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = (e) => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; } return [255, 255, 255]; };
    const faint = [];
    for (const e of document.querySelectorAll('body *')) {
      if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility() || ['SCRIPT', 'STYLE'].includes(e.nodeName)) continue;
      const [a, b] = [light(rgba(getComputedStyle(e).color)), light(ground(e))];
      const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (contrast < 4.5) faint.push(`${e.nodeName}.${e.className} ${e.textContent.slice(0, 30)}: ${contrast.toFixed(2)}`);
    }
    return faint;";

/// A shop at three in the morning: what needs somebody stands first, and what is well keeps its place.
///
/// With `INORDER_PICTURES=docs/images` it makes the pictures of the README, a minute of busy trade before them.
#[tokio::test]
async fn what_needs_somebody_comes_first() {
    let stage = Stage::with_events(0).await;
    stage.sql(SHOP_AT_NIGHT).await;
    let site = Served::start(Site::new(&stage.log).act_token(Token::new(ACT).unwrap())).await;
    let browser = Browser::start().await;
    let url = |page: &str| format!("http://{}/{page}", site.address);
    browser.open(&url("login")).await;
    browser.fill("token", ACT).await;
    browser.fill("name", "ada@example.com").await;
    browser.press(Key::Enter).await;
    browser.sees("Consumers").await;
    let names =
        browser.run("return [...document.querySelectorAll('tbody th a')].map(a => a.textContent)").await;
    let order = [
        "revenue-per-day",
        "search-index",
        "warehouse-feed",
        "orders-by-customer",
        "price-cache @ node-1",
        "price-cache @ node-2",
        "receipts",
    ];
    assert_eq!(names, json!(order));

    if let Some(folder) = std::env::var_os("INORDER_PICTURES") {
        let keep = async |name: &str| {
            let file = std::path::Path::new(&folder).join(format!("{name}.png"));
            std::fs::write(&file, browser.picture().await)
                .unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        };
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while std::time::Instant::now() < until {
            stage.sql(TRADE).await;
            tokio::time::sleep(std::time::Duration::from_millis(250)).await;
        }
        browser.screen(1100, 720, false).await;
        for look in ["light", "dark"] {
            browser.prefers(look).await;
            keep(&format!("overview-{look}")).await;
        }
    }
    browser.close().await;
    site.stop().await;
}

const SHOP_AT_NIGHT: &str = "
    INSERT INTO inorder.events (event_type, stream_type, stream_id, stream_version, payload, created_by)
    SELECT (ARRAY['order.placed', 'order.paid', 'order.shipped'])[1 + n % 3], 'order', (10000 + n)::text, 1,
           json_build_object('order', 10000 + n, 'customer', 'grace', 'total', CASE WHEN n = 17001 THEN -12.5 ELSE 99.5 END), 'checkout'
    FROM generate_series(1, 20418) AS n;
    INSERT INTO inorder.instances (id, epoch, host, pid, version)
    VALUES (gen_random_uuid(), gen_random_uuid(), 'shop-1', 4711, '0.1.0'), (gen_random_uuid(), gen_random_uuid(), 'shop-2', 802, '0.1.0');
    INSERT INTO inorder.consumers (name, instance, kind, position, status, attempts, failed_event_id, last_error, last_error_at, next_attempt_at, processed, owner)
    SELECT c.name, c.instance, c.kind, c.position, c.status, c.attempts,
           (SELECT event_id FROM inorder.events WHERE id = c.position + 1 AND c.attempts > 0),
           c.error, now() - interval '4 minutes', now() + c.due, c.position, (SELECT id FROM inorder.instances ORDER BY pid LIMIT 1)
    FROM (VALUES
        ('orders-by-customer', '', 'batch', 20418, 'idle', 0, NULL, NULL::interval),
        ('revenue-per-day', '', 'transactional', 17000, 'dead', 10, 'negative total: order 27001 has a total of -12.50', NULL),
        ('search-index', '', 'effect', 19412, 'idle', 2, 'search.internal:9200: connection refused', '9 minutes'),
        ('receipts', '', 'queued', 20418, 'idle', 0, NULL, NULL),
        ('warehouse-feed', '', 'effect', 15230, 'disabled', 0, NULL, NULL),
        ('price-cache', 'node-1', 'batch', 20418, 'idle', 0, NULL, NULL),
        ('price-cache', 'node-2', 'batch', 20418, 'idle', 0, NULL, NULL)
    ) AS c (name, instance, kind, position, status, attempts, error, due);
    INSERT INTO inorder.dead_letters (consumer, position, event_id, event_type, reason, error, attempts)
    SELECT 'receipts', id, event_id, event_type, 'exhausted', 'no such address: nobody@example.com', 10
    FROM inorder.events WHERE id IN (2000, 4001, 9002);
    INSERT INTO inorder.ledger (event_id, handler, status, position, token, attempts)
    SELECT event_id, 'receipts', 'pending', id, 1, 1 FROM inorder.events WHERE id > 20410";

/// Some orders, and what consumers that are well make of them.
const TRADE: &str = "
    INSERT INTO inorder.events (event_type, payload) SELECT 'order.placed', '{}' FROM generate_series(1, 4 + (random() * 8)::int);
    UPDATE inorder.consumers SET position = h.head, processed = processed + h.head - position
    FROM (SELECT max(id) AS head FROM inorder.events) AS h
    WHERE status = 'idle' AND attempts = 0";
