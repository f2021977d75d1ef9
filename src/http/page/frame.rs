//! What every page has around it: the way to the others, who is here, and the files.

use axum::http::StatusCode;
use axum::response::Html;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::asset::VERSION;
use crate::http::Shared;
use crate::http::access::{Back, Reader, Root};

/// The pages that lead everywhere else.
const PAGES: [(&str, &str); 6] = [
    ("overview", "Overview"),
    ("dead-letters", "Dead letters"),
    ("ledger", "Ledger"),
    ("handoffs", "Hand-offs"),
    ("instances", "Instances"),
    ("audit", "Audit"),
];

/// Three rows in order.
const MARK: PreEscaped<&str> = PreEscaped(
    r#"<svg class="mark" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true"><rect x="2" y="2.5" width="5" height="2.5" rx="1.25"/><rect x="2" y="6.75" width="8.5" height="2.5" rx="1.25"/><rect x="2" y="11" width="12" height="2.5" rx="1.25"/></svg>"#,
);

/// A page, for whom, and below which of [`PAGES`].
pub(super) struct Frame<'a> {
    reader: &'a Reader,
    has_login: bool,
    below: &'static str,
    live: bool,
}

impl<'a> Frame<'a> {
    pub(super) fn new(shared: &Shared, reader: &'a Reader, below: &'static str) -> Self {
        Self { reader, has_login: shared.has_login(), below, live: false }
    }

    /// It is refreshed while somebody looks.
    pub(super) fn live(self) -> Self {
        Self { live: true, ..self }
    }

    pub(super) fn around(&self, title: &str, body: &Markup) -> Html<String> {
        let header = html! {
            nav aria-label="Pages" {
                @for (page, name) in PAGES {
                    a href=(page) aria-current=[(page == self.below).then_some("true")] { (name) }
                }
            }
            (self.account())
        };
        document(Document {
            root: self.reader.root,
            title,
            header: &header,
            body,
            refreshed: self.live.then_some("live"),
        })
    }

    /// Who is here, and the way in or out.
    fn account(&self) -> Markup {
        let reader = self.reader;
        html! {
            div.account {
                @if self.live { button.quiet #live type="button" hidden { "Live" } }
                @match &reader.operator {
                    Some(by) => span { span.faint { "acting as " } bdi { (by) } },
                    None => span.faint { "reading" },
                }
                @if reader.is_logged_in {
                    form method="post" action="logout" { (csrf(reader)) button.quiet { "Log out" } }
                } @else if self.has_login {
                    a href="login" { "Log in" }
                }
            }
        }
    }
}

/// What tells a form of ours from another site's.
pub(super) fn csrf(reader: &Reader) -> Markup {
    html! { input type="hidden" name="csrf" value=(reader.form_token); }
}

/// What the page for logging in needs.
pub(in crate::http) struct LoginPage<'a> {
    pub(in crate::http) root: Root,
    pub(in crate::http) form_token: String,
    /// Is there any token to enter?
    pub(in crate::http) may_log_in: bool,
    /// Is there one for acting?
    pub(in crate::http) may_act_then: bool,
    /// As entered before.
    pub(in crate::http) name: &'a str,
    pub(in crate::http) next: &'a str,
    pub(in crate::http) problem: Option<&'a str>,
}

/// The page for logging in.
pub(in crate::http) fn login(page: &LoginPage<'_>) -> Html<String> {
    let body = html! {
        h1 { "Log in" }
        @if page.may_log_in {
            @if let Some(problem) = page.problem { p.notice.bad role="alert" { (problem) } }
            form.fields method="post" action={ (page.root) "login" } {
                input type="hidden" name="csrf" value=(page.form_token);
                input type="hidden" name="next" value=(page.next);
                label for="token" { "Token" }
                input #token name="token" type="password" required autofocus autocomplete="current-password";
                @if page.may_act_then {
                    label for="name" { "Your name, for the audit" }
                    input #name name="name" value=(page.name) maxlength="100" autocomplete="name";
                }
                button.main { "Log in" }
            }
        } @else {
            p { "This site was started without tokens: there is nothing to log in with." }
        }
    };
    plain(page.root, "Log in", &body, None)
}

/// Why there is no page, for a browser.
pub(in crate::http) fn refused(
    root: Root,
    status: StatusCode,
    message: &str,
    back: Option<&Back>,
) -> Html<String> {
    let (title, unavailable) = match status {
        StatusCode::NOT_FOUND => ("Not found", false),
        StatusCode::CONFLICT => ("Not done", false),
        StatusCode::FORBIDDEN => ("Not allowed", false),
        StatusCode::SERVICE_UNAVAILABLE => ("No answer from the database", true),
        status => (status.canonical_reason().unwrap_or("Refused"), false),
    };
    let body = html! {
        h1 { (title) }
        p.notice.bad.said role="alert" { (message) }
        @if unavailable {
            p { "With JavaScript this page looks again by itself; otherwise load it again." }
        }
        p.ways {
            @if let Some(back) = back { a href={ (root) (back.place) } { (back.name) } " · " }
            a href={ (root) "overview" } { "Overview" }
        }
    };
    plain(root, title, &body, unavailable.then_some("again"))
}

/// A page for somebody of whom nothing is known.
fn plain(root: Root, title: &str, body: &Markup, refreshed: Option<&str>) -> Html<String> {
    document(Document { root, title, header: &html! {}, body: &html! { div.narrow { (body) } }, refreshed })
}

#[derive(Clone, Copy)]
struct Document<'a> {
    root: Root,
    title: &'a str,
    header: &'a Markup,
    body: &'a Markup,
    /// `live`: it is looked at again and again. `again`: until it is another.
    refreshed: Option<&'a str>,
}

fn document(of: Document<'_>) -> Html<String> {
    let Document { root, title, header, body, refreshed } = of;
    let version = VERSION.as_str();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " – inorder" }
                link rel="icon" type="image/svg+xml" href={ (root) "icon.svg?" (version) };
                link rel="stylesheet" href={ (root) "style.css?" (version) };
                @if refreshed.is_some() { script src={ (root) "live.js?" (version) } defer {} }
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                header {
                    a.home href={ (root) "overview" } { (MARK) "inorder" }
                    (header)
                }
                p #stale.notice.bad role="status" hidden {}
                main #main tabindex="-1" data-refreshed=[refreshed] { (body) }
                footer { "Times are in UTC." }
            }
        }
    };
    Html(page.into_string())
}
