//! Sessions of people: a signed cookie that says who may what until when, and the tokens of its forms.
//!
//! Nothing is kept here. The key is made of the tokens, so a session ends when they are changed.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use time::OffsetDateTime;
use uuid::Uuid;

use super::access::Access;
use super::token::Token;

/// The name of the cookie.
const COOKIE: &str = "inorder_session";
/// How long a session holds, in seconds.
const HOLDS: i64 = 12 * 3_600;

/// Makes and checks what is signed.
pub(super) struct Signer(Hmac<Sha256>);

/// Who somebody is, as of a login, or nobody in particular.
#[derive(Clone, Debug)]
pub(super) struct Session {
    id: String,
    pub(super) access: Access,
}

impl Session {
    /// A new one.
    pub(super) fn of(access: Access) -> Self {
        Self { id: Uuid::new_v4().simple().to_string(), access }
    }
}

impl Signer {
    pub(super) fn new(read: Option<&Token>, act: Option<&Token>) -> Self {
        // Nobody can log in without a token; then the key needs to hold as long as this process only.
        let random = (read.is_none() && act.is_none()).then(|| [Uuid::new_v4(), Uuid::new_v4()]);
        let mut key = Hmac::<Sha256>::new_from_slice(b"inorder sessions").unwrap_or_else(|_| keyed());
        for part in [read.map(Token::bytes), act.map(Token::bytes)] {
            let part = part.unwrap_or_default();
            key.update(&part.len().to_be_bytes());
            key.update(part);
        }
        random.iter().flatten().for_each(|id| key.update(id.as_bytes()));
        let key = key.finalize().into_bytes();
        Self(Hmac::new_from_slice(&key).unwrap_or_else(|_| keyed()))
    }

    /// The header that gives a session to a browser, for the pages below `path`.
    pub(super) fn cookie(&self, session: &Session, path: &str, encrypted: bool) -> String {
        let expires = OffsetDateTime::now_utc().unix_timestamp() + HOLDS;
        let (role, by) = match &session.access {
            Access::None => ("none", ""),
            Access::Read => ("read", ""),
            Access::Act { by } => ("act", by.as_str()),
        };
        let said = format!("{}.{role}.{expires}.{}", session.id, hex(by.as_bytes()));
        let signature = self.sign("session", &said);
        let secure = if encrypted { "; Secure" } else { "" };
        format!(
            "{COOKIE}={said}.{signature}; Path={path}; Max-Age={HOLDS}; HttpOnly; SameSite=Strict{secure}"
        )
    }

    /// The session that a `Cookie` header holds, if it is ours and not over.
    pub(super) fn session(&self, header: &str) -> Option<Session> {
        header
            .split(';')
            .filter_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
            .find_map(|value| self.read(value))
    }

    fn read(&self, value: &str) -> Option<Session> {
        let (said, signature) = value.rsplit_once('.')?;
        if !self.is_signed("session", said, signature) {
            return None;
        }
        let mut parts = said.split('.');
        let (id, role, expires, by) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        if expires.parse::<i64>().ok()? <= OffsetDateTime::now_utc().unix_timestamp() {
            return None;
        }
        let access = match role {
            "act" => Access::Act { by: String::from_utf8(unhex(by)?).ok()? },
            "read" => Access::Read,
            _ => Access::None,
        };
        Some(Session { id: id.to_owned(), access })
    }

    /// What every form of this session must bring along.
    pub(super) fn form_token(&self, session: &Session) -> String {
        self.sign("form", &session.id)
    }

    /// Did a form of this session bring it along?
    pub(super) fn is_form_token(&self, session: &Session, shown: &str) -> bool {
        self.is_signed("form", &session.id, shown)
    }

    fn mac(&self, purpose: &str, text: &str) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(purpose.as_bytes());
        mac.update(b"\n");
        mac.update(text.as_bytes());
        mac
    }

    fn sign(&self, purpose: &str, text: &str) -> String {
        hex(&self.mac(purpose, text).finalize().into_bytes())
    }

    /// In constant time.
    fn is_signed(&self, purpose: &str, text: &str, signature: &str) -> bool {
        unhex(signature).is_some_and(|bytes| self.mac(purpose, text).verify_slice(&bytes).is_ok())
    }
}

/// Keys may have any length, so this is never needed.
fn keyed() -> Hmac<Sha256> {
    unreachable!("a key of any length will do")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    digits.chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> Token {
        Token::new(text).expect("a good token")
    }

    fn given(cookie: &str) -> &str {
        cookie.split(';').next().expect("a value")
    }

    #[test]
    fn a_session_holds_with_the_same_tokens_and_with_no_others() {
        let (read, act) = (token("0123456789abcdef"), token("fedcba9876543210"));
        let signer = Signer::new(Some(&read), Some(&act));
        let session = Session::of(Access::Act { by: "Ada; Path=/ ü".to_owned() });
        let cookie = signer.cookie(&session, "/admin", false);
        assert!(cookie.ends_with("; Path=/admin; Max-Age=43200; HttpOnly; SameSite=Strict"), "{cookie}");
        let header = format!("other=1; {}; more=2", given(&cookie));
        let found = Signer::new(Some(&read), Some(&act)).session(&header).expect("the same tokens");
        assert_eq!(found.access, session.access);
        for (read, act) in [(Some(&act), Some(&read)), (Some(&read), None), (None, Some(&act)), (None, None)]
        {
            assert!(Signer::new(read, act).session(&header).is_none(), "{read:?} {act:?}");
        }
    }

    #[test]
    fn a_session_that_was_altered_or_is_over_is_none() {
        let act = token("0123456789abcdef");
        let signer = Signer::new(None, Some(&act));
        let cookie = signer.cookie(&Session::of(Access::Read), "/", true);
        assert!(cookie.ends_with("; Secure"));
        let good = given(&cookie);
        assert!(signer.session(good).is_some());
        assert!(signer.session(&good.replace(".read.", ".act.")).is_none());
        assert!(signer.session(&good[..good.len() - 2]).is_none());
        assert!(signer.session("inorder_session=").is_none());
        let over = format!("abc.read.{}.", OffsetDateTime::now_utc().unix_timestamp());
        let over = format!("{COOKIE}={over}.{}", signer.sign("session", &over));
        assert!(signer.session(&over).is_none());
    }

    #[test]
    fn a_form_belongs_to_one_session() {
        let signer = Signer::new(None, None);
        let (one, other) = (Session::of(Access::None), Session::of(Access::None));
        let token = signer.form_token(&one);
        assert!(signer.is_form_token(&one, &token));
        assert!(!signer.is_form_token(&other, &token));
        assert!(!signer.is_form_token(&one, ""));
    }
}
