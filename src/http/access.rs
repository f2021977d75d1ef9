//! Who may what: tokens, sessions, and the extractors that handlers name in their arguments.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Form, FromRequest, FromRequestParts, Request};
use axum::http::header::{ACCEPT, AUTHORIZATION, COOKIE, LOCATION, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Shared;
use super::session::Session;
use super::token::Token;
use crate::admin::Admin;

/// What a request may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing that is not for everybody.
    None,
    /// See everything: consumers, events, payloads, errors, the audit.
    Read,
    /// Act, too, under this name in the audit.
    Act {
        /// Who.
        by: String,
    },
}

/// The secrets, as configured.
pub(super) struct Tokens {
    pub(super) read: Option<Token>,
    pub(super) act: Option<Token>,
}

impl Tokens {
    /// What somebody who shows this may do, under that name.
    pub(super) fn access(&self, shown: &str, name: Option<String>) -> Access {
        let is = |token: &Option<Token>| token.as_ref().is_some_and(|token| token.is(shown));
        // Both are compared, whatever comes of the first.
        match (is(&self.read), is(&self.act)) {
            (_, true) => Access::Act { by: name.unwrap_or_else(|| "act token".to_owned()) },
            (true, false) => Access::Read,
            (false, false) => Access::None,
        }
    }
}

/// Who a request comes from. The guard puts one into every request.
#[derive(Clone, Debug)]
pub(super) struct Visitor {
    pub(super) access: Access,
    /// Of the browser; a new one if it had none.
    pub(super) session: Session,
    /// Did the browser bring it along?
    pub(super) has_session: bool,
    /// Was a token shown? Then no other site can have caused the request.
    pub(super) by_token: bool,
    pub(super) root: Root,
}

impl Visitor {
    /// A token that is shown comes first, then what the application says, then a session, then what everybody may.
    pub(super) fn identify(shared: &Shared, parts: &Parts) -> Result<Self, Refused> {
        let root = Root::of(parts);
        let cookies = parts.headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let known = cookies.into_iter().find_map(|header| shared.signer.session(header));
        let has_session = known.is_some();
        let session = known.unwrap_or_else(|| Session::of(Access::None));
        let visitor =
            |access, by_token| Self { access, session: session.clone(), has_session, by_token, root };
        if let Some(shown) = bearer(&parts.headers) {
            let access = shared.tokens.access(shown, name_beside(&parts.headers)?);
            match access {
                // It may be the application's own.
                Access::None if shared.access.is_some() => {}
                Access::None => return Err(Refused::stranger(parts)),
                access => return Ok(visitor(access, true)),
            }
        }
        let said = shared.access.as_ref().map_or(Access::None, |access| access(parts));
        let everybody = match shared.open {
            Open::Everybody => Access::Read,
            Open::ThisMachine if !is_forwarded(&parts.headers) => Access::Read,
            _ => Access::None,
        };
        let first =
            [said, session.access.clone(), everybody].into_iter().find(|access| *access != Access::None);
        Ok(visitor(first.unwrap_or(Access::None), false))
    }
}

/// To whom the site is open without a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Open {
    Nobody,
    /// It listens to this machine only; whom a proxy speaks for may be elsewhere.
    ThisMachine,
    Everybody,
}

/// Does a proxy speak for somebody?
fn is_forwarded(headers: &HeaderMap) -> bool {
    ["forwarded", "x-forwarded-for", "x-real-ip", "via"].iter().any(|name| headers.contains_key(*name))
}

/// The token of `Authorization: Bearer …`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Who shows a token, as far as he says.
fn name_beside(headers: &HeaderMap) -> Result<Option<String>, Refused> {
    let Some(value) = headers.get("inorder-operator") else { return Ok(None) };
    let name = str::from_utf8(value.as_bytes()).ok().and_then(operator_name);
    name.map(Some).ok_or_else(|| {
        Refused::new(
            StatusCode::BAD_REQUEST,
            "the header Inorder-Operator is not a name: up to 100 characters in UTF-8",
        )
    })
}

/// A name for the audit, if it is one.
pub(super) fn operator_name(name: &str) -> Option<String> {
    let name = name.trim();
    let fits = !name.is_empty() && name.chars().count() <= 100 && !name.chars().any(char::is_control);
    fits.then(|| name.to_owned())
}

/// From a page to the site's own root, as a relative link: pages need not know where the site is mounted.
///
/// `format!("{root}overview")` leads to the overview from everywhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct Root(usize);

impl Root {
    pub(super) fn of(parts: &Parts) -> Self {
        Self(parts.uri.path().matches('/').count().saturating_sub(1))
    }
}

impl std::fmt::Display for Root {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => f.write_str("./"),
            depth => f.write_str(&"../".repeat(depth)),
        }
    }
}

/// A request that may read. Naming it among a handler's arguments refuses all others.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    /// Where the site's root is.
    pub(super) root: Root,
    /// The name under which the reader may act, if he may.
    pub(super) operator: Option<String>,
    /// What every form must bring along, in a field named `csrf`.
    pub(super) form_token: String,
    /// Was it a login that let him in, which a logout ends?
    pub(super) is_logged_in: bool,
}

impl FromRequestParts<Arc<Shared>> for Reader {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Refused> {
        let visitor = visitor(parts)?;
        let operator = match visitor.access {
            Access::None => return Err(Refused::stranger(parts)),
            Access::Read => None,
            Access::Act { by } => Some(by),
        };
        let form_token = shared.signer.form_token(&visitor.session);
        let is_logged_in = visitor.session.access != Access::None;
        Ok(Self { root: visitor.root, operator, form_token, is_logged_in })
    }
}

