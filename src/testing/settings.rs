//! What a throwaway server is configured with.

use std::fmt::Write;

use super::Error;

/// Loses everything when the machine loses power, which a throwaway server may.
const FAST: &[(&str, &str)] = &[("fsync", "off"), ("synchronous_commit", "off"), ("full_page_writes", "off")];

/// A commit is on disk when it is acknowledged, and memory is sized as for production.
const DURABLE: &[(&str, &str)] = &[
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("full_page_writes", "on"),
    ("shared_buffers", "512MB"),
    ("wal_buffers", "64MB"),
    ("max_wal_size", "4GB"),
    ("min_wal_size", "1GB"),
    ("checkpoint_timeout", "15min"),
    ("checkpoint_completion_target", "0.9"),
];

const ALWAYS: &[(&str, &str)] = &[
    // Only loopback: the superuser needs no password.
    ("unix_socket_directories", ""),
    ("timezone", "UTC"),
    ("log_timezone", "UTC"),
    // Everything to standard error, which is our log file.
    ("log_destination", "stderr"),
    ("logging_collector", "off"),
    ("log_line_prefix", "%m [%p] %q%d %a: "),
];

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) durable: bool,
    pub(super) max_connections: u32,
    pub(super) max_prepared_transactions: u32,
    pub(super) more: Vec<(String, String)>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { durable: false, max_connections: 200, max_prepared_transactions: 0, more: Vec::new() }
    }
}

impl Settings {
    /// Lines for the end of `postgresql.conf`, where the last mention of a setting wins.
    pub(super) fn lines(&self) -> Result<String, Error> {
        let mut lines = String::from("\n# a throwaway server\n");
        for (name, value) in ALWAYS.iter().chain(if self.durable { DURABLE } else { FAST }) {
            push(&mut lines, name, value)?;
        }
        push(&mut lines, "max_connections", &self.max_connections.to_string())?;
        push(&mut lines, "max_prepared_transactions", &self.max_prepared_transactions.to_string())?;
        for (name, value) in &self.more {
            push(&mut lines, name, value)?;
        }
        Ok(lines)
    }
}

fn push(lines: &mut String, name: &str, value: &str) -> Result<(), Error> {
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c));
    if !is_name || value.contains(['\n', '\r', '\0']) {
        return Err(Error::failed(format!(
            "setting {name:?} = {value:?} does not fit into postgresql.conf; a name has letters, digits, `_` and `.`, \
             a value is one line"
        )));
    }
    let value = value.replace('\\', "\\\\").replace('\'', "''");
    // Writing to a string cannot fail.
    let _ = writeln!(lines, "{name} = '{value}'");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &str) -> Settings {
        Settings { more: vec![(name.to_owned(), value.to_owned())], ..Settings::default() }
    }

    #[test]
    fn the_callers_settings_come_last_and_are_quoted() {
        let lines = with("log_line_prefix", r"it's \ %p").lines().unwrap();
        assert!(lines.ends_with("log_line_prefix = 'it''s \\\\ %p'\n"), "{lines}");
    }

    #[test]
    fn a_setting_that_would_become_two_lines_is_refused() {
        for (name, value) in [("", "1"), ("a b", "1"), ("a", "1\nfsync = off")] {
            assert!(with(name, value).lines().is_err(), "{name:?} {value:?}");
        }
    }
}
