//! Numbers, ages, times and states as people read them, as pieces of a page.

use std::time::Duration;

use maud::{Markup, html};
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};

use crate::admin::{ConsumerStatus, DeadLetterState, HandoffState, InstanceState, LedgerStatus, Progress};

/// `20,000`.
pub(super) fn count(n: i64) -> String {
    let digits = n.unsigned_abs().to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3 + 1);
    if n < 0 {
        text.push('-');
    }
    for (i, digit) in digits.char_indices() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 event`, `20,000 events`.
pub(super) fn counted(n: i64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

/// `0.4 s`, `31 s`, `4 min 12 s`, `2 h 5 min`, `3 d 4 h`: the two largest units.
pub(super) fn age(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default().as_secs();
    let (minutes, hours, days) = (whole / 60, whole / 3_600, whole / 86_400);
    match whole {
        0..10 => format!("{:.1} s", seconds.max(0.0)),
        10..60 => format!("{whole} s"),
        60..3_600 => format!("{minutes} min {} s", whole % 60),
        3_600..86_400 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{} d {} h", count(i64::try_from(days).unwrap_or(i64::MAX)), hours % 24),
    }
}

/// A rate, as exact as it is of use: `0.4`, `31`, `12,000`.
pub(super) fn rate(per_second: f64) -> String {
    if per_second > 0.0 && per_second < 9.95 {
        return format!("{per_second:.1}");
    }
    #[expect(clippy::cast_possible_truncation, reason = "it saturates")]
    count(per_second.round() as i64)
}

/// A point in time, in UTC, as a person and as a program read it.
pub(super) fn moment(at: OffsetDateTime) -> Markup {
    let utc = at.to_offset(UtcOffset::UTC);
    let format = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]");
    html! {
        time datetime=(utc.format(&Rfc3339).unwrap_or_default()) { (utc.format(format).unwrap_or_default()) }
    }
}

/// What is not there.
pub(super) fn nothing() -> Markup {
    html! { span.faint.nothing { "–" } }
}

/// How something stands: a word, and a colour beside it.
pub(super) trait State {
    /// The word.
    fn word(&self) -> &'static str;
    /// `bad`, `warn`, `good` or `quiet`.
    fn tone(&self) -> &'static str;
}

/// The mark of a state.
pub(super) fn state(state: &impl State) -> Markup {
    html! { span.state.(state.tone()) { (state.word().replace('_', " ")) } }
}

impl State for ConsumerStatus {
    fn word(&self) -> &'static str {
        self.as_str()
    }

    fn tone(&self) -> &'static str {
        match self {
            Self::Dead => "bad",
            Self::Waiting | Self::Expired => "warn",
            Self::Idle => "good",
            _ => "quiet",
        }
    }
}

impl State for DeadLetterState {
    fn word(&self) -> &'static str {
        self.as_str()
    }

    fn tone(&self) -> &'static str {
        match self {
            Self::Open => "bad",
            Self::RetryRequested => "warn",
            Self::Resolved => "good",
            _ => "quiet",
        }
    }
}

impl State for LedgerStatus {
    fn word(&self) -> &'static str {
        self.as_str()
    }

    fn tone(&self) -> &'static str {
        match self {
            Self::Dead => "bad",
            Self::Pending | Self::InProgress => "warn",
            Self::Done => "good",
            _ => "quiet",
        }
    }
}

impl State for HandoffState {
    fn word(&self) -> &'static str {
        self.as_str()
    }

    fn tone(&self) -> &'static str {
        match self {
            Self::Unfinished => "warn",
            Self::RanDirectly | Self::Delivery => "good",
            _ => "quiet",
        }
    }
}

impl State for InstanceState {
    fn word(&self) -> &'static str {
        self.as_str()
    }

    fn tone(&self) -> &'static str {
        match self {
            Self::Awake | Self::Sleeping => "good",
            Self::Silent => "warn",
            _ => "quiet",
        }
    }
}

/// A state row by name: `cache @ node-1`, `search-index 3/8`.
pub(super) fn name_of(name: &str, instance: &str, partition: i32, partitions: i32) -> Markup {
    html! {
        bdi { (name) }
        @if !instance.is_empty() { span.faint { " @ " bdi { (instance) } } }
        @if partitions > 1 { span.faint title={ "partition " (partition) " of " (partitions) } { " " (partition) "/" (partitions) } }
    }
}

/// What stands in backticks is code.
pub(super) fn with_code(text: &str) -> Markup {
    html! {
        @for (n, part) in text.split('`').enumerate() {
            @if n % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

/// How far behind: `31 s`.
pub(super) fn behind(row: &Progress) -> Markup {
    match row.lag_seconds {
        s if s > 0.0 => html! { (age(s)) },
        _ => nothing(),
    }
}

/// JSON text with line breaks and indents between its tokens, which stay as they are.
pub(super) fn indented(json: &str) -> String {
    let mut text = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    let mut chars = json.chars().peekable();
    let line = |text: &mut String, depth: usize| {
        text.push('\n');
        text.push_str(&"  ".repeat(depth.min(32)));
    };
    while let Some(c) = chars.next() {
        if in_string {
            text.push(c);
            in_string = escaped || c != '"';
            escaped = c == '\\' && !escaped;
            continue;
        }
        match c {
            '{' | '[' => {
                text.push(c);
                while chars.next_if(char::is_ascii_whitespace).is_some() {}
                if let Some(end) = chars.next_if(|c| matches!(c, '}' | ']')) {
                    text.push(end);
                } else {
                    depth += 1;
                    line(&mut text, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut text, depth);
                text.push(c);
            }
            ',' => {
                text.push(c);
                line(&mut text, depth);
            }
            ':' => text.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            '"' => {
                in_string = true;
                text.push(c);
            }
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas_and_ages_their_two_largest_units() {
        assert_eq!([0, 999, 20_000, -1_234_567].map(count), ["0", "999", "20,000", "-1,234,567"]);
        assert_eq!(counted(1, "event"), "1 event");
        let ages = [0.4, 31.0, 252.0, 7_500.0, 273_600.0, -1.0, f64::NAN].map(age);
        assert_eq!(ages, ["0.4 s", "31 s", "4 min 12 s", "2 h 5 min", "3 d 4 h", "0.0 s", "0.0 s"]);
        assert_eq!([0.0, 0.44, 31.4, 12_000.0].map(rate), ["0", "0.4", "31", "12,000"]);
    }

    #[test]
    fn json_is_broken_into_lines_and_not_a_token_is_changed() {
        let text = indented(r#"{"a":[1.50,12345678901234567890123],"b":{ }}"#);
        let lines =
            ["{", "  \"a\": [", "    1.50,", "    12345678901234567890123", "  ],", "  \"b\": {}", "}"];
        assert_eq!(text, lines.join("\n"));
        assert_eq!(indented(r#"{"c":"x, {\"y\":[]}"}"#), "{\n  \"c\": \"x, {\\\"y\\\":[]}\"\n}");
        assert_eq!(indented(r#""a\\""#), r#""a\\""#);
    }
}
