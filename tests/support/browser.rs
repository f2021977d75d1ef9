//! A real browser, and somebody at it: Chromium, through its driver.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use fantoccini::actions::{InputSource, KeyAction, KeyActions};
use fantoccini::elements::Element;
use fantoccini::key::Key;
use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

use super::process::signal;
use super::{LIMIT, eventually};

/// One browser at a time: each is several busy processes.
static ALONE: Mutex<()> = Mutex::const_new(());

/// How many times somebody presses Tab before he gives up.
const TABS: usize = 80;

/// A browser with a fresh profile, gone when dropped.
pub(crate) struct Browser {
    client: Client,
    _driver: Driver,
    _profile: TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// The driver, with the browser that it started.
struct Driver(Child);

impl Drop for Driver {
    fn drop(&mut self) {
        signal("KILL", -i64::from(self.0.id()));
        self.0.wait().ok();
    }
}

impl Driver {
    /// With the port at which it listens.
    fn start() -> (Driver, u16) {
        use std::io::{BufRead, BufReader};

        let mut command = Command::new("chromedriver");
        command.arg("--port=0").process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut driver = Driver(command.spawn().unwrap_or_else(|e| missing("chromedriver", &e.to_string())));
        let said = BufReader::new(driver.0.stdout.take().unwrap());
        let port = said
            .lines()
            .map_while(Result::ok)
            .find_map(|line| line.split_once("successfully on port ")?.1.trim_end_matches('.').parse().ok());
        (driver, port.expect("chromedriver says at which port it listens"))
    }
}

fn missing(what: &str, error: &str) -> ! {
    panic!(
        "{what}: {error}; the test needs Chromium and its driver: script/setup installs them where it can, \
         else apt-get install chromium chromium-driver"
    )
}

impl Browser {
    pub(crate) async fn start() -> Browser {
        Self::with(json!({})).await
    }

    pub(crate) async fn without_javascript() -> Browser {
        Self::with(json!({"profile.managed_default_content_settings.javascript": 2})).await
    }

    async fn with(preferences: Value) -> Browser {
        let alone = ALONE.lock().await;
        let profile = TempDir::new().unwrap();
        let (driver, port) = Driver::start();
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--window-size=1200,900",
            &format!("--user-data-dir={}", profile.path().display()),
        ];
        let wanted = json!({
            "goog:chromeOptions": {"args": arguments, "prefs": preferences},
            "goog:loggingPrefs": {"browser": "ALL"},
        });
        let Value::Object(wanted) = wanted else { unreachable!("an object") };
        let client = ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new())
            .capabilities(wanted)
            .connect(&format!("http://127.0.0.1:{port}"))
            .await
            .unwrap_or_else(|e| missing("chromium", &e.to_string()));
        Browser { client, _driver: driver, _profile: profile, _alone: alone }
    }

    /// Ends it. What it complained about (a script that failed, a policy that was broken) fails the test.
    pub(crate) async fn close(self) {
        let log = self.client.issue_cmd(Vendor("se/log", json!({"type": "browser"}))).await.unwrap();
        let complaints: Vec<&Value> = log.as_array().unwrap().iter().filter(|entry| entry["level"] == "SEVERE").collect();
        // A page that is not there, or a database that is down, is no fault of the page's.
        let own: Vec<_> = complaints.iter().filter(|entry| entry["source"] != "network").collect();
        assert!(own.is_empty(), "{own:?}");
        self.client.close().await.unwrap();
    }

    pub(crate) async fn open(&self, url: &str) {
        self.client.goto(url).await.unwrap();
    }

    pub(crate) async fn reload(&self) {
        self.client.refresh().await.unwrap();
    }

    /// What one reads.
    pub(crate) async fn text(&self) -> String {
        // A page that is being loaded has no text yet.
        match self.client.find(Locator::Css("body")).await {
            Ok(body) => body.text().await.unwrap_or_default(),
            Err(_) => String::new(),
        }
    }

    pub(crate) async fn sees(&self, text: &str) {
        eventually(LIMIT, &format!("one sees {text:?}"), async || self.text().await.contains(text)).await;
    }

    /// The text of the table's row in which this is.
    pub(crate) async fn row(&self, text: &str) -> String {
        let rows = self.client.find_all(Locator::Css("tbody tr")).await.unwrap();
        for row in rows {
            let said = row.text().await.unwrap_or_default();
            if said.contains(text) {
                return said;
            }
        }
        String::new()
    }

    pub(crate) async fn click(&self, name: &str) {
        let path = format!("//*[self::a or self::button or self::summary][contains(normalize-space(.), \"{name}\")]");
        let found = self.client.wait().at_most(LIMIT).for_element(Locator::XPath(&path)).await;
        found.unwrap_or_else(|e| panic!("{name}: {e}")).click().await.unwrap();
    }

    pub(crate) async fn fill(&self, field: &str, text: &str) {
        let css = format!("main [name={field}]");
        let found = self.client.wait().at_most(LIMIT).for_element(Locator::Css(&css)).await;
        found.unwrap_or_else(|e| panic!("{field}: {e}")).send_keys(text).await.unwrap();
    }

    pub(crate) async fn run(&self, script: &str) -> Value {
        self.client.execute(script, Vec::new()).await.unwrap()
    }

    pub(crate) async fn picture(&self) -> Vec<u8> {
        self.client.screenshot().await.unwrap()
    }
}

