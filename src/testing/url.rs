//! Pointing a connection string at another database.

use std::fmt::Write;

/// The same server and account, another database. Takes both forms that PostgreSQL's clients take: a URL, and `key=value` pairs.
pub(super) fn with_database(url: &str, database: &str) -> String {
    let Some(scheme_end) = scheme_end(url) else {
        // In `key=value` form the last mention wins.
        return format!("{url} dbname='{}'", database.replace('\\', "\\\\").replace('\'', "\\'"));
    };
    let (scheme, rest) = url.split_at(scheme_end);
    let authority_end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(authority_end);
    let query = rest.find('?').map_or("", |at| &rest[at..]);
    format!("{scheme}{authority}/{}{query}", percent_encoded(database))
}

fn scheme_end(url: &str) -> Option<usize> {
    ["postgres://", "postgresql://"].into_iter().find(|scheme| url.starts_with(scheme)).map(str::len)
}

fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_database_changes() {
        for (url, changed) in [
            ("postgres://localhost", "postgres://localhost/a%20b"),
            ("postgres://me:pw@h:5433/old?sslmode=disable", "postgres://me:pw@h:5433/a%20b?sslmode=disable"),
            ("postgresql://h?application_name=x", "postgresql://h/a%20b?application_name=x"),
            ("host=h dbname=old", "host=h dbname=old dbname='a b'"),
        ] {
            assert_eq!(with_database(url, "a b"), changed);
            let config: tokio_postgres::Config = changed.parse().unwrap();
            assert_eq!(config.get_dbname(), Some("a b"), "{changed}");
        }
    }
}
