//! Numbers and durations as people read them.

use std::time::Duration;

use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};

/// `20,000`.
pub(crate) fn count(n: impl TryInto<i128>) -> String {
    let n: i128 = n.try_into().unwrap_or_default();
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
pub(crate) fn counted(n: u64, noun: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", count(n))
}

/// `0.4s`, `31s`, `4m12s`, `2h05m`, `3d04h`: the two largest units.
pub(crate) fn duration(d: Duration) -> String {
    let whole = d.as_secs();
    let (minutes, hours, days) = (whole / 60, whole / 3_600, whole / 86_400);
    match whole {
        0..10 => format!("{:.1}s", d.as_secs_f64()),
        10..60 => format!("{whole}s"),
        60..3_600 => format!("{minutes}m{:02}s", whole % 60),
        3_600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// `2024-01-31 12:00:00`, in UTC.
pub(crate) fn moment(time: OffsetDateTime) -> String {
    let format = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]");
    time.to_offset(UtcOffset::UTC).format(format).unwrap_or_default()
}

/// The text without line breaks and whatever else would move a terminal's cursor or change its colours.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas_and_nouns_a_plural() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(20_000), "20,000");
        assert_eq!(count(i64::MIN), "-9,223,372,036,854,775,808");
        assert_eq!(counted(1, "event"), "1 event");
        assert_eq!(counted(1_000_000, "event"), "1,000,000 events");
    }

    #[test]
    fn plain_text_is_one_line_and_moves_no_cursor() {
        assert_eq!(plain("a\r\nb\u{1b}[31mc\u{9b}"), "a  b [31mc ");
    }

    #[test]
    fn durations_show_their_two_largest_units() {
        let shown: Vec<String> =
            [0, 400, 31_000, 252_000, 7_500_000, 273_600_000].map(Duration::from_millis).map(duration).into();
        assert_eq!(shown, ["0.0s", "0.4s", "31s", "4m12s", "2h05m", "3d04h"]);
    }
}
