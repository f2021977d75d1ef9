//! The admin page: what an operator sees, and the forms by which he acts. Rendered here, no script needed.

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::extract::{OriginalUri, State as Of};
use axum::http::StatusCode;
use axum::http::header::LOCATION;

use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;

use super::access::{Checked, Reader, Refused, Root};
use super::{Shared, State};
use crate::admin::{Progress, Target};
use crate::error::{Error, ErrorKind};

/// The tree of pages. A page is named by its place below the site's root, and links by [`Root`].
pub(super) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/", get(to_overview))
        .route("/overview", get(overview))
        .route("/restart", post(restart))
}

/// The overview has a name of its own, so that relative links from it lead to the same places whether the site was asked for with a
/// slash at the end or without.
async fn to_overview(OriginalUri(asked): OriginalUri) -> Response {
    let path = asked.path();
    let last = path.rsplit('/').next().unwrap_or_default();
    let place = if last.is_empty() { "overview".to_owned() } else { format!("{last}/overview") };
    (StatusCode::SEE_OTHER, [(LOCATION, format!("./{place}"))]).into_response()
}

async fn overview(Of(shared): State, reader: Reader) -> Result<Html<String>, Refused> {
    let rows = shared.log.admin().list().await.map_err(|e| failed(&e))?;
    let action = |c: &Progress| match reader.operator {
        Some(_) => format!(
            "<form method=post action=\"{}restart\"><input type=hidden name=csrf value=\"{}\">\
             <input type=hidden name=consumer value=\"{}\"><button>Restart</button></form>",
            reader.root,
            reader.form_token,
            Text(&c.name)
        ),
        None => String::new(),
    };
    let row = |c: &Progress| {
        let (name, action) = (Text(&c.name), action(c));
        format!("<tr><td>{name}<td>{}<td>{}<td>{}<td>{action}", c.status, c.position, c.lag)
    };
    let rows: String = rows.iter().map(row).collect();
    let body = format!(
        "<h1>Consumers</h1><table><tr><th>Consumer<th>State<th>Position<th>Lag{rows}</table>{}",
        account(&reader, shared.has_login())
    );
    Ok(layout("Consumers", &body))
}

/// A state row, as forms name it.
#[derive(Deserialize)]
struct Row {
    consumer: String,
    #[serde(default)]
    instance: String,
    partition: Option<i32>,
}

async fn restart(Checked { operator, form, root }: Checked<Row>) -> Result<Response, Refused> {
    let mut target = Target::consumer(form.consumer).instance(form.instance);
    if let Some(partition) = form.partition {
        target = target.partition(partition);
    }
    operator.admin.restart(target).await.map_err(|e| failed(&e))?;
    // Loading the page again then sends nothing again.
    Ok((StatusCode::SEE_OTHER, [(LOCATION, format!("{root}overview"))]).into_response())
}

/// Who is here, and the way in or out.
fn account(reader: &Reader, has_login: bool) -> String {
    let Reader { root, operator, form_token, is_logged_in } = reader;
    let who =
        operator.as_deref().map_or_else(|| "reading".to_owned(), |by| format!("acting as {}", Text(by)));
    let door = match (is_logged_in, has_login) {
        (true, _) => format!(
            "<form method=post action=\"{root}logout\"><input type=hidden name=csrf value=\"{form_token}\"><button>Log out</button></form>"
        ),
        (false, true) => format!("<a href=\"{root}login\">Log in</a>"),
        (false, false) => String::new(),
    };
    format!("<p>{who}</p>{door}")
}

/// What the page for logging in needs.
pub(super) struct LoginPage<'a> {
    pub(super) root: Root,
    pub(super) form_token: String,
    /// Is there any token to enter?
    pub(super) may_log_in: bool,
    /// Is there one for acting?
    pub(super) may_act_then: bool,
    /// As entered before.
    pub(super) name: &'a str,
    pub(super) next: &'a str,
    pub(super) problem: Option<&'a str>,
}

/// The page for logging in.
pub(super) fn login(page: &LoginPage<'_>) -> Html<String> {
    let LoginPage { root, form_token, may_log_in, may_act_then, name, next, problem } = page;
    if !may_log_in {
        return layout(
            "Log in",
            "<h1>Log in</h1><p>This site was started without tokens: there is nothing to log in with.</p>",
        );
    }
    let problem = problem.map(|problem| format!("<p role=alert>{}</p>", Text(problem))).unwrap_or_default();
    let name = match may_act_then {
        true => format!(
            "<p><label>Your name, for the audit <input name=name value=\"{}\" autocomplete=name></label></p>",
            Text(name)
        ),
        false => String::new(),
    };
    layout(
        "Log in",
        &format!(
            "<h1>Log in</h1>{problem}<form method=post action=\"{root}login\">\
             <input type=hidden name=csrf value=\"{form_token}\"><input type=hidden name=next value=\"{}\">\
             <p><label>Token <input name=token type=password required autofocus autocomplete=current-password></label></p>{name}\
             <p><button>Log in</button></p></form>",
            Text(next)
        ),
    )
}

/// Why there is no page, for a browser.
pub(super) fn refused(root: Root, status: StatusCode, message: &str) -> Html<String> {
    let title = status.canonical_reason().unwrap_or("Refused");
    let body = format!(
        "<h1>{title}</h1><p role=alert>{}</p><p><a href=\"{root}overview\">Overview</a></p>",
        Text(message)
    );
    layout(title, &body)
}

pub(super) async fn not_found() -> Refused {
    Refused::new(StatusCode::NOT_FOUND, "there is no such page")
}

/// What an error of an action or a question is to whoever asked.
fn failed(error: &Error) -> Refused {
    let status = match error.kind() {
        ErrorKind::NotRegistered => StatusCode::NOT_FOUND,
        ErrorKind::Precondition | ErrorKind::Busy => StatusCode::CONFLICT,
        ErrorKind::Connection | ErrorKind::Timeout => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Refused::new(status, error.report())
}

fn layout(title: &str, body: &str) -> Html<String> {
    Html(format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width, initial-scale=1\">\
         <title>{} – inorder</title><body>{body}</body></html>",
        Text(title)
    ))
}

/// Text in a page, whatever it holds.
pub(super) struct Text<'a>(pub(super) &'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => fmt::Write::write_char(f, c)?,
            }
        }
        Ok(())
    }
}