/// With the keyboard.
impl Browser {
    pub(crate) async fn press(&self, key: Key) {
        let key = char::from(key);
        let strokes = KeyActions::new("keyboard".to_owned())
            .then(KeyAction::Down { value: key })
            .then(KeyAction::Up { value: key });
        self.client.perform_actions(strokes).await.unwrap();
    }

    pub(crate) async fn write(&self, text: &str) {
        self.client.active_element().await.unwrap().send_keys(text).await.unwrap();
    }

    /// Presses Tab until what has the focus is called so. Wherever the focus is, one sees it.
    pub(crate) async fn tab_to(&self, name: &str) -> Element {
        let mut seen = Vec::new();
        for _ in 0..TABS {
            self.press(Key::Tab).await;
            let focused = self.client.active_element().await.unwrap();
            let called = self.run(CALLED).await.as_str().unwrap_or_default().to_owned();
            if called != "body" {
                let outline = focused.css_value("outline-style").await.unwrap();
                assert_ne!(outline, "none", "{called:?} has the focus, and one does not see it");
            }
            if called.contains(name) {
                return focused;
            }
            seen.push(called);
        }
        panic!("{name:?} is not reached with Tab: {seen:?}")
    }
}

const CALLED: &str = "const e = document.activeElement; if (e === document.body) return 'body'; \
                      return e.getAttribute('aria-label') || (e.labels && e.labels[0] ? e.labels[0].textContent : e.textContent);";

/// How the page is looked at.
impl Browser {
    /// On a phone, say.
    pub(crate) async fn screen(&self, width: u32, height: u32, mobile: bool) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile});
        self.devtools("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// `light` or `dark`.
    pub(crate) async fn prefers(&self, look: &str) {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": look}]});
        self.devtools("Emulation.setEmulatedMedia", features).await;
    }

    async fn devtools(&self, command: &str, arguments: Value) {
        let call = json!({"cmd": command, "params": arguments});
        self.client.issue_cmd(Vendor("goog/cdp/execute", call)).await.unwrap();
    }
}

/// What no standard knows.
#[derive(Debug)]
struct Vendor(&'static str, Value);

impl WebDriverCompatibleCommand for Vendor {
    fn endpoint(&self, base: &url::Url, session: Option<&str>) -> Result<url::Url, url::ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.0))
    }

    fn method_and_body(&self, _: &url::Url) -> (Method, Option<String>) {
        (Method::POST, Some(self.1.to_string()))
    }
}
