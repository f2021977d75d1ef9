//! What every request passes, and every answer gets: which host was asked for, who sent it, how long it may take, and what a browser
//! must not do with the answer.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{OriginalUri, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, ORIGIN,
    REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::access::{Refused, Root, Sorry, Visitor, is_browser};
use super::{Shared, page};

/// Whatever is written into a page, a browser takes styles and scripts from our own files only, sends forms to nobody else, and shows
/// the page in nobody's frame.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

const HEADERS: [(HeaderName, &str); 7] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    // Not `no-referrer`: with it a browser does not say where a form comes from, either.
    (REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (CACHE_CONTROL, "no-store"),
];

pub(super) async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let (is_browser, root) = (is_browser(&parts.headers), Root::of(&parts));
    let mut response = match admitted(&shared, &parts) {
        Ok(visitor) => {
            let cookie = (!visitor.has_session)
                .then(|| shared.signer.cookie(&visitor.session, &mounted_at(&parts), is_encrypted(&parts)));
            parts.extensions.insert(visitor);
            let answer = next.run(Request::from_parts(parts, body));
            match tokio::time::timeout(shared.time_limit, answer).await {
                Ok(response) => with_session(response, cookie),
                Err(_) => Refused::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    format!("no answer within {:.0} s", shared.time_limit.as_secs_f64()),
                )
                .into_response(),
            }
        }
        Err(refused) => refused.into_response(),
    };
    if let Some(Sorry { message, back }) = response.extensions_mut().remove().filter(|_| is_browser) {
        let page = page::refused(root, response.status(), &message, back.as_ref());
        *response.body_mut() = page.into_response().into_body();
        response.headers_mut().remove(CONTENT_LENGTH);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    }
    for (name, value) in HEADERS {
        // A file that never changes may say that it can be kept.
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

fn admitted(shared: &Shared, parts: &Parts) -> Result<Visitor, Refused> {
    let host = host(parts);
    if let Some(hosts) = &shared.hosts {
        let name = host.map(|h| without_port(h).to_ascii_lowercase()).unwrap_or_default();
        if !hosts.contains(&name) {
            return Err(Refused::new(
                StatusCode::MISDIRECTED_REQUEST,
                "this is not the host that was asked for; if it is, start the site with that name (--host)",
            ));
        }
    }
    let visitor = Visitor::identify(shared, parts)?;
    if !parts.method.is_safe() && is_from_elsewhere(&parts.headers, host, visitor.by_token) {
        return Err(Refused::new(
            StatusCode::FORBIDDEN,
            "the request does not come from a page of this site",
        ));
    }
    Ok(visitor)
}

/// Whom the request is for.
fn host(parts: &Parts) -> Option<&str> {
    let header = parts.headers.get(HOST).and_then(|value| value.to_str().ok());
    header.or_else(|| parts.uri.authority().map(Authority::as_str))
}

/// As `[::1]` of `[::1]:80`.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|b| b.is_ascii_digit()) && (!name.contains(':') || name.ends_with(']')) =>
        {
            name
        }
        _ => host,
    }
}

/// Did another site cause it? A browser says so; what says nothing is no browser, and then it shows a token.
fn is_from_elsewhere(headers: &HeaderMap, host: Option<&str>, by_token: bool) -> bool {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    match (text(HeaderName::from_static("sec-fetch-site")), text(ORIGIN)) {
        (Some(site), _) => site != "same-origin",
        (None, Some(origin)) => {
            let from = origin.split_once("://").map(|(_, authority)| authority);
            !matches!((from, host), (Some(from), Some(host)) if from.eq_ignore_ascii_case(host))
        }
        (None, None) => !by_token,
    }
}

/// The path under which an application mounted the site: what was taken away of the path that was asked for.
pub(super) fn mounted_at(parts: &Parts) -> String {
    let asked = parts.extensions.get::<OriginalUri>().map_or(parts.uri.path(), |uri| uri.0.path());
    match asked.strip_suffix(parts.uri.path()) {
        // Attributes of cookies end there.
        Some(prefix) if !prefix.is_empty() && !prefix.contains([';', ',']) => prefix.to_owned(),
        _ => "/".to_owned(),
    }
}

/// Does the browser speak TLS, with whoever is in front of us?
pub(super) fn is_encrypted(parts: &Parts) -> bool {
    let starts = |name: HeaderName| {
        parts.headers.get(name).and_then(|v| v.to_str().ok()).is_some_and(|v| v.starts_with("https"))
    };
    starts(ORIGIN) || starts(HeaderName::from_static("x-forwarded-proto"))
}

/// A page has forms, and forms need a session.
fn with_session(mut response: Response, cookie: Option<String>) -> Response {
    let headers = response.headers_mut();
    let is_page = headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
    if let Some(value) = cookie
        .filter(|_| is_page && !headers.contains_key(SET_COOKIE))
        .and_then(|c| HeaderValue::from_str(&c).ok())
    {
        headers.insert(SET_COOKIE, value);
    }
    response
}

/// As it stands in a `Host` header.
pub(super) fn host_of(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pair = (&'static str, &'static str);

    fn headers(pairs: &[Pair]) -> HeaderMap {
        pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn a_request_that_another_site_caused_is_told() {
        let host = Some("localhost:7878");
        let cases: [(&[Pair], bool, bool); 9] = [
            (&[("sec-fetch-site", "same-origin")], false, false),
            (&[("sec-fetch-site", "cross-site")], false, true),
            (&[("sec-fetch-site", "same-site"), ("origin", "http://localhost:7878")], false, true),
            (&[("sec-fetch-site", "cross-site")], true, true),
            (&[("origin", "http://localhost:7878")], false, false),
            (&[("origin", "http://localhost:80")], false, true),
            (&[("origin", "null")], true, true),
            (&[], false, true),
            (&[], true, false),
        ];
        for (pairs, by_token, elsewhere) in cases {
            assert_eq!(is_from_elsewhere(&headers(pairs), host, by_token), elsewhere, "{pairs:?} {by_token}");
        }
    }

    #[test]
    fn a_host_is_known_with_any_port() {
        for (host, name) in [
            ("localhost", "localhost"),
            ("localhost:7878", "localhost"),
            ("[::1]:7878", "[::1]"),
            ("[::1]", "[::1]"),
            ("::1", "::1"),
            ("evil:localhost", "evil:localhost"),
        ] {
            assert_eq!(without_port(host), name);
        }
    }
}
