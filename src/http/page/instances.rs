//! The processes at work, and what each runs.

use axum::extract::State as Of;
use axum::response::Html;
use maud::html;

use super::frame::Frame;
use super::table::{Table, name, number, text, wide};
use super::words::{age, moment, name_of, nothing, state};
use super::{failed, link};
use crate::http::State;
use crate::http::access::{Reader, Refused};

pub(super) async fn page(Of(shared): State, reader: Reader) -> Result<Html<String>, Refused> {
    let instances = shared.log.admin().instances().await.map_err(|e| failed(&e))?;
    let columns = [
        name("Process"),
        text("State"),
        text("Version"),
        text("Started"),
        number("Last heard of"),
        wide("Consumers"),
    ];
    let mut table = Table::new("Processes that run consumers, or follow the log", columns)
        .or("There are none: nobody runs a dispatcher.");
    for process in &instances {
        table.row(
            process.id.to_string(),
            [
                html! { span title=(process.id) { "pid " (process.pid) " on " bdi { (process.host) } } },
                state(&process.state),
                html! { (process.version) },
                moment(process.started_at),
                html! { (age(process.heartbeat_age)) " ago" },
                html! {
                    @if process.consumers.is_empty() { (nothing()) }
                    @for (n, consumer) in process.consumers.iter().enumerate() {
                        @if n > 0 { ", " }
                        a href=(link("consumer", &[("name", &consumer.name), ("instance", &consumer.instance)])) {
                            (name_of(&consumer.name, &consumer.instance, consumer.partition, consumer.partitions))
                        }
                        @if consumer.holds { span.faint { " at work" } }
                    }
                },
            ],
        );
    }
    let body = html! { h1 { "Instances" } (table) };
    Ok(Frame::new(&shared, &reader, "instances").live().around("Instances", &body))
}
