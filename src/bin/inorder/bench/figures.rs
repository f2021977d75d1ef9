//! What was measured, put into numbers: medians and ranges, as a table and as JSON.

use std::fmt;

use console::Style;
use serde_json::{Value, json};

use crate::failure::tell;
use crate::screen::Screen;
use crate::table::{Side, Table};
use crate::words::count;

/// What a case must reach.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bar {
    None,
    RatioAtLeast(f64),
    RatioAtMost(f64),
    OursAtMost(f64),
}

/// One thing measured several times, each time beside its floor.
#[derive(Debug)]
pub(crate) struct Case {
    name: String,
    unit: &'static str,
    bar: Bar,
    /// Ours and the floor.
    pairs: Vec<(f64, f64)>,
    /// The smallest share of what was appended that was delivered while the clock ran.
    kept_up: Option<f64>,
}

/// From which share on a dispatcher keeps up.
const KEEPS_UP: f64 = 0.95;

impl Case {
    pub(crate) fn new(name: impl Into<String>, unit: &'static str, bar: Bar) -> Self {
        Self { name: name.into(), unit, bar, pairs: Vec::new(), kept_up: None }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn add(&mut self, ours: f64, floor: f64) {
        let ratio = ratio(ours, floor).map_or("–".into(), figure);
        tell(format_args!("  {}: ours {}, floor {}, ratio {ratio}", self.name, figure(ours), figure(floor)));
        self.pairs.push((ours, floor));
    }

    pub(crate) fn kept_up(&mut self, share: f64) {
        self.kept_up = Some(self.kept_up.map_or(share, |least| least.min(share)));
    }

    fn ours(&self) -> Spread {
        Spread::of(self.pairs.iter().map(|p| p.0))
    }

    fn floor(&self) -> Spread {
        Spread::of(self.pairs.iter().map(|p| p.1))
    }

    /// `None` where the floor is nothing.
    fn ratio(&self) -> Option<Spread> {
        let ratios: Option<Vec<f64>> = self.pairs.iter().map(|&(ours, floor)| ratio(ours, floor)).collect();
        ratios.map(|ratios| Spread::of(ratios.into_iter()))
    }

    /// `None` where there is no bar.
    fn is_met(&self) -> Option<bool> {
        let ratio = self.ratio().map(|r| r.median);
        let reached = match self.bar {
            Bar::None => return None,
            Bar::RatioAtLeast(bar) => ratio.is_some_and(|r| r >= bar),
            Bar::RatioAtMost(bar) => ratio.is_some_and(|r| r <= bar),
            Bar::OursAtMost(bar) => self.ours().median <= bar,
        };
        Some(reached && self.kept_up.is_none_or(|share| share >= KEEPS_UP))
    }

    fn to_json(&self) -> Value {
        let (ours, floor, ratio) = (self.ours(), self.floor(), self.ratio());
        let mut case = json!({
            "case": self.name,
            "ours": round(ours.median),
            "floor": round(floor.median),
            "ratio": ratio.map(|r| round(r.median)),
            "unit": self.unit,
            "ours_range": ours.range(),
            "floor_range": floor.range(),
            "ratio_range": ratio.map(Spread::range),
            "repetitions": self.pairs.len(),
        });
        match self.bar {
            Bar::None => {}
            Bar::RatioAtLeast(bar) => case["bar"] = json!({"ratio_at_least": bar}),
            Bar::RatioAtMost(bar) => case["bar"] = json!({"ratio_at_most": bar}),
            Bar::OursAtMost(bar) => case["bar"] = json!({"ours_at_most": bar}),
        }
        if let Some(met) = self.is_met() {
            case["met"] = json!(met);
        }
        if let Some(share) = self.kept_up {
            case["kept_up"] = json!(round(share));
        }
        case
    }
}

fn ratio(ours: f64, floor: f64) -> Option<f64> {
    (floor > 0.0).then(|| ours / floor)
}

/// The middle, and how far the rest lies around it.
#[derive(Clone, Copy, Debug)]
struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let (Some(&least), Some(&most)) = (values.first(), values.last()) else {
            return Self { least: 0.0, median: 0.0, most: 0.0 };
        };
        Self { least, median: percentile(&values, 0.5), most }
    }

    fn range(self) -> Value {
        json!([round(self.least), round(self.most)])
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} – {})", figure(self.median), figure(self.least), figure(self.most))
    }
}

/// The value below which that share of the sorted values lies, halfway between two where it falls between them.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    #[expect(clippy::cast_precision_loss, reason = "a count of measurements")]
    let place = last as f64 * share;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the slice")]
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * place.fract()
}

/// Four digits are more than a measurement is good for.
fn round(value: f64) -> f64 {
    if value.abs() >= 1_000.0 { value.round() } else { (value * 1_000.0).round() / 1_000.0 }
}

fn figure(value: f64) -> String {
    if value.abs() < 10.0 {
        return format!("{value:.3}");
    }
    if value.abs() < 1_000.0 {
        return format!("{value:.1}");
    }
    #[expect(clippy::cast_possible_truncation, reason = "rounded, and far from the ends")]
    count(value.round() as i64)
}

