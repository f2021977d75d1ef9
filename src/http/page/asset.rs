//! The files that pages need: one style sheet, one script, one icon. They are a part of the program.

use std::sync::LazyLock;

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use sha2::{Digest, Sha256};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("live.js");
const ICON: &str = include_str!("icon.svg");

/// What the files' names are followed by: other files, another address, so that browsers can keep them for ever.
pub(super) static VERSION: LazyLock<String> = LazyLock::new(|| {
    let digest = [STYLE, SCRIPT, ICON].iter().fold(Sha256::new(), Sha256::chain_update).finalize();
    digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
});

type File = ([(HeaderName, &'static str); 2], &'static str);

const fn file(kind: &'static str, text: &'static str) -> File {
    ([(CONTENT_TYPE, kind), (CACHE_CONTROL, "public, max-age=31536000, immutable")], text)
}

pub(super) async fn style() -> File {
    file("text/css; charset=utf-8", STYLE)
}

pub(super) async fn script() -> File {
    file("text/javascript; charset=utf-8", SCRIPT)
}

pub(super) async fn icon() -> File {
    file("image/svg+xml", ICON)
}
