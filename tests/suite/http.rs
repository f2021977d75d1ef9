//! The site: who may what, what is refused, what Prometheus sees, and what people do.

mod exporter;
mod page;

use inorder::http::{Access, Site, Token};
use inorder::{ErrorKind, axum};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::http::{Answer, Served, ask};
use crate::support::{LIMIT, Stage, eventually, within};

const READ: &str = "a-token-for-reading";
const ACT: &str = "a-token-for-acting!";
const READER: (&str, &str) = ("authorization", "Bearer a-token-for-reading");
const OPERATOR: (&str, &str) = ("authorization", "Bearer a-token-for-acting!");
const BROWSER: (&str, &str) = ("accept", "text/html,*/*;q=0.8");
const OWN_PAGE: (&str, &str) = ("sec-fetch-site", "same-origin");

fn token(text: &str) -> Token {
    Token::new(text).unwrap()
}

/// With a token for each.
async fn guarded(stage: &Stage) -> Served {
    Served::start(Site::new(&stage.log).read_token(token(READ)).act_token(token(ACT))).await
}

/// A consumer that is dead at the first event.
async fn with_a_dead_consumer() -> Stage {
    let stage = Stage::with_events(2).await;
    stage
        .sql(
            "INSERT INTO inorder.consumers (name, kind, position, status, attempts, failed_event_id) \
             SELECT 'dead', 'batch', 0, 'dead', 10, event_id FROM inorder.events WHERE id = 1",
        )
        .await;
    stage
}

