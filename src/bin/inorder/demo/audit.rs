//! The audit at the end: what the log holds, beside what the handlers wrote. Computed in SQL, from the tables alone.

use console::Style;
use inorder::Inorder;
use serde::Serialize;
use tokio_postgres::Row;

use super::shop::sql_failed;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::table::{Side, Table};
use crate::words::{count, counted};

#[derive(Debug, Serialize)]
pub(super) struct Audit {
    /// Is everything as it must be?
    pub(super) ok: bool,
    pub(super) events: i64,
    /// Ids below the highest that belong to no event: their transactions were rolled back.
    pub(super) holes: i64,
    pub(super) orders: i64,
    /// Orders without their event, and events without their order.
    pub(super) orders_wrong: i64,
    pub(super) consumers: Vec<Consumer>,
    pub(super) effects: Vec<Effect>,
}

#[derive(Debug, Serialize)]
pub(super) struct Consumer {
    pub(super) name: String,
    pub(super) delivered: i64,
    pub(super) missed: i64,
    pub(super) out_of_order: i64,
    pub(super) too_many: i64,
    pub(super) skipped: i64,
}

/// Rows of a table that differ from a fold over the events.
#[derive(Debug, Serialize)]
pub(super) struct Effect {
    pub(super) table: &'static str,
    pub(super) wrong: i64,
}

impl Audit {
    pub(super) async fn take(log: &Inorder, skipped: i64) -> Result<Self, Failure> {
        let failed = |e| sql_failed("auditing", &e);
        let client = log.get().await?;
        let consumers = client.query(include_str!("audit_consumers.sql"), &[]).await.map_err(failed)?;
        let effects = client.query_one(include_str!("audit_effects.sql"), &[]).await.map_err(failed)?;
        Ok(Self::new(consumers.iter().map(Consumer::from_row).collect(), &effects, skipped))
    }

    fn new(consumers: Vec<Consumer>, row: &Row, skipped: i64) -> Self {
        let effect = |table, column| Effect { table, wrong: row.get(column) };
        let mut audit = Self {
            ok: false,
            events: row.get("events"),
            holes: row.get("holes"),
            orders: row.get("orders"),
            orders_wrong: row.get("orders_wrong"),
            consumers,
            effects: vec![
                effect("orders_by_customer", "customers_wrong"),
                effect("revenue_per_day", "days_wrong"),
                effect("receipts", "receipts_wrong"),
            ],
        };
        audit.ok = audit.events > 0
            && audit.orders_wrong == 0
            && audit.consumers.len() == 3
            && audit.consumers.iter().all(|c| c.is_right(audit.events))
            && audit.consumers.iter().map(|c| c.skipped).sum::<i64>() == skipped
            && audit.effects.iter().all(|e| e.wrong == 0);
        audit
    }

    /// For people.
    pub(super) fn lines(&self, screen: &Screen) -> Vec<String> {
        let columns = [
            ("CONSUMER", Side::Left),
            ("DELIVERED", Side::Right),
            ("SKIPPED", Side::Right),
            ("MISSED", Side::Right),
            ("OUT OF ORDER", Side::Right),
            ("TOO MANY", Side::Right),
        ];
        let mut table = Table::new(columns, "");
        for c in &self.consumers {
            let faults = [c.missed, c.out_of_order, c.too_many].map(|n| (count(n), fault(n)));
            let cells =
                [c.name.clone(), count(c.delivered), count(c.skipped)].map(|text| (text, Style::new()));
            table.row(cells.into_iter().chain(faults), "");
        }
        let mut lines = table.lines(screen);
        lines.push(String::new());
        let mut check = |wrong: i64, right: String, not: String| {
            let (mark, style, words) = match wrong {
                0 => ("✔", Style::new().green(), right),
                _ => ("✘", Style::new().red().bold(), not),
            };
            lines.push(format!("{} {words}", screen.styled(&style, mark)));
        };
        check(
            self.orders_wrong,
            format!(
                "{} in the shop, {} in the log, one for one",
                counted_i64(self.orders, "order"),
                counted_i64(self.events, "event")
            ),
            format!("{} without its event, or the other way round", counted_i64(self.orders_wrong, "order")),
        );
        for effect in &self.effects {
            check(
                effect.wrong,
                format!("{} equals what a fold over the events gives", effect.table),
                format!(
                    "{}: {} from what a fold over the events gives",
                    effect.table,
                    differing(effect.wrong)
                ),
            );
        }
        lines
    }
}

impl Consumer {
    fn from_row(row: &Row) -> Self {
        Self {
            name: row.get("name"),
            delivered: row.get("delivered"),
            missed: row.get("missed"),
            out_of_order: row.get("out_of_order"),
            too_many: row.get("too_many"),
            skipped: row.get("skipped"),
        }
    }

    fn is_right(&self, events: i64) -> bool {
        (self.missed, self.out_of_order, self.too_many) == (0, 0, 0)
            && self.delivered + self.skipped == events
    }
}

fn fault(n: i64) -> Style {
    if n == 0 { Style::new().green() } else { Style::new().red().bold() }
}

fn counted_i64(n: i64, noun: &str) -> String {
    counted(n.unsigned_abs(), noun)
}

fn differing(rows: i64) -> String {
    match rows {
        1 => "1 row differs".into(),
        n => format!("{} rows differ", count(n)),
    }
}
