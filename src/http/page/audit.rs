//! What operators did.

use axum::extract::State as Of;
use axum::response::Html;
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::Value;

use super::frame::Frame;
use super::table::{Table, kind, text, wide};
use super::words::{moment, nothing};
use super::{Asked, failed, filled, given, link};
use crate::admin::{Admin, AuditRow, AuditRows};
use crate::http::State;
use crate::http::access::{Reader, Refused};

/// Rows on a page.
const PAGE: i32 = 50;

#[derive(Deserialize)]
pub(super) struct Which {
    #[serde(default)]
    consumer: String,
    #[serde(default)]
    action: String,
    #[serde(default)]
    by: String,
    #[serde(default, deserialize_with = "filled")]
    before: Option<i64>,
}

pub(super) async fn page(
    Of(shared): State,
    reader: Reader,
    Asked(which): Asked<Which>,
) -> Result<Html<String>, Refused> {
    let mut wanted = AuditRows::any().limit(PAGE);
    if let Some(consumer) = given(&which.consumer) {
        wanted = wanted.of(consumer);
    }
    if let Some(action) = given(&which.action) {
        wanted = wanted.action(action);
    }
    if let Some(by) = given(&which.by) {
        wanted = wanted.by(by);
    }
    if let Some(before) = which.before {
        wanted = wanted.before(before);
    }
    let rows = shared.log.admin().audit(&wanted).await.map_err(|e| failed(&e))?;
    let filters = [("consumer", which.consumer.as_str()), ("action", &which.action), ("by", &which.by)];
    let older = rows.last().filter(|_| i32::try_from(rows.len()) == Ok(PAGE)).map(|last| last.id.to_string());
    let body = html! {
        h1 { "Audit" }
        form.filter method="get" action="audit" {
            label { "Consumer" input name="consumer" value=(which.consumer); }
            label { "Action" input name="action" value=(which.action) placeholder="skip_poison"; }
            label { "By" input name="by" value=(which.by); }
            button { "Show" }
        }
        (history("What operators did, the newest first", &rows, true))
        p.ways {
            @if which.before.is_some() { a href=(link("audit", &filters)) { "Newest" } " " }
            @if let Some(older) = older { a href=(link("audit", &[&filters[..], &[("before", &older)]].concat())) rel="next" { "Older" } }
        }
    };
    Ok(Frame::new(&shared, &reader, "audit").live().around("Audit", &body))
}

/// Actions as a table.
pub(super) fn history(caption: &str, rows: &[AuditRow], with_consumers: bool) -> Markup {
    let mut columns = vec![text("When"), text("Who"), kind("Action")];
    if with_consumers {
        columns.push(text("Consumer"));
    }
    columns.extend([text("Why"), wide("What changed")]);
    let mut table = Table::new(caption, columns).or("Nothing.");
    for row in rows {
        let mut cells = vec![moment(row.at), who(row), html! { code { (row.action) } }];
        if with_consumers {
            cells.push(html! {
                @match &row.consumer {
                    Some(name) => {
                        a href=(link("consumer", &[("name", name), ("instance", row.instance.as_deref().unwrap_or_default())])) { bdi { (name) } }
                    },
                    None => (nothing()),
                }
            });
        }
        cells.push(html! { @match &row.why { Some(why) => bdi { (why) }, None => (nothing()) } });
        cells.push(changed(&row.before, &row.after));
        table.row(row.id.to_string(), cells);
    }
    html! { (table) }
}

fn who(row: &AuditRow) -> Markup {
    html! {
        bdi { (row.by) }
        @if row.by != row.db_user { span.faint { " as " bdi { (row.db_user) } } }
    }
}

/// Column by column, where it is not as before.
fn changed(before: &Value, after: &Value) -> Markup {
    let none = serde_json::Map::new();
    let (old, new) = (before.as_object().unwrap_or(&none), after.as_object().unwrap_or(&none));
    let names = old.keys().chain(new.keys().filter(|name| !old.contains_key(*name)));
    let different: Vec<_> = names
        .filter(|name| old.get(*name) != new.get(*name))
        .filter(|name| !matches!(name.as_str(), "updated_at" | "seen_at"))
        .collect();
    let value = |of: Option<&Value>| match of {
        None | Some(Value::Null) => nothing(),
        Some(Value::String(text)) => html! { span.excerpt { (text) } },
        Some(other) => html! { span.excerpt { (other.to_string()) } },
    };
    html! {
        @if different.is_empty() {
            (nothing())
        } @else if old.is_empty() || new.is_empty() {
            details {
                summary { @if old.is_empty() { "new" } @else { "removed" } }
                dl.changes { @for name in different { dt { (name) } dd { (value(old.get(name).or_else(|| new.get(name)))) } } }
            }
        } @else {
            details {
                summary { @for (n, name) in different.iter().enumerate() { @if n > 0 { ", " } (name) } }
                dl.changes { @for name in different { dt { (name) } dd { (value(old.get(name))) " → " (value(new.get(name))) } } }
            }
        }
    }
}

/// What was done just now, as the audit has it.
pub(super) async fn done(admin: &Admin, did: Option<i64>) -> Markup {
    let Some(before) = did.and_then(|id| id.checked_add(1)) else { return html! {} };
    match admin.audit(&AuditRows::any().before(before).limit(1)).await.as_deref() {
        Ok([row]) if Some(row.id) == did => html! {
            p.notice.good role="status" {
                "Done: " code { (row.action) }
                @if let Some(name) = &row.consumer { " of " bdi { (name) } }
                ", by " bdi { (row.by) } " at " (moment(row.at))
                @if let Some(why) = &row.why { ", because: " bdi { (why) } }
            }
        },
        _ => html! {},
    }
}