/// Who acted, as the audit has it.
async fn actors(stage: &Stage) -> Vec<String> {
    let rows = stage.client.query("SELECT by FROM inorder.audit ORDER BY id", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

fn code(answer: &Answer) -> u16 {
    answer.status.as_u16()
}

#[tokio::test]
async fn nobody_reads_without_a_token_and_nobody_acts_with_the_one_for_reading() {
    let stage = with_a_dead_consumer().await;
    let site = guarded(&stage).await;
    let restart = async |who: &[(&str, &str)]| code(&site.post("/restart", who, "consumer=dead").await);
    for path in ["/metrics", "/overview"] {
        let refused = site.get(path).await;
        assert_eq!((code(&refused), refused.header("www-authenticate")), (401, "Bearer realm=\"inorder\""));
        assert!(!refused.text.contains("dead"), "{refused:?}");
        let wrong = ("authorization", "Bearer a-token-for-readinG");
        assert_eq!(code(&site.get_with(path, &[wrong]).await), 401);
        assert_eq!(code(&site.get_with(path, &[READER]).await), 200, "{path}");
        assert_eq!(code(&site.get_with(path, &[OPERATOR]).await), 200, "{path}");
    }
    assert_eq!(restart(&[]).await, 403);
    assert_eq!(restart(&[READER]).await, 403);
    let status = async || stage.log.admin().progress("dead").await.unwrap()[0].status.as_str();
    assert_eq!(status().await, "dead");
    assert_eq!(restart(&[OPERATOR, ("inorder-operator", "Ada")]).await, 303);
    assert_eq!(status().await, "idle");
    assert_eq!(actors(&stage).await, ["Ada"]);
    site.stop().await;
}

/// A person: a form, a cookie that scripts and other sites cannot use, a name for the audit, and a way out.
#[tokio::test]
async fn a_person_logs_in_acts_under_his_name_and_logs_out() {
    let stage = with_a_dead_consumer().await;
    let site = guarded(&stage).await;
    let sent_away = site.get_with("/overview?sort=lag", &[BROWSER]).await;
    assert_eq!((code(&sent_away), sent_away.header("location")), (303, "./login?next=overview%3Fsort%3Dlag"));

    let page = site.get_with("/login?next=overview%3Fsort%3Dlag", &[BROWSER]).await;
    let anonymous = page.cookie().to_owned();
    let log_in = async |fields: &str| {
        let form = format!("csrf={}&next={}&{fields}", page.field("csrf"), page.field("next"));
        site.post("/login", &[BROWSER, OWN_PAGE, ("cookie", &anonymous)], &form).await
    };
    assert_eq!(code(&log_in("token=nonsense&name=Ada").await), 403);
    assert_eq!(code(&log_in(&format!("token={ACT}&name=+")).await), 403, "to act needs a name");
    let inside = log_in(&format!("token={ACT}&name=Ada+L%C3%B6v")).await;
    assert_eq!((code(&inside), inside.header("location")), (303, "./overview?sort=lag"));
    let cookie = inside.header("set-cookie");
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && cookie.contains("Path=/;"),
        "{cookie}"
    );
    assert!(!cookie.contains(ACT), "{cookie}");
    let session = ("cookie", inside.cookie());

    let overview = site.get_with("/overview", &[BROWSER, session]).await;
    assert_eq!(code(&overview), 200);
    assert!(overview.text.contains("Ada Löv") && overview.text.contains("dead"), "{overview:?}");
    let form = format!("csrf={}&consumer=dead", overview.field("csrf"));
    assert_eq!(code(&site.post("/restart", &[BROWSER, OWN_PAGE, session], &form).await), 303);
    assert_eq!(actors(&stage).await, ["Ada Löv"]);

    let out = site.post("/logout", &[BROWSER, OWN_PAGE, session], &form).await;
    assert_eq!((code(&out), out.header("location")), (303, "./login"));
    assert_eq!(code(&site.get_with("/overview", &[("cookie", out.cookie())]).await), 401);
    site.stop().await;
}

/// Whoever is logged in can be made to send a form by another site, but not with this session's token, and a browser says where a
/// form comes from.
#[tokio::test]
async fn a_form_of_another_site_does_nothing() {
    let stage = with_a_dead_consumer().await;
    let site = guarded(&stage).await;
    let page = site.get("/login").await;
    let log_in = format!("csrf={}&token={ACT}&name=Ada", page.field("csrf"));
    let inside = site.post("/login", &[OWN_PAGE, ("cookie", page.cookie())], &log_in).await;
    let session = ("cookie", inside.cookie());
    let overview = site.get_with("/overview", &[session]).await;
    let form = format!("csrf={}&consumer=dead", overview.field("csrf"));
    let own = format!("http://{}", site.address);
    let restart = async |headers: &[(&str, &str)], form: &str| {
        code(&site.post("/restart", &[headers, &[session]].concat(), form).await)
    };
    let another = format!("csrf={}&consumer=dead", page.field("csrf"));
    assert_eq!(restart(&[OWN_PAGE], "consumer=dead").await, 403, "no token");
    assert_eq!(restart(&[OWN_PAGE], &another).await, 403, "another session's token");
    assert_eq!(restart(&[("sec-fetch-site", "cross-site")], &form).await, 403);
    assert_eq!(restart(&[("sec-fetch-site", "same-site")], &form).await, 403);
    assert_eq!(restart(&[("origin", "http://evil.example")], &form).await, 403);
    assert_eq!(restart(&[("origin", "null")], &form).await, 403);
    assert_eq!(restart(&[], &form).await, 403, "nothing says where it comes from");
    let by_token =
        site.post("/restart", &[OPERATOR, ("sec-fetch-site", "cross-site")], "consumer=dead").await;
    assert_eq!(code(&by_token), 403);
    assert_eq!(actors(&stage).await, [""; 0]);
    assert_eq!(restart(&[("origin", &own)], &form).await, 303, "our own page in a browser that is not new");
    assert_eq!(code(&site.get_with("/restart", &[OPERATOR]).await), 405, "a link does nothing");
    site.stop().await;
}

#[tokio::test]
async fn a_name_that_was_made_to_point_here_leads_nowhere() {
    let stage = Stage::with_events(0).await;
    let site = Served::start(Site::new(&stage.log)).await;
    let port = site.address.port();
    for host in ["localhost", "127.0.0.1", "[::1]", "LOCALHOST"] {
        let host = format!("{host}:{port}");
        assert_eq!(code(&site.get_with("/overview", &[("host", &host)]).await), 200, "{host}");
    }
    let evil = format!("evil.example:{port}");
    for path in ["/overview", "/metrics", "/healthz", "/login"] {
        assert_eq!(code(&site.get_with(path, &[("host", &evil)]).await), 421, "{path}");
    }
    site.stop().await;
    let site = Served::start(Site::new(&stage.log).hosts(["ops.example.com"])).await;
    assert_eq!(code(&site.get_with("/overview", &[("host", "ops.example.com")]).await), 200);
    site.stop().await;
}

/// A proxy on the same machine speaks for whoever is on the other side of it.
#[tokio::test]
async fn a_site_without_tokens_is_read_by_its_own_machine_only() {
    let stage = Stage::with_events(0).await;
    let site = Served::start(Site::new(&stage.log)).await;
    assert_eq!(code(&site.get("/metrics").await), 200);
    assert_eq!(code(&site.get_with("/metrics", &[("x-forwarded-for", "192.0.2.1")]).await), 401);
    assert_eq!(code(&site.post("/restart", &[OWN_PAGE], "consumer=dead").await), 403, "nobody may act");
    site.stop().await;

    let everywhere = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let refused = Site::new(&stage.log).server(everywhere).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Config);
    assert!(refused.report().contains("token"), "{refused}");
    let everywhere = TcpListener::bind("0.0.0.0:0").await.unwrap();
    assert!(Site::new(&stage.log).read_token(token(READ)).server(everywhere).is_ok());
    assert!(Site::new(&stage.log).build().is_err(), "mounted in an application, nobody knows who reaches it");
    assert!(Site::new(&stage.log).read_token(token(ACT)).act_token(token(ACT)).build().is_err());
}

