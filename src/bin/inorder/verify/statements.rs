//! The statements of the proof, written for its schema.

/// The text of a statement, with the schema still written as `inorder.`.
macro_rules! text {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/verify/", $name, ".sql"))
    };
}

pub(crate) const TABLES: &str = text!("tables");
pub(crate) const LANE: &str = text!("lane");
pub(crate) const EFFECT: &str = text!("effect");
pub(crate) const BUSINESS: &str = text!("business");
pub(crate) const INSERT: &str = text!("insert");
pub(crate) const COPY: &str = text!("copy");
pub(crate) const APPEND: &str = text!("append");
pub(crate) const SUSPECTS: &str = text!("suspects");
pub(crate) const DISORDER: &str = text!("disorder");
pub(crate) const STRANGERS: &str = text!("strangers");
pub(crate) const STANDINGS: &str = text!("standings");
pub(crate) const EVENTS: &str = text!("events");
pub(crate) const WATCHERS: &str = text!("watchers");
pub(crate) const CUT: &str = text!("cut");
pub(crate) const PREPARED: &str = text!("prepared");
pub(crate) const EVICT: &str = text!("evict");
pub(crate) const EFFECTS_TABLES: &str = text!("effects_tables");
pub(crate) const EFFECTS_RUNS: &str = text!("effects_runs");
pub(crate) const EFFECTS_FINDINGS: &str = text!("effects_findings");
pub(crate) const EFFECTS_LEFT: &str = text!("effects_left");
pub(crate) const EFFECTS_IDLE: &str = text!("effects_idle");
pub(crate) const WAITS: &str = text!("waits");
pub(crate) const WAL_WRITER: &str = text!("wal_writer");

/// Puts the schema in. Its name was made by us and needs no quotes.
pub(crate) fn render(text: &str, schema: &str) -> String {
    text.replace("inorder.", &format!("{schema}."))
}

pub(crate) fn prepare_transaction(gid: &str) -> String {
    format!("PREPARE TRANSACTION '{gid}'")
}

pub(crate) fn commit_prepared(gid: &str) -> String {
    format!("COMMIT PREPARED '{gid}'")
}

pub(crate) fn rollback_prepared(gid: &str) -> String {
    format!("ROLLBACK PREPARED '{gid}'")
}
