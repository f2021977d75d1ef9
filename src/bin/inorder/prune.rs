//! `inorder prune`: deletes old events that nobody needs any more.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use inorder::{Prune, Pruned};
use serde::Serialize;
use time::macros::format_description;
use time::{Date, OffsetDateTime, UtcOffset};

use crate::admin::Note;
use crate::failure::{Failure, tell};
use crate::interrupt::Interrupt;
use crate::options::Options;
use crate::question::Consent;
use crate::screen::Screen;
use crate::terminal::Unechoed;
use crate::words::{count, counted, plain};

/// Delete old events that nobody needs any more
///
/// First shows what would go, then asks. What goes is the beginning of the log: nothing behind the first event that is not old
/// enough, nothing that a consumer has not read, unless it is disabled or expired, no event of an open dead letter, none that an effect or
/// queued consumer has not finished, nothing above the safe head. Deletes in steps; Ctrl-C ends it after the step under way.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("age").required(true), after_help = "\
Examples:
  inorder prune --older-than 90d --dry-run
  inorder prune --older-than 90d --yes
  inorder prune --before 2024-01-01 --only cart.viewed")]
pub(crate) struct Args {
    /// Events older than this: 90d, 12h, 30m, 2w
    #[arg(long, value_name = "AGE", value_parser = age, group = "age")]
    older_than: Option<Duration>,
    /// Events recorded before this: 2024-01-31 (UTC) or 2024-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = moment, group = "age")]
    before: Option<OffsetDateTime>,
    /// Only events of these types
    #[arg(long, value_name = "TYPE", num_args = 1.., value_delimiter = ',')]
    only: Vec<String>,
    /// Only show what would go
    #[arg(long)]
    dry_run: bool,
    /// Events that go in one transaction, at most
    #[arg(long, value_name = "EVENTS", default_value_t = 10_000, value_parser = clap::value_parser!(i32).range(1..))]
    step_size: i32,
    #[command(flatten)]
    note: Note,
    #[command(flatten)]
    consent: Consent,
}

#[derive(Serialize)]
struct Answer {
    dry_run: bool,
    #[serde(flatten)]
    pruned: Pruned,
}

pub(crate) async fn run(
    args: &Args,
    options: &Options,
    screen: &Screen,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let before = match (args.before, args.older_than) {
        (Some(time), _) => time,
        (None, age) => OffsetDateTime::now_utc() - age.unwrap_or_default(),
    };
    let mut prune = Prune::before(before).step_size(args.step_size);
    if !args.only.is_empty() {
        prune = prune.only(args.only.iter().cloned());
    }
    let looking = async {
        let admin = args.note.admin(&options.connect_to_log("prune").await?);
        let would = admin.prunable(&prune).await?;
        Ok((admin, would))
    };
    let (admin, would) = interrupt.ends(looking).await?;
    if args.dry_run || would.deleted == 0 {
        return answer(screen, true, would);
    }
    if !screen.is_json() {
        for line in in_words(&would, true) {
            tell(line);
        }
    }
    let question = format!("Delete {} for ever?", counted(would.deleted.unsigned_abs(), "event"));
    interrupt.ends(args.consent.ask(&question)).await?;

    let _unechoed = Unechoed::begin();
    let bar = bar(would.deleted.unsigned_abs());
    let mut sum = Pruned::default();
    let (mut deleted, mut up_to) = (0, None);
    while !interrupt.happened() {
        sum = admin.prune_step(&prune).await?;
        deleted += sum.deleted;
        up_to = sum.up_to.max(up_to);
        bar.set_position(deleted.unsigned_abs());
        if !sum.more {
            break;
        }
    }
    bar.finish_and_clear();
    (sum.deleted, sum.up_to) = (deleted, up_to);
    let more = sum.more;
    answer(screen, false, sum)?;
    match more {
        true => Err(interrupt.failure("interrupted; run it again to go on")),
        false => Ok(()),
    }
}

fn answer(screen: &Screen, dry_run: bool, pruned: Pruned) -> Result<(), Failure> {
    if screen.is_json() {
        return Ok(screen.json(&Answer { dry_run, pruned })?);
    }
    for line in in_words(&pruned, dry_run) {
        screen.line(line)?;
    }
    Ok(())
}

fn in_words(pruned: &Pruned, would: bool) -> Vec<String> {
    let events = counted(pruned.deleted.unsigned_abs(), "event");
    let mut lines = vec![match (pruned.up_to, would) {
        (None, _) => "nothing may go".to_owned(),
        (Some(up_to), true) => format!("{events} would go, up to id {}", count(up_to)),
        (Some(up_to), false) => format!("{events} deleted, up to id {}", count(up_to)),
    }];
    lines.extend(pruned.blocked_by.iter().map(|who| plain(&format!("older ones are kept for {who}"))));
    lines
}

fn bar(events: u64) -> ProgressBar {
    let bar = ProgressBar::new(events);
    if let Ok(style) =
        ProgressStyle::with_template("{human_pos:>10} of {human_len} events {wide_bar:.cyan/dim} {eta} left")
    {
        bar.set_style(style.progress_chars("━━─"));
    }
    bar
}

pub(crate) fn age(text: &str) -> Result<Duration, String> {
    let wrong = || "an age is a number and s, m, h, d or w: 90d".to_owned();
    let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(split);
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "w" => 7 * 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let age = number.checked_mul(seconds).filter(|s| *s <= 1_000 * 366 * 86_400);
    age.map(Duration::from_secs).ok_or_else(|| "that is more than a thousand years".into())
}

pub(crate) fn moment(text: &str) -> Result<OffsetDateTime, String> {
    if let Ok(date) = Date::parse(text, format_description!("[year]-[month]-[day]")) {
        return Ok(date.midnight().assume_offset(UtcOffset::UTC));
    }
    OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339).map_err(|_| {
        "a time is a date, 2024-01-31, or a date, a time and an offset, 2024-01-31T12:00:00Z".into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_times_are_read_as_people_write_them() {
        assert_eq!(age("90d"), Ok(Duration::from_secs(90 * 86_400)));
        assert_eq!(age("12h"), Ok(Duration::from_secs(12 * 3_600)));
        for wrong in ["90", "d", "-1d", "1y", "", "99999999999999999999d", "9999999999w"] {
            assert!(age(wrong).is_err(), "{wrong}");
        }
        assert_eq!(moment("2024-01-31"), moment("2024-01-31T00:00:00Z"));
        assert_eq!(moment("2024-01-31T02:00:00+02:00"), moment("2024-01-31"));
        assert!(moment("yesterday").is_err());
    }
}