#[tokio::test]
async fn every_answer_tells_browsers_what_not_to_do_with_it() {
    let stage = Stage::with_events(0).await;
    let site = guarded(&stage).await;
    for path in ["/metrics", "/overview", "/login", "/healthz", "/readyz", "/nothing"] {
        for headers in [&[READER][..], &[READER, BROWSER], &[BROWSER], &[("host", "evil.example")]] {
            let answer = site.get_with(path, headers).await;
            let policy = answer.header("content-security-policy");
            assert!(
                policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
                "{policy}"
            );
            assert!(!policy.contains("unsafe"), "{policy}");
            assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
            assert_eq!(answer.header("referrer-policy"), "same-origin", "{path}");
            assert_eq!(answer.header("cache-control"), "no-store", "{path}");
        }
    }
    site.stop().await;
}

#[tokio::test]
async fn a_request_that_is_too_large_or_takes_too_long_ends() {
    let stage = Stage::with_events(0).await;
    let limit = std::time::Duration::from_millis(200);
    let site = Served::start(Site::new(&stage.log).act_token(token(ACT)).time_limit(limit)).await;
    let large = format!("consumer={}", "x".repeat(64 * 1024));
    assert_eq!(code(&site.post("/restart", &[OPERATOR], &large).await), 413);
    stage.client.batch_execute("BEGIN; LOCK inorder.consumers").await.unwrap();
    assert_eq!(code(&site.get("/overview").await), 503);
    stage.client.batch_execute("COMMIT").await.unwrap();
    site.stop().await;
}

