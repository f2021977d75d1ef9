//! What goes wrong in practice, looked for in one go.

use std::time::Duration;

use serde::Serialize;
use time::{Duration as Span, OffsetDateTime};
use tokio_postgres::Row;

use super::Admin;
use crate::connect::pooling::Pooler;
use crate::error::{Error, ErrorKind};
use crate::pg::admin as statements;

/// Clocks of machines that follow time servers are closer than this.
const CLOCKS_APART: Span = Span::seconds(2);

/// From when on something counts as trouble.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Doctor {
    patience: Duration,
    notifications: f64,
}

impl Default for Doctor {
    fn default() -> Self {
        Self { patience: Duration::from_secs(60), notifications: 0.1 }
    }
}

impl Doctor {
    /// From which age on something that usually passes by itself is trouble: an open transaction, a consumer that is behind, a
    /// row that is due. Default 1 min.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// How full the server's queue of notifications may be, 0 to 1. Default 0.1.
    #[must_use]
    pub fn notifications(self, full: f64) -> Self {
        Self { notifications: full, ..self }
    }
}

/// How bad a [`Finding`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It will hurt, or somebody has to decide.
    Warning,
    /// Delivery, or what it rests on, is hurt now.
    Error,
}

/// Something that is wrong, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// The kind of trouble: `safe head`, `triggers`, `consumers`, …
    pub looked_for: String,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, on which object, with which values.
    pub finding: String,
    /// What to do.
    pub advice: String,
}

/// Looking for trouble.
impl Admin {
    /// What is wrong with the log, its consumers and the server under them; the worst first, nothing where all is well. Changes
    /// nothing. What a role may not see, it does not find; that is a finding of its own.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a patience of more than 1,000 days, and those of every question to the server.
    pub async fn doctor(&self, doctor: &Doctor) -> Result<Vec<Finding>, Error> {
        const MOST: Duration = Duration::from_secs(1_000 * 86_400);
        if doctor.patience > MOST {
            return Err(Error::new(
                ErrorKind::Config,
                format!("patience is {:?}; it must be at most {MOST:?}", doctor.patience),
            ));
        }
        let rows = self
            .ask("looking for trouble", async |client, schema| {
                statements::doctor(client, schema, doctor.patience, doctor.notifications).await
            })
            .await?;
        let mut findings: Vec<Finding> = rows.iter().map(Finding::from_row).collect();
        findings.extend(self.seen_from_here().await?);
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        Ok(findings)
    }

    /// What the server cannot know: our clock, and our version.
    async fn seen_from_here(&self) -> Result<Vec<Finding>, Error> {
        let (row, asked, answered) = self
            .ask("comparing clocks", async |client, schema| {
                // Once for the statement to be prepared, so that the second answer takes no longer than the way.
                statements::seen_from_here(client, schema).await?;
                let asked = OffsetDateTime::now_utc();
                let row = statements::seen_from_here(client, schema).await?;
                Ok((row, asked, OffsetDateTime::now_utc()))
            })
            .await?;
        let clock = clock(asked, row.get("now"), answered);
        let version = row.get::<_, Option<&str>>("library").and_then(version);
        Ok([clock, version, self.pooler()].into_iter().flatten().collect())
    }
}

impl Admin {
    /// A pooler that was found, and that nobody said is there.
    fn pooler(&self) -> Option<Finding> {
        let surprise =
            self.log.config().pooler == Pooler::Detect && self.log.connector().pooling().is_pooled();
        surprise.then(|| {
            Finding::new(
                Severity::Warning,
                "pooler",
                "a pooler gives each transaction of ours another session of the server".into(),
                "nobody can listen through it, so dispatchers poll: connect them to the server itself, or say that it is meant, \
                 with pooler = \"transaction\"",
            )
        })
    }
}

/// Is the server's clock another one than ours, beyond what the way there and back explains?
fn clock(asked: OffsetDateTime, server: OffsetDateTime, answered: OffsetDateTime) -> Option<Finding> {
    let (early, late) = (asked - server, server - answered);
    let (off, side) = if early > late { (early, "behind") } else { (late, "ahead of") };
    (off > CLOCKS_APART).then(|| {
        Finding::new(
            Severity::Warning,
            "clock",
            format!("the server's clock is {:.1} s {side} that of this machine", off.as_seconds_f64()),
            "leases and retries go by the server's and are right; times that this machine writes or shows are not: \
             let both follow the same time servers",
        )
    })
}

/// Do the functions of the schema come from a version that is newer than ours?
fn version(library: &str) -> Option<Finding> {
    (library != env!("CARGO_PKG_VERSION")).then(|| {
        Finding::new(
            Severity::Warning,
            "versions",
            format!(
                "the functions of the schema come from inorder {library}, this is {}",
                env!("CARGO_PKG_VERSION")
            ),
            "use that version here, too",
        )
    })
}

impl Finding {
    pub(crate) fn new(severity: Severity, looked_for: &str, finding: String, advice: &str) -> Self {
        Self { looked_for: looked_for.into(), severity, finding, advice: advice.into() }
    }

    fn from_row(row: &Row) -> Self {
        let severity = match row.get("severity") {
            "error" => Severity::Error,
            _ => Severity::Warning,
        };
        Self {
            looked_for: row.get("looked_for"),
            severity,
            finding: row.get("finding"),
            advice: row.get("advice"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_the_server_and_back_is_not_the_clock() {
        let at = |seconds| OffsetDateTime::UNIX_EPOCH + Span::seconds(seconds);
        assert_eq!(clock(at(100), at(100), at(100)), None);
        assert_eq!(clock(at(100), at(105), at(110)), None);
        let ahead = clock(at(100), at(107), at(101)).expect("six seconds");
        assert_eq!(ahead.finding, "the server's clock is 6.0 s ahead of that of this machine");
        let behind = clock(at(100), at(97), at(101)).expect("three seconds");
        assert_eq!(behind.finding, "the server's clock is 3.0 s behind that of this machine");
    }
}