/// A form that was sent from one of our own pages, or by a program that showed a token.
#[derive(Debug)]
pub(super) struct Sent<T>(pub(super) T);

#[derive(Deserialize)]
struct Csrf {
    #[serde(default)]
    csrf: String,
}

impl<T: DeserializeOwned> FromRequest<Arc<Shared>> for Sent<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, shared: &Arc<Shared>) -> Result<Self, Refused> {
        let (parts, body) = request.into_parts();
        let visitor = visitor(&parts)?;
        let whole = Request::from_parts(parts.clone(), body);
        let body =
            Bytes::from_request(whole, shared).await.map_err(|e| Refused::new(e.status(), e.body_text()))?;
        let again = || Request::from_parts(parts.clone(), Body::from(body.clone()));
        if !visitor.by_token {
            let Form(Csrf { csrf }) = Form::from_request(again(), shared)
                .await
                .map_err(|e| Refused::new(e.status(), e.body_text()))?;
            if !shared.signer.is_form_token(&visitor.session, &csrf) {
                return Err(Refused::new(
                    StatusCode::FORBIDDEN,
                    "the form is not one of this session, or the session is over; go back, load the page again and send it anew",
                ));
            }
        }
        let Form(form) =
            Form::from_request(again(), shared).await.map_err(|e| Refused::new(e.status(), e.body_text()))?;
        Ok(Self(form))
    }
}

/// A form that acts: whoever sent it may, and it is one of our own pages' ([`Sent`]). The only way to an [`Operator`].
#[derive(Debug)]
pub(super) struct Checked<T> {
    pub(super) operator: Operator,
    pub(super) form: T,
}

/// Somebody who may act.
#[derive(Clone, Debug)]
pub(super) struct Operator {
    /// Acts under his name.
    pub(super) admin: Admin,
}

impl<T: DeserializeOwned> FromRequest<Arc<Shared>> for Checked<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, shared: &Arc<Shared>) -> Result<Self, Refused> {
        let (parts, body) = request.into_parts();
        let visitor = visitor(&parts)?;
        let by = match visitor.access {
            Access::Act { by } => by,
            Access::Read if !shared.has_act_token() && shared.access.is_none() => {
                return Err(Refused::new(
                    StatusCode::FORBIDDEN,
                    "nobody may act here: the site was started without a token for acting",
                ));
            }
            Access::Read => {
                return Err(Refused::new(
                    StatusCode::FORBIDDEN,
                    "you may read, not act; log in with the token for acting",
                ));
            }
            Access::None => return Err(Refused::stranger(&parts)),
        };
        let Sent(form) = Sent::from_request(Request::from_parts(parts, body), shared).await?;
        let admin = shared.log.admin().by(&by);
        Ok(Self { operator: Operator { admin }, form })
    }
}

fn visitor(parts: &Parts) -> Result<Visitor, Refused> {
    let visitor = parts.extensions.get::<Visitor>().cloned();
    visitor
        .ok_or_else(|| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "the request did not pass the guard"))
}

/// What a refusal says, for the guard to make a page of it where a browser asked.
#[derive(Clone, Debug)]
pub(super) struct Sorry {
    pub(super) message: String,
    pub(super) back: Option<Back>,
}

/// The page that leads on from a refusal.
#[derive(Clone, Debug)]
pub(super) struct Back {
    /// As it stands in a link.
    pub(super) name: String,
    /// A path below the site's root.
    pub(super) place: String,
}

/// Does whoever asks show pages?
pub(super) fn is_browser(headers: &HeaderMap) -> bool {
    headers.get(ACCEPT).and_then(|value| value.to_str().ok()).is_some_and(|value| value.contains("text/html"))
}

/// Why a request is not answered.
#[derive(Debug)]
pub(super) struct Refused {
    status: StatusCode,
    message: String,
    /// Where a browser goes instead.
    login: Option<String>,
    back: Option<Back>,
}

impl Refused {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), login: None, back: None }
    }

    /// Where it leads on from here.
    pub(super) fn back_to(self, name: impl Into<String>, place: impl Into<String>) -> Self {
        Self { back: Some(Back { name: name.into(), place: place.into() }), ..self }
    }

    /// Nobody whom we know: a browser is asked to log in.
    pub(super) fn stranger(parts: &Parts) -> Self {
        let from = match (&parts.method, parts.uri.path_and_query()) {
            (&Method::GET, Some(path)) => path.as_str().trim_start_matches('/'),
            _ => "",
        };
        let login =
            is_browser(&parts.headers).then(|| format!("{}login?next={}", Root::of(parts), encoded(from)));
        let message = "a token is needed: Authorization: Bearer …".to_owned();
        Self { login, ..Self::new(StatusCode::UNAUTHORIZED, message) }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        if let Some(login) = self.login {
            return (StatusCode::SEE_OTHER, [(LOCATION, login)]).into_response();
        }
        let mut response = (self.status, format!("{}\n", self.message)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = axum::http::HeaderValue::from_static("Bearer realm=\"inorder\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
        }
        response.extensions_mut().insert(Sorry { message: self.message, back: self.back });
        response
    }
}

/// As a part of a query.
pub(super) fn encoded(text: &str) -> String {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte);
    text.bytes()
        .map(|byte| if keep(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