/// In an application that knows its people, below a path of its choice.
#[tokio::test]
async fn an_application_mounts_the_site_below_a_path_and_says_who_may_what() {
    #[derive(Clone)]
    struct User(&'static str);

    let stage = with_a_dead_consumer().await;
    let router = Site::new(&stage.log)
        .access(|request| match request.extensions.get::<User>() {
            Some(User("")) => Access::Read,
            Some(User(name)) => Access::Act { by: (*name).to_owned() },
            None => Access::None,
        })
        .build()
        .unwrap();
    let known = async |mut request: axum::extract::Request, next: axum::middleware::Next| {
        let user = match request.headers().get("x-user").map(axum::http::HeaderValue::as_bytes) {
            Some(b"ada") => Some(User("ada@example.com")),
            Some(_) => Some(User("")),
            None => None,
        };
        user.map(|user| request.extensions_mut().insert(user));
        next.run(request).await
    };
    let application =
        axum::Router::new().nest_service("/ops/log", router).layer(axum::middleware::from_fn(known));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(axum::serve(listener, application).into_future());
    let get = async |path: &str, headers: &[(&str, &str)]| ask(address, "GET", path, headers, "").await;

    assert_eq!(code(&get("/ops/log/overview", &[]).await), 401);
    assert_eq!(code(&get("/ops/log/metrics", &[("x-user", "bob")]).await), 200);
    let ada = ("x-user", "ada");
    for asked in ["/ops/log", "/ops/log/"] {
        let root = get(asked, &[ada, BROWSER]).await;
        let to = place_of(asked, root.header("location"));
        assert_eq!((code(&root), to.as_str()), (303, "/ops/log/overview"));
    }
    let page = get("/ops/log/consumer?name=dead", &[ada, BROWSER]).await;
    assert!(page.header("set-cookie").contains("Path=/ops/log;"), "{page:?}");
    let form = format!("csrf={}&consumer=dead", page.field("csrf"));
    let kind = ("content-type", "application/x-www-form-urlencoded");
    let headers = [ada, OWN_PAGE, ("cookie", page.cookie()), kind];
    let acted = ask(address, "POST", "/ops/log/restart", &headers, &form).await;
    assert_eq!((code(&acted), acted.header("location")), (303, "./consumer?name=dead&did=1"));
    assert_eq!(actors(&stage).await, ["ada@example.com"]);
    serving.abort();
}

/// Where a relative link on this page leads.
fn place_of(page: &str, link: &str) -> String {
    let (folder, _) = page.rsplit_once('/').unwrap();
    format!("{folder}/{}", link.strip_prefix("./").unwrap())
}

/// Probes: the process lives whatever the database does; ready is who reaches it and finds a schema that fits.
#[tokio::test]
async fn ready_is_who_reaches_a_database_whose_schema_fits() {
    let stage = Stage::with_events(0).await;
    let site = guarded(&stage).await;
    let ready = site.get("/readyz").await;
    assert_eq!((code(&ready), ready.text.as_str()), (200, r#"{"ready":true,"reasons":[]}"#));
    site.stop().await;

    let bare = crate::support::empty_database().await;
    let log = inorder::Inorder::connect(bare.url()).await.unwrap();
    let site = Served::start(Site::new(&log).read_token(token(READ))).await;
    let stranger = site.get("/readyz").await;
    assert_eq!(code(&stranger), 503);
    assert_eq!(stranger.text, r#"{"ready":false,"reasons":["the schema does not fit this version"]}"#);
    let reader = site.get_with("/readyz", &[READER]).await;
    assert!(reader.text.contains("inorder migrate"), "{reader:?}");
    assert_eq!(code(&site.get("/healthz").await), 200);
    site.stop().await;
}

/// Whoever was being answered when the site was asked to end gets his answer.
#[tokio::test]
async fn a_request_in_flight_is_answered_before_the_site_ends() {
    let stage = Stage::with_events(0).await;
    let site = Served::start(Site::new(&stage.log)).await;
    let address = site.address;
    stage.client.batch_execute("BEGIN; LOCK inorder.consumers").await.unwrap();
    let asking = tokio::spawn(async move { ask(address, "GET", "/overview", &[], "").await });
    let watch = stage.database.client().await;
    let waits =
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'inorder.consumers'::regclass";
    eventually(LIMIT, "it is being answered", async || {
        watch.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) > 0
    })
    .await;
    let stopping = tokio::spawn(site.stop());
    eventually(LIMIT, "nobody else is let in", async || TcpStream::connect(address).await.is_err()).await;
    assert!(!stopping.is_finished());
    stage.client.batch_execute("COMMIT").await.unwrap();
    assert_eq!(code(&within("the answer", asking).await.unwrap()), 200);
    within("the end", stopping).await.unwrap();
}

/// Nobody holds a connection by sending nothing, or never enough.
#[tokio::test]
async fn a_connection_whose_headers_do_not_come_is_closed() {
    let stage = Stage::with_events(0).await;
    let site = Served::start(Site::new(&stage.log)).await;
    let mut half = TcpStream::connect(site.address).await.unwrap();
    half.write_all(b"GET /healthz HTTP/1.1\r\nHost: local").await.unwrap();
    let mut said = Vec::new();
    within("it is closed", half.read_to_end(&mut said)).await.unwrap();
    assert!(!String::from_utf8_lossy(&said).contains("200"), "{said:?}");
    site.stop().await;
}
