//! What people see and do.

use inorder::Inorder;
use inorder::http::Site;
use uuid::Uuid;

use super::{
    ACT, BROWSER, OPERATOR, OWN_PAGE, READ, READER, actors, code, guarded, token, with_a_dead_consumer,
};
use crate::support::http::{Answer, Served};
use crate::support::{Proxy, Role, Stage, eventually};

const ADA: (&str, &str) = ("inorder-operator", "Ada");

/// Every page about the consumer `name` and its dead letter 1, and those about everything.
fn pages(name: &str) -> Vec<String> {
    let name = encoded(name);
    let about = ["consumer", "skip", "disable", "reset"].map(|page| format!("/{page}?name={name}"));
    let all = [
        "overview",
        "dead-letters?state=any",
        "dead-letter?id=1",
        "ledger?status=any",
        "handoffs",
        "instances",
        "audit",
    ];
    about.into_iter().chain(all.map(|page| format!("/{page}"))).collect()
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// The id of an event in the log, by which actions name it.
async fn event_id(stage: &Stage, id: i64) -> Uuid {
    stage.client.query_one("SELECT event_id FROM inorder.events WHERE id = $1", &[&id]).await.unwrap().get(0)
}

/// Where every link of a page leads.
fn links(page: &Answer) -> Vec<String> {
    let parts = page.text.split("href=\"").skip(1);
    parts.map(|rest| rest.split('"').next().unwrap().replace("&amp;", "&")).collect()
}

/// All that others wrote is shown as text: names, types, payloads, errors, reasons, operators, and what an address says.
#[tokio::test]
async fn whatever_events_and_errors_hold_the_page_is_harmless() {
    const EVIL: &str = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>&lt;";
    let stage = Stage::with_events(0).await;
    let setting = "INSERT INTO inorder.events (event_type, stream_type, stream_id, stream_version, tenant_id, created_by, payload, metadata) \
                   VALUES ($1, $1, $1, 1, $1, $1, json_build_object($1::text, $1::text), json_build_object('m', $1::text))";
    stage.client.execute(setting, &[&EVIL]).await.unwrap();
    let rows = [
        "INSERT INTO inorder.consumers (name, instance, kind, position, status, attempts, failed_event_id, last_error, event_types) \
         SELECT $1, '', 'queued', 0, 'dead', 10, event_id, $1, ARRAY[$1::text] FROM inorder.events",
        "INSERT INTO inorder.dead_letters (consumer, position, event_id, event_type, reason, error, created_by) \
         SELECT $1, id, event_id, $1, 'rejected', $1, $1 FROM inorder.events",
        "INSERT INTO inorder.ledger (event_id, handler, status, position, token, stream, last_error) \
         SELECT event_id, $1, 'dead', id, 1, $1, $1 FROM inorder.events",
        "INSERT INTO inorder.handoffs (scope, key, taken_by) SELECT $1, event_id, 'direct' FROM inorder.events",
        "INSERT INTO inorder.instances (id, epoch, host, pid, version) VALUES (gen_random_uuid(), gen_random_uuid(), $1, 1, $1)",
    ];
    for row in rows {
        stage.client.execute(row, &[&EVIL]).await.unwrap_or_else(|e| panic!("{row}: {e:?}"));
    }
    stage.log.admin().by(EVIL).because(EVIL).disable(EVIL).await.unwrap();
    stage.sql("UPDATE inorder.consumers SET status = 'dead'").await;
    let site = guarded(&stage).await;

    let mut asked = pages(EVIL);
    let evil = encoded(EVIL);
    asked.extend(["consumer", "handler", "type", "error", "scope", "by"].iter().flat_map(|field| {
        ["dead-letters", "ledger", "handoffs", "audit"].map(|page| format!("/{page}?{field}={evil}"))
    }));
    asked.push(format!("/ledger-row?key={}&handler={evil}", event_id(&stage, 1).await));
    asked.push(format!("/ledger-forget?key={}&handler={evil}", event_id(&stage, 1).await));
    let evil_operator = ("inorder-operator", EVIL);
    for place in &asked {
        let page = site.get_with(place, &[OPERATOR, evil_operator, BROWSER]).await;
        assert_eq!(code(&page), 200, "{place}: {page:?}");
        assert_harmless(place, &page);
        assert!(page.text.contains("&lt;script&gt;alert(1)"), "{place} shows nothing of it");
    }
    for place in [
        format!("/login?next={evil}"),
        format!("/{evil}"),
        format!("/consumer?name={evil}x"),
        format!("/dead-letters?state={evil}"),
        format!("/dead-letter?id={evil}"),
    ] {
        let page = site.get_with(&place, &[OPERATOR, BROWSER]).await;
        assert!(page.header("content-type").starts_with("text/html"), "{place}");
        assert_harmless(&place, &page);
    }
    let overview = site.get_with("/overview", &[OPERATOR, BROWSER]).await;
    let consumer = links(&overview).into_iter().find(|link| link.starts_with("consumer?")).unwrap();
    let page = site.get_with(&format!("/{consumer}"), &[OPERATOR, BROWSER]).await;
    assert!(page.text.contains("Where it fails"), "a link names it as it is: {consumer}");
    site.stop().await;
}

fn assert_harmless(place: &str, page: &Answer) {
    assert!(!page.text.contains("<script>") && !page.text.contains("<img"), "{place}: {}", page.text);
    let within_attributes = page.text.split('<').skip(1).map(|rest| rest.split('>').next().unwrap());
    for tag in within_attributes {
        let outside_quotes: String = tag.split('"').step_by(2).collect();
        assert!(!outside_quotes.contains("alert") && !outside_quotes.contains("onerror"), "{place}: <{tag}>");
        assert!(
            !outside_quotes.contains("style="),
            "{place}: the policy lets no styles be written here: <{tag}>"
        );
    }
}

/// A reader is offered nothing to do, and whatever he sends does nothing; so it is for a form without its token.
#[tokio::test]
async fn a_reader_sees_everything_and_is_offered_nothing_to_do() {
    let stage = with_everything().await;
    let site = guarded(&stage).await;
    for place in pages("dead") {
        let page = site.get_with(&place, &[READER, BROWSER]).await;
        assert_eq!(code(&page), 200, "{place}: {page:?}");
        assert!(!page.text.contains("method=\"post\""), "{place}: {}", page.text);
        let page = site.get_with(&place, &[OPERATOR, ADA, BROWSER]).await;
        let acts = ["/consumer", "/skip", "/disable", "/reset", "/dead-letter?"]
            .iter()
            .any(|page| place.starts_with(page));
        assert_eq!(page.text.contains("method=\"post\""), acts, "{place}: {}", page.text);
    }

    let form = site.get("/login").await;
    let log_in = format!("csrf={}&token={ACT}&name=Ada", form.field("csrf"));
    let inside = site.post("/login", &[OWN_PAGE, ("cookie", form.cookie())], &log_in).await;
    let session = ("cookie", inside.cookie());
    let fields = format!("name=dead&event={}&to=head&id=1&key={0}&handler=dead", event_id(&stage, 1).await);
    let before = state_of(&stage).await;
    for action in ACTIONS {
        let refused = site.post(action, &[READER, BROWSER], &fields).await;
        assert_eq!(code(&refused), 403, "{action}");
        assert!(refused.text.contains("you may read, not act"), "{action}: {}", refused.text);
        assert_eq!(
            code(&site.post(action, &[OWN_PAGE, session], &fields).await),
            403,
            "{action}: no token of a form"
        );
        let wrong = format!("{fields}&csrf={}", form.field("csrf"));
        assert_eq!(code(&site.post(action, &[OWN_PAGE, session], &wrong).await), 403, "{action}: another's");
    }
    assert_eq!(state_of(&stage).await, before);
    assert_eq!(actors(&stage).await, [""; 0]);
    site.stop().await;
}

const ACTIONS: [&str; 10] = [
    "/restart",
    "/enable",
    "/accept-pruned",
    "/skip",
    "/disable",
    "/reset",
    "/retry",
    "/discard",
    "/ledger-release",
    "/ledger-forget",
];

/// A dead consumer at event 1, with a dead letter, a claim in the ledger and a hand-off.
async fn with_everything() -> Stage {
    let stage = with_a_dead_consumer().await;
    stage
        .sql(
            "UPDATE inorder.consumers SET last_error = 'no such customer'; \
             INSERT INTO inorder.dead_letters (consumer, position, event_id, event_type, reason, error) \
             SELECT 'dead', id, event_id, event_type, 'rejected', 'no such address' FROM inorder.events WHERE id = 1; \
             INSERT INTO inorder.ledger (event_id, handler, status, position, token) \
             SELECT event_id, 'dead', 'done', id, 1 FROM inorder.events WHERE id = 1; \
             INSERT INTO inorder.handoffs (scope, key, taken_by) SELECT 'mail', event_id, 'direct' FROM inorder.events WHERE id = 1",
        )
        .await;
    stage
}

/// All that an action might change.
async fn state_of(stage: &Stage) -> String {
    let select = "SELECT concat((SELECT string_agg(c::text, '') FROM inorder.consumers AS c), \
                  (SELECT string_agg(d::text, '') FROM inorder.dead_letters AS d), (SELECT string_agg(l::text, '') FROM inorder.ledger AS l))";
    stage.client.query_one(select, &[]).await.unwrap().get(0)
}

/// Each action, from its form to the audit.
#[tokio::test]
async fn an_action_does_what_it_says_and_the_audit_names_who_and_why() {
    let stage = with_everything().await;
    let site = guarded(&stage).await;
    let event = event_id(&stage, 1).await;
    let standing = async || {
        let row = stage.standing("dead").await;
        (row.status, row.position)
    };
    let act = async |action: &str, fields: &str| {
        let form = format!("{fields}&why=as+{action}");
        let answer = site.post(&format!("/{action}"), &[OPERATOR, ADA, BROWSER], &form).await;
        assert_eq!(code(&answer), 303, "{action}: {answer:?}");
        let next = format!("/{}", answer.header("location").strip_prefix("./").unwrap());
        let page = site.get_with(&next, &[OPERATOR, ADA, BROWSER]).await;
        assert_eq!(code(&page), 200, "{next}");
        page
    };
    let done = |page: &Answer, action: &str, why: &str| {
        let notice = page
            .text
            .split("role=\"status\">Done: ")
            .nth(1)
            .unwrap_or_else(|| panic!("{action}: {}", page.text));
        let notice = notice.split("</p>").next().unwrap();
        assert!(notice.contains(action) && notice.contains("Ada") && notice.contains(why), "{notice}");
    };

    done(&act("restart", "name=dead").await, "restart", "as restart");
    assert_eq!(standing().await, ("idle".into(), 0));
    done(&act("skip", &format!("name=dead&event={event}")).await, "skip_poison", "as skip");
    assert_eq!(standing().await, ("idle".into(), 1));
    done(&act("disable", "name=dead").await, "disable", "as disable");
    assert_eq!(standing().await, ("disabled".into(), 1));
    done(&act("enable", "name=dead").await, "enable", "as enable");
    assert_eq!(standing().await, ("idle".into(), 1));
    for (to, position) in [("beginning", 0), ("head", 2), ("after&id=1", 1)] {
        done(&act("reset", &format!("name=dead&to={to}")).await, "reset", "as reset");
        assert_eq!(standing().await, ("idle".into(), position), "{to}");
    }
    let letter = async || {
        let select = "SELECT state FROM inorder.dead_letters WHERE id = 1";
        stage.client.query_one(select, &[]).await.unwrap().get::<_, String>(0)
    };
    done(&act("retry", "id=1").await, "retry_dead_letter", "as retry");
    assert_eq!(letter().await, "retry_requested");
    done(&act("discard", "id=1").await, "discard_dead_letter", "as discard");
    assert_eq!(letter().await, "discarded");
    let of_the_ledger = format!("key={event}&handler=dead");
    stage.sql("UPDATE inorder.ledger SET status = 'in_progress', lease_until = clock_timestamp() + interval '1 hour'").await;
    done(
        &act("ledger-release", &format!("{of_the_ledger}&force=yes")).await,
        "ledger_release",
        "as ledger-release",
    );
    assert_eq!(stage.count("SELECT count(*) FROM inorder.ledger WHERE status = 'pending'").await, 1);
    act("ledger-forget", &of_the_ledger).await;
    assert_eq!(stage.count("SELECT count(*) FROM inorder.ledger").await, 0);

    let audit = stage.log.admin().audit(&inorder::AuditRows::any()).await.unwrap();
    assert!(audit.len() == 11 && audit.iter().all(|row| row.by == "Ada"), "{audit:?}");
    assert!(
        audit.iter().all(|row| row.why.as_deref().is_some_and(|why| why.starts_with("as "))),
        "{audit:?}"
    );
    let page = site.get_with("/audit?by=Ada", &[READER]).await;
    assert!(page.text.contains("skip_poison") && page.text.contains("ledger_forget"), "{}", page.text);
    site.stop().await;
}

/// What the database refuses is said as it says it, with the way back; nothing of it is decided by the page.
#[tokio::test]
async fn a_refusal_is_shown_as_it_is() {
    let stage = with_everything().await;
    stage.sql("UPDATE inorder.consumers SET status = 'idle'").await;
    let site = guarded(&stage).await;
    let said = stage.log.admin().restart("dead").await.unwrap_err().report();
    let page = site.post("/restart", &[OPERATOR, BROWSER], "name=dead").await;
    assert_eq!(code(&page), 409);
    let words = said.replace('"', "&quot;");
    assert!(
        page.text.contains(&words) && links(&page).contains(&"./consumer?name=dead".to_owned()),
        "{words}: {}",
        page.text
    );
    let plain = site.post("/restart", &[OPERATOR], "name=dead").await;
    assert_eq!((code(&plain), plain.text.trim_end()), (409, said.as_str()), "a program is told so, too");

    let wrong = format!("name=dead&event={}", event_id(&stage, 2).await);
    let page = site.post("/skip", &[OPERATOR, BROWSER], &wrong).await;
    assert_eq!(code(&page), 409, "{page:?}");
    assert_eq!(stage.standing("dead").await.position, 0);
    let page = site.get_with("/consumer?name=nobody", &[READER, BROWSER]).await;
    assert!(code(&page) == 404 && page.text.contains("nobody"), "{page:?}");
    assert_eq!(code(&site.post("/reset", &[OPERATOR], "name=dead&to=after").await), 400);
    site.stop().await;
}

/// A database whose role may not read payloads.
#[tokio::test]
async fn a_monitor_shows_everything_but_payloads() {
    let stage = with_everything().await;
    let role = Role::of("monitor", &stage.database).await;
    let log = Inorder::connect(role.url()).await.unwrap();
    let site = Served::start(Site::new(&log).read_token(token(READ)).act_token(token(ACT))).await;
    for place in pages("dead") {
        let page = site.get_with(&place, &[READER, BROWSER]).await;
        assert_eq!(code(&page), 200, "{place}: {page:?}");
        assert!(
            !page.text.contains("Payload") && !page.text.contains("role=\"alert\""),
            "{place}: {}",
            page.text
        );
    }
    let consumer = site.get_with("/consumer?name=dead", &[READER]).await;
    assert!(consumer.text.contains("no such customer") && consumer.text.contains("counted"), "{consumer:?}");
    assert_eq!(code(&site.get_with("/dead-letter?id=7", &[READER]).await), 404);
    let skip = site.get_with("/skip?name=dead", &[READER]).await;
    assert!(skip.text.contains("may not read it"), "{skip:?}");
    let refused = site.post("/restart", &[OPERATOR, BROWSER], "name=dead").await;
    assert!(refused.text.contains("permission denied"), "{refused:?}");
    site.stop().await;
    drop(log);
    role.drop().await;
}

/// The page says so, and what it says makes the browser look again; when the database is back, so is the page.
#[tokio::test]
async fn a_database_that_is_down_is_said_to_be() {
    let stage = with_a_dead_consumer().await;
    let proxy = Proxy::in_front_of(stage.database.url()).await;
    let log = Stage::log_through(proxy.url(), std::time::Duration::from_secs(2)).await;
    let site = Served::start(Site::new(&log).read_token(token(READ))).await;
    proxy.refuse();
    proxy.cut();
    for place in pages("dead") {
        let page = site.get_with(&place, &[READER, BROWSER]).await;
        assert_eq!(code(&page), 503, "{place}: {page:?}");
        assert!(
            page.text.contains("No answer from the database")
                && page.text.contains("data-refreshed=\"again\""),
            "{place}: {}",
            page.text
        );
    }
    proxy.heal();
    eventually(crate::support::LIMIT, "the page is back", async || {
        code(&site.get_with("/overview", &[READER, BROWSER]).await) == 200
    })
    .await;
    site.stop().await;
}

/// Long lists come in parts, each of which links to the next, with the same filter.
#[tokio::test]
async fn lists_come_in_parts_that_together_are_whole() {
    let stage = Stage::with_events(1).await;
    stage
        .sql(
            "INSERT INTO inorder.consumers (name, kind, position) VALUES ('all', 'batch', 1); \
             INSERT INTO inorder.dead_letters (consumer, position, event_id, reason) \
             SELECT 'all', 1, gen_random_uuid(), 'rejected' FROM generate_series(1, 120); \
             INSERT INTO inorder.ledger (event_id, handler, status, token) SELECT gen_random_uuid(), 'all', 'done', 1 FROM generate_series(1, 120); \
             INSERT INTO inorder.handoffs (scope, key, taken_by) SELECT 'mail', gen_random_uuid(), 'direct' FROM generate_series(1, 120); \
             INSERT INTO inorder.audit (by, db_user, action) SELECT 'Ada', 'ada', 'prune' FROM generate_series(1, 120)",
        )
        .await;
    let site = guarded(&stage).await;
    for first in
        ["dead-letters?consumer=all", "ledger?handler=all&status=done", "handoffs?scope=mail", "audit?by=Ada"]
    {
        let (mut place, mut rows) = (first.to_owned(), Vec::new());
        let mut parts = 0;
        loop {
            let page = site.get_with(&format!("/{place}"), &[READER]).await;
            assert_eq!(code(&page), 200, "{place}: {page:?}");
            rows.extend(
                page.text.split("data-key=\"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()),
            );
            parts += 1;
            let next = page.text.split("<a ").find(|tag| tag.contains("rel=\"next\"")).map(str::to_owned);
            let Some(next) = next else { break };
            place = next.split("href=\"").nth(1).unwrap().split('"').next().unwrap().replace("&amp;", "&");
        }
        rows.sort_unstable();
        rows.dedup();
        assert_eq!((rows.len(), parts), (120, 3), "{first}");
    }
    site.stop().await;
}

/// A browser may keep them for ever, as other files have another address; and a page needs no others.
#[tokio::test]
async fn the_files_of_a_page_are_our_own() {
    let stage = Stage::with_events(0).await;
    let site = guarded(&stage).await;
    let page = site.get_with("/overview", &[READER, BROWSER]).await;
    let files: Vec<&str> = ["href=\"./", "src=\"./"]
        .iter()
        .flat_map(|attribute| page.text.split(attribute).skip(1))
        .map(|rest| rest.split('"').next().unwrap())
        .filter(|file| file.contains('?'))
        .collect();
    assert_eq!(files.len(), 3, "{files:?}");
    for file in files {
        let answer = site.get(&format!("/{file}")).await;
        assert_eq!(code(&answer), 200, "{file}");
        assert!(answer.header("cache-control").contains("immutable"), "{file}: {answer:?}");
    }
    assert!(!page.text.contains("http://") && !page.text.contains("https://"), "{}", page.text);
    site.stop().await;
}
