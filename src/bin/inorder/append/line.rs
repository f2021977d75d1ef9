//! One line of a file of events.

use inorder::NewEvent;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::Ids;

/// Names in this space are lines: their number, a blank, their text.
const LINES: Uuid = Uuid::from_u128(0x31e9_a5d1_7b0c_4c55_9a7e_6e0f_2f0d_11ce);

/// The fields. Payload and metadata stay text: what is appended is what the line says, byte for byte.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields<'a> {
    event_id: Option<Uuid>,
    event_type: String,
    stream_type: Option<String>,
    stream_id: Option<String>,
    #[serde(borrow, default, deserialize_with = "also_null")]
    payload: Option<&'a RawValue>,
    payload_text: Option<String>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    metadata_text: Option<String>,
    tenant_id: Option<String>,
    schema_version: Option<i32>,
    correlation_id: Option<Uuid>,
    causation_id: Option<Uuid>,
    created_by: Option<String>,
    // What a log adds, and `inorder tail --json` prints: another log adds its own.
    #[serde(rename = "id")]
    _id: Option<IgnoredAny>,
    #[serde(rename = "stream_version")]
    _stream_version: Option<IgnoredAny>,
    #[serde(rename = "recorded_at")]
    _recorded_at: Option<IgnoredAny>,
}

/// The event that a line says; or what is wrong with the line, in words.
pub(super) fn parse(number: u64, text: &[u8], ids: Option<Ids>) -> Result<NewEvent, String> {
    let fields: Fields<'_> = serde_json::from_slice(text).map_err(|e| in_words(&e))?;
    let event_id = match (fields.event_id, ids) {
        (Some(event_id), _) => event_id,
        (None, Some(Ids::Derive)) => {
            Uuid::new_v5(&LINES, &[number.to_string().as_bytes(), b" ", text].concat())
        }
        (None, Some(Ids::New)) => Uuid::now_v7(),
        (None, None) => {
            return Err("it has no event_id, without which a second run would append it again; give each line one, or say --ids \
                 derive or --ids new"
                .into());
        }
    };
    let payload =
        text_of("payload", fields.payload, fields.payload_text)?.ok_or("missing field `payload`")?;
    let mut event = NewEvent::from_json(fields.event_type, payload).event_id(event_id);
    event = match (fields.stream_type, fields.stream_id) {
        (Some(kind), Some(id)) => event.in_stream(kind, id),
        (None, None) => event,
        (Some(_), None) => return Err("it has a stream_type and no stream_id; give both or neither".into()),
        (None, Some(_)) => return Err("it has a stream_id and no stream_type; give both or neither".into()),
    };
    if let Some(metadata) = text_of("metadata", fields.metadata, fields.metadata_text)? {
        event = event.metadata_json(metadata);
    }
    if let Some(tenant_id) = fields.tenant_id {
        event = event.tenant(tenant_id);
    }
    if let Some(version) = fields.schema_version {
        event = event.schema_version(version);
    }
    if let Some(id) = fields.correlation_id {
        event = event.correlation(id);
    }
    if let Some(id) = fields.causation_id {
        event = event.causation(id);
    }
    if let Some(who) = fields.created_by {
        event = event.created_by(who);
    }
    Ok(event)
}

/// A payload may be `null`, which is something.
fn also_null<'a, D: serde::Deserializer<'a>>(payload: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(payload).map(Some)
}

/// JSON text: as it stands in the line, or in a string, where it has line breaks.
fn text_of(field: &str, json: Option<&RawValue>, text: Option<String>) -> Result<Option<String>, String> {
    match (json, text) {
        (Some(_), Some(_)) => Err(format!("it has a {field} and a {field}_text; give one of them")),
        (Some(json), None) => Ok(Some(json.get().to_owned())),
        (None, text) => Ok(text),
    }
}

/// The parser's words; it sees one line, so that of its places only the column says something.
fn in_words(error: &serde_json::Error) -> String {
    let words = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    match words.strip_suffix(&place) {
        Some(words) if error.is_data() => words.to_owned(),
        Some(words) => format!("{words} at column {}", error.column()),
        None => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "f0e58b37-c935-5d44-a0f2-f7af7ae3d9c5";

    fn refusal(text: &str) -> String {
        parse(7, text.as_bytes(), None).err().unwrap_or_default()
    }

    #[test]
    fn a_payload_is_kept_byte_for_byte() {
        let text = format!(r#"{{"event_id":"{ID}","event_type":"t","payload": {{"b" : 1.50,"a":1e2}} }}"#);
        let event = format!("{:?}", parse(1, text.as_bytes(), None).unwrap());
        assert!(event.contains(r#""{\"b\" : 1.50,\"a\":1e2}""#), "{event}");
    }

    #[test]
    fn what_would_not_fit_into_a_line_stands_in_a_string() {
        let text = format!(
            r#"{{"event_id":"{ID}","event_type":"t","payload_text":" {{\n}} ","metadata_text":"{{\r\n}}"}}"#
        );
        let event = format!("{:?}", parse(1, text.as_bytes(), None).unwrap());
        assert!(event.contains(r#"payload: " {\n} ""#) && event.contains(r#"metadata: "{\r\n}""#), "{event}");
        assert!(
            refusal(&text.replace("\"t\"", "\"t\",\"payload\":1")).contains("a payload and a payload_text")
        );
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said_in_words() {
        let with = |rest: &str| refusal(&format!(r#"{{"event_id":"{ID}",{rest}}}"#));
        assert_eq!(with(r#""payload":1"#), "missing field `event_type`");
        assert_eq!(with(r#""event_type":"t""#), "missing field `payload`");
        assert!(
            with(r#""event_type":"t","payload":1,"stream":"s""#)
                .starts_with("unknown field `stream`, expected")
        );
        assert!(with(r#""event_type":"t","payload":1,"stream_id":"s""#).contains("no stream_type"));
        assert!(with(r#""event_type":"t","payload":{"a":}"#).contains("expected value at column 8"));
        assert!(refusal(r#"{"event_type":"t","payload":1}"#).contains("no event_id"));
        assert!(refusal(r#"{"event_id":"x","event_type":"t","payload":1}"#).contains("UUID"));
    }

    #[test]
    fn a_derived_id_is_that_of_the_same_text_at_the_same_place() {
        let line = br#"{"event_type":"t","payload":1}"#;
        let id = |number, text: &[u8], ids| format!("{:?}", parse(number, text, Some(ids)).unwrap());
        assert_eq!(id(1, line, Ids::Derive), id(1, line, Ids::Derive));
        assert_ne!(id(1, line, Ids::Derive), id(2, line, Ids::Derive));
        assert_ne!(id(1, line, Ids::Derive), id(1, br#"{"event_type":"t","payload":2}"#, Ids::Derive));
        assert_ne!(id(1, line, Ids::New), id(1, line, Ids::New));
    }

    #[test]
    fn what_a_log_adds_to_an_event_is_left_to_the_next_log() {
        let text = format!(
            r#"{{"id":9007199254740993,"event_id":"{ID}","event_type":"t","stream_type":"s","stream_id":"1","stream_version":3,"payload":null,"metadata":null,"recorded_at":"2024-01-01T00:00:00Z"}}"#
        );
        assert!(parse(1, text.as_bytes(), None).is_ok());
    }
}