/// What the measurements were made on.
#[derive(Debug)]
pub(crate) struct About {
    pub(crate) server: String,
    pub(crate) fsync: bool,
    pub(crate) synchronous_commit: String,
    pub(crate) shared_buffers: String,
}

/// All that one call measured.
#[derive(Debug)]
pub(crate) struct Sheet {
    what: &'static str,
    about: About,
    cases: Vec<(&'static str, Case)>,
}

impl Sheet {
    pub(crate) fn new(what: &'static str, about: About) -> Self {
        Self { what, about, cases: Vec::new() }
    }

    pub(crate) fn add(&mut self, bench: &'static str, cases: Vec<Case>) {
        self.cases.extend(cases.into_iter().map(|case| (bench, case)));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.cases.is_empty()
    }

    pub(crate) fn to_json(&self) -> Value {
        let cases: Vec<Value> = self
            .cases
            .iter()
            .map(|(bench, case)| {
                let mut case = case.to_json();
                if *bench != self.what {
                    case["bench"] = json!(bench);
                }
                case
            })
            .collect();
        let About { server, fsync, synchronous_commit, shared_buffers } = &self.about;
        json!({
            "bench": self.what,
            "cases": cases,
            "ratio": "median of the ratios of the pairs",
            "version": env!("CARGO_PKG_VERSION"),
            "server": server,
            "fsync": fsync,
            "synchronous_commit": synchronous_commit,
            "shared_buffers": shared_buffers,
            "processors": processors(),
        })
    }

    /// As a table.
    pub(crate) fn lines(&self, screen: &Screen) -> Vec<String> {
        let About { server, fsync, synchronous_commit, shared_buffers } = &self.about;
        let mut lines = vec![
            format!(
                "inorder {} on PostgreSQL {server}, {} processors",
                env!("CARGO_PKG_VERSION"),
                processors()
            ),
            format!(
                "fsync {}, synchronous_commit {synchronous_commit}, shared_buffers {shared_buffers}",
                if *fsync { "on" } else { "off" }
            ),
        ];
        let left = |title| (title, Side::Left);
        let mut table = Table::new(["CASE", "UNIT", "OURS", "FLOOR", "RATIO"].map(left), "BAR");
        for case in &self.cases {
            let (cells, bar) = row(case);
            table.row(cells.map(|cell| (cell, Style::new())), &bar);
        }
        lines.extend(table.lines(screen));
        lines.push("median (least – most); the ratio is the median of the ratios of the pairs".into());
        lines
    }
}

fn row((bench, case): &(&'static str, Case)) -> ([String; 5], String) {
    let bar = match case.bar {
        Bar::None => String::new(),
        Bar::RatioAtLeast(bar) => format!("ratio at least {bar}"),
        Bar::RatioAtMost(bar) => format!("ratio at most {bar}"),
        Bar::OursAtMost(bar) => format!("ours at most {bar}"),
    };
    let met = match case.is_met() {
        Some(true) => ": met",
        Some(false) => ": MISSED",
        None => "",
    };
    let kept_up = case.kept_up.map_or(String::new(), |share| format!(" (delivered meanwhile: {share:.3})"));
    let cells = [
        format!("{bench}: {}", case.name),
        case.unit.to_owned(),
        case.ours().to_string(),
        case.floor().to_string(),
        case.ratio().map_or("–".to_owned(), |ratio| ratio.to_string()),
    ];
    (cells, format!("{bar}{met}{kept_up}").trim().to_owned())
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(0, std::num::NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_the_median_of_the_ratios_of_the_pairs() {
        let mut case = Case::new("c", "events/s", Bar::RatioAtLeast(0.9));
        // A machine that gets twice as fast in between.
        for (ours, floor) in [(95.0, 100.0), (180.0, 200.0), (80.0, 100.0)] {
            case.add(ours, floor);
        }
        let json = case.to_json();
        assert_eq!(
            (&json["ours"], &json["floor"], &json["ratio"]),
            (&json!(95.0), &json!(100.0), &json!(0.9))
        );
        assert_eq!(json["ratio_range"], json!([0.8, 0.95]));
        assert_eq!(json["met"], json!(true));
        case.kept_up(0.99);
        case.kept_up(0.90);
        assert_eq!(case.to_json()["met"], json!(false), "it did not keep up");
    }

    #[test]
    fn a_floor_of_nothing_has_no_ratio() {
        let mut case = Case::new("c", "bytes", Bar::OursAtMost(1_024.0));
        case.add(100.0, 0.0);
        assert_eq!((&case.to_json()["ratio"], &case.to_json()["met"]), (&Value::Null, &json!(true)));
    }

    #[test]
    fn percentiles_lie_between_the_values() {
        assert!((percentile(&[1.0, 2.0, 3.0, 4.0], 0.5) - 2.5).abs() < 1e-9);
        assert!((percentile(&[1.0], 0.99) - 1.0).abs() < 1e-9);
        assert_eq!(figure(1_234_567.8), "1,234,568");
    }
}
