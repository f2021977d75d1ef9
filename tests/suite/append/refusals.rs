//! What the log does not take, and in which words it says so.

use inorder::{Append, ErrorKind, ExpectedVersion, NewEvent};
use uuid::Uuid;

use super::{Answer, Given, WAYS, Way, append, count, log, log_up_to};
use crate::support::database;
use ExpectedVersion::{Any, Exact, Exists};

/// Documents that are refused, and why.
fn refused_documents() -> Vec<(String, &'static str)> {
    [
        // U+0000, in strings and keys, and what only looks like an escape.
        (r#""\u0000""#, r"U+0000 (\u0000) in the string at $: leave it out or encode it otherwise"),
        (
            r#"{"a": [1, {"b": "x\u0000y"}]}"#,
            r"U+0000 (\u0000) in the string at $.a[1].b: leave it out or encode it otherwise",
        ),
        (
            r#"{"ok": 1, "a\u0000": 1}"#,
            r#"U+0000 (\u0000) in the key at $["a\u0000"]: leave it out or encode it otherwise"#,
        ),
        (
            r#"["\\", "\\\u0000"]"#,
            r"U+0000 (\u0000) in the string at $[1]: leave it out or encode it otherwise",
        ),
        // Halves of surrogate pairs.
        (r#""\ud800""#, r"the lone surrogate \ud800 in the string at $: leave it out or encode it otherwise"),
        (
            r#"{"a b": "\uDFFF"}"#,
            r#"the lone surrogate \uDFFF in the string at $["a b"]: leave it out or encode it otherwise"#,
        ),
        (
            r#"["\ude00\ud83d"]"#,
            r"the lone surrogate \ude00 in the string at $[0]: leave it out or encode it otherwise",
        ),
        (
            r#"["\ud83d\ud83d\ude00"]"#,
            r"the lone surrogate \ud83d in the string at $[0]: leave it out or encode it otherwise",
        ),
        (
            r#"["\ud83d", "\ude00"]"#,
            r"the lone surrogate \ud83d in the string at $[0]: leave it out or encode it otherwise",
        ),
        (
            r#"["\ud83d\\\ude00"]"#,
            r"the lone surrogate \ud83d in the string at $[0]: leave it out or encode it otherwise",
        ),
        // Numbers.
        ("1e400", "the number 1e400 at $ is outside f64: send it as a string"),
        (
            r#"{"a": {"b": [0, -1E+309]}}"#,
            "the number -1E+309 at $.a.b[1] is outside f64: send it as a string",
        ),
        (
            "[1.7976931348623159e308]",
            "the number 1.7976931348623159e308 at $[0] is outside f64: send it as a string",
        ),
        ("[0.001e312]", "the number 0.001e312 at $[0] is outside f64: send it as a string"),
        (
            "[1e99999999999999999999]",
            "the number 1e99999999999999999999 at $[0] is outside f64: send it as a string",
        ),
        (
            "[18446744073709551616]",
            "the number 18446744073709551616 at $[0] is outside i64 and u64: send it as a string",
        ),
        (
            "[[], [-9223372036854775809]]",
            "the number -9223372036854775809 at $[1][0] is outside i64 and u64: send it as a string",
        ),
        // Syntax.
        ("nonsense", r#"not JSON: Token "nonsense" is invalid."#),
        ("", "not JSON: The input string ended unexpectedly."),
        (r#"{"a": 1,}"#, r#"not JSON: Expected string, but found "}"."#),
    ]
    .into_iter()
    .map(|(document, why)| (document.to_owned(), why))
    .chain([(
        format!("[{}.5]", "1".repeat(310)),
        "the number 1111111111111111111111111111111111111111… at $[0] is outside f64: send it as a string",
    )])
    .collect()
}

/// Documents that look suspicious and are taken.
fn taken_documents() -> Vec<String> {
    [
        r#""\ud83d\ude00\ud83d\ude00""#,
        r#""\\u0000 \\ud800""#,
        r#"{"\\u0000": "\\\\ud800"}"#,
        r#"["1e400", "18446744073709551616", "7e1234-8e999", "{\"a\": 1e400}"]"#,
        "[1.7976931348623157e308, -1.7976931348623157e308, 1e308, 1e-400, 5e-324, 0e99999999999999, 0.0e999]",
        "[0.00000000000000000000000000000000000001e340, 123456789012345678901234567890.5]",
        "[18446744073709551615, -9223372036854775808, -0, 9999999999999999999]",
        "1e-99999999999999999999",
    ]
    .into_iter()
    .map(str::to_owned)
    .chain([
        format!("[{}{}]", "[".repeat(99), "]".repeat(99)),
        format!("{}1{}", r#"{"a":["#.repeat(50), "]}".repeat(50)),
        format!(r#"["{}"]"#, "[{".repeat(1000)),
        format!("[{}[]]", "[],{},".repeat(1000)),
        format!("[{}e-20]", "9".repeat(320)),
    ])
    .collect()
}

#[tokio::test]
async fn a_document_that_is_refused_is_refused_by_place_and_value_in_every_way() {
    for way in WAYS {
        let db = database().await;
        let log = log(db.url()).await;
        let mut client = db.client().await;
        for (document, why) in refused_documents() {
            if way == Way::One && why.starts_with("not JSON") {
                // Its parameter is json already.
                continue;
            }
            for part in ["payload", "metadata"] {
                let given = Given::new("thing.happened", "{}").with(|e| match part {
                    "payload" => e.payload.clone_from(&document),
                    _ => e.metadata.clone_from(&document),
                });
                let expected = Answer::Refused(format!(
                    "event 1 of 1 (event_id {}, event_type 'thing.happened'): {part}: {why}",
                    given.event_id
                ));
                assert_eq!(
                    append(way, &log, &mut client, Any, &[given]).await,
                    expected,
                    "{way:?} {document}"
                );
            }
        }
        assert_eq!(count(&client).await, 0);
    }
}

/// What is taken can be decoded.
#[tokio::test]
async fn a_document_that_only_looks_suspicious_is_taken() {
    for way in WAYS {
        let db = database().await;
        let log = log(db.url()).await;
        let mut client = db.client().await;
        for document in taken_documents() {
            let given = Given::new("x", &document).with(|e| e.metadata.clone_from(&document));
            let event_id = given.event_id;
            let answer = append(way, &log, &mut client, Any, &[given]).await;
            assert!(matches!(answer, Answer::Appended(_)), "{way:?} {document}: {answer:?}");
            let event = log.event(event_id).await.unwrap().unwrap();
            event.payload::<serde_json::Value>().unwrap_or_else(|e| panic!("{document}: {e:?}"));
        }
    }
}

/// However deep: the parser of the server gives up at some depth, and that is an answer as well.
#[tokio::test]
async fn nesting_over_100_is_refused() {
    for way in WAYS {
        let db = database().await;
        let log = log(db.url()).await;
        let mut client = db.client().await;
        for depth in [101, 1_000, 100_000] {
            if way == Way::One && depth == 100_000 {
                // Its parameter is json already.
                continue;
            }
            let given = Given::new("x", &format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
            let Answer::Refused(why) = append(way, &log, &mut client, Any, &[given]).await else { panic!() };
            assert!(why.contains("): payload: nesting over 100 at $[0][0][0]") && why.len() < 500, "{why}");
        }
        let deep = format!(r#"{{"lines": [1, {}1{}]}}"#, r#"{"a": "#.repeat(99), "}".repeat(99));
        let given = Given::new("x", &deep);
        let Answer::Refused(why) = append(way, &log, &mut client, Any, &[given]).await else { panic!() };
        assert!(why.contains("nesting over 100 at $.lines[1].a.a.a"), "{why}");
    }
}

/// Names: what is empty, and one byte too long.
#[tokio::test]
async fn names_that_are_empty_or_too_long_are_refused_by_name() {
    let given = Given::of("thing", "1");
    let long = |bytes: usize| "é".repeat(bytes / 2);
    let changes = [
        (given.with(|e| e.event_type = String::new()), "event_type is empty"),
        (given.with(|e| e.event_type = long(202)), "event_type has 202 bytes; at most 200"),
        (given.with(|e| e.stream = Some((String::new(), "1".into()))), "stream_type is empty"),
        (given.with(|e| e.stream = Some((long(202), "1".into()))), "stream_type has 202 bytes; at most 200"),
        (given.with(|e| e.stream = Some(("thing".into(), String::new()))), "stream_id is empty"),
        (
            given.with(|e| e.stream = Some(("thing".into(), long(502)))),
            "stream_id has 502 bytes; at most 500",
        ),
        (given.with(|e| e.tenant_id = long(202)), "tenant_id has 202 bytes; at most 200"),
        (given.with(|e| e.created_by = Some(long(202))), "created_by has 202 bytes; at most 200"),
    ];
    let longest = Given {
        event_type: long(200),
        stream: Some((long(200), long(500))),
        tenant_id: long(200),
        created_by: Some(long(200)),
        ..given.clone()
    };
    for way in WAYS {
        let db = database().await;
        let log = log(db.url()).await;
        let mut client = db.client().await;
        for (changed, why) in &changes {
            let others = [
                given.clone(),
                changed.with(|e| e.event_id = Uuid::new_v4()),
                given.with(|e| e.event_id = Uuid::new_v4()),
            ];
            let (batch, at) = if way == Way::One { (&others[1..2], 1) } else { (&others[..], 2) };
            let expected = Answer::Refused(format!(
                "event {at} of {} (event_id {}, event_type '{}'): {why}",
                batch.len(),
                others[1].event_id,
                changed.event_type.chars().take(200).collect::<String>()
            ));
            assert_eq!(append(way, &log, &mut client, Any, batch).await, expected, "{way:?}");
        }
        assert_eq!(count(&client).await, 0);
        append(way, &log, &mut client, Any, std::slice::from_ref(&longest)).await;
        assert_eq!(count(&client).await, 1);
    }
}

#[tokio::test]
async fn a_batch_that_cannot_be_one_is_refused() {
    let given = Given::of("thing", "1");
    let again = given.with(|e| e.payload = "2".into());
    let elsewhere = Given::of("thing", "2");
    let loose = Given::new("x", "{}");
    let named = |at: usize, e: &Given| {
        format!("event {at} of 2 (event_id {}, event_type '{}'): ", e.event_id, e.event_type)
    };
    let cases = [
        (Any, vec![], "nothing to append: the batch is empty".to_owned()),
        (Any, vec![given.clone(), again], format!("event_id {} twice in one batch", given.event_id)),
        (
            Any,
            vec![given.clone(); 10_001],
            "a batch of 10001 events; at most 10000 go into one append: split it".to_owned(),
        ),
        (
            Exact(0),
            vec![given.clone(), elsewhere.clone()],
            named(2, &elsewhere)
                + "another stream than the first event's; an expected version is of one stream",
        ),
        (
            Exists,
            vec![given.clone(), loose.clone()],
            named(2, &loose) + "no stream to have the expected version",
        ),
        (
            Exists,
            vec![loose.clone(), given.clone()],
            named(1, &loose) + "no stream to have the expected version",
        ),
    ];
    for way in [Way::In, Way::Alone, Way::Batch] {
        let db = database().await;
        let log = log(db.url()).await;
        let mut client = db.client().await;
        for (expected, batch, why) in &cases {
            let answer = append(way, &log, &mut client, *expected, batch).await;
            assert_eq!(answer, Answer::Refused(why.clone()), "{way:?}");
        }
        assert_eq!(count(&client).await, 0);
    }
}

#[tokio::test]
async fn an_expected_version_below_zero_is_refused() {
    let db = database().await;
    let log = log(db.url()).await;
    let events = [NewEvent::from_json("x", "1").in_stream("thing", 1)];
    for version in [-1, -2, i64::MIN] {
        let error = log.append(Exact(version), &events).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.to_string().contains(&version.to_string()), "{error}");
    }
    let client = db.client().await;
    let Answer::Refused(why) = super::batch(&client, Exact(-2), &[Given::of("thing", "1")]).await else {
        panic!()
    };
    assert_eq!(why, "expected version -2; versions begin at 1");
}

/// The limit counts bytes of JSON text, of the payload and of the metadata apart.
#[tokio::test]
async fn a_document_over_the_limit_is_refused() {
    let of = |bytes: usize| format!("\"{}\"", "é".repeat((bytes - 2) / 2));
    for way in WAYS {
        let db = database().await;
        let log = log(db.url()).await;
        let mut client = db.client().await;
        let limit = 1024 * 1024;
        for part in ["payload", "metadata"] {
            let large = |bytes| {
                Given::new("x", "{}")
                    .with(|e| *(if part == "payload" { &mut e.payload } else { &mut e.metadata }) = of(bytes))
            };
            let answer = append(way, &log, &mut client, Any, &[large(limit)]).await;
            assert!(matches!(answer, Answer::Appended(_)), "{answer:?}");
            let given = large(limit + 2);
            let expected = Answer::Refused(format!(
                "event 1 of 1 (event_id {}, event_type 'x'): {part} has {} bytes; at most {limit}: \
                 keep the large part elsewhere, or raise the limit",
                given.event_id,
                limit + 2
            ));
            assert_eq!(append(way, &log, &mut client, Any, &[given]).await, expected, "{way:?}");
        }
        assert_eq!(count(&client).await, 2);
    }
}

#[tokio::test]
async fn the_limit_is_configured() {
    let db = database().await;
    let events = [NewEvent::from_json("x", "\"123456789\"")];
    let error = log_up_to(db.url(), 10).await.append(Any, &events).await.unwrap_err();
    assert!(error.to_string().contains("payload has 11 bytes; at most 10"), "{error}");
    let log = log_up_to(db.url(), 3_000_000).await;
    assert_eq!(log.append(Any, &events).await.unwrap(), Append::Appended(vec![1]));
    let large = [NewEvent::from_json("x", format!("\"{}\"", "x".repeat(2_000_000)))];
    assert_eq!(log.append(Any, &large).await.unwrap(), Append::Appended(vec![2]));
}

#[tokio::test]
async fn a_batch_over_64_mib_is_refused() {
    let db = database().await;
    let log = log(db.url()).await;
    let mut client = db.client().await;
    let text = format!("\"{}\"", "x".repeat(1024 * 1024 - 2));
    let given: Vec<Given> = (0..65).map(|_| Given::new("x", &text)).collect();
    for way in [Way::In, Way::Alone, Way::Batch] {
        let Answer::Refused(why) = append(way, &log, &mut client, Any, &given).await else { panic!() };
        assert!(
            why.contains("a batch of 68157570 bytes; at most 67108864 go into one append: split it"),
            "{why}"
        );
    }
    assert_eq!(count(&client).await, 0);
}

/// Text cannot hold U+0000, so it is refused before it is sent.
#[tokio::test]
async fn text_with_u0000_is_refused_and_the_transaction_stays_usable() {
    let db = database().await;
    let log = log(db.url()).await;
    let mut client = db.client().await;
    let tx = client.transaction().await.unwrap();
    let good = || NewEvent::from_json("x", "1").in_stream("thing", 1);
    for (event, why) in [
        (NewEvent::from_json("a\0b", "1"), "event_type contains U+0000"),
        (good().in_stream("\0", 1), "stream_type contains U+0000"),
        (good().in_stream("thing", '\0'), "stream_id contains U+0000"),
        (good().tenant("\0"), "tenant_id contains U+0000"),
        (good().created_by("\0"), "created_by contains U+0000"),
        (NewEvent::from_json("x", "\"\0\""), "payload: not JSON: it contains U+0000"),
        (good().metadata_json("\0"), "metadata: not JSON: it contains U+0000"),
    ] {
        let error = log.append_in(&tx, Any, &[good(), event]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.to_string().contains("event 2 of 2") && error.to_string().ends_with(why), "{error}");
    }
    tx.execute("SELECT 1", &[]).await.unwrap();
}

/// What is absent where it must be there: only SQL can say so.
#[tokio::test]
async fn what_is_missing_is_refused_by_name() {
    let db = database().await;
    let client = db.client().await;
    let id = "5f7b8d5e-2d6f-4b38-9f77-6d2a25f0c001";
    let arrays_differ = "arrays that differ: each must have 1 elements, from 1, as event_ids has, or be NULL";
    for (arguments, why) in [
        ("NULL, ARRAY[NULL::uuid], '{x}', '{1}'".to_owned(), "event_id is missing"),
        (format!("NULL, '{{{id}}}', NULL, '{{1}}'"), "event_type is missing"),
        (format!("NULL, '{{{id}}}', '{{x}}', NULL"), "payload is missing"),
        (
            format!("NULL, '{{{id}}}', '{{x}}', '{{1}}', stream_types => '{{s}}'"),
            "stream_type without stream_id",
        ),
        (
            format!("NULL, '{{{id}}}', '{{x}}', '{{1}}', stream_ids => '{{s}}'"),
            "stream_id without stream_type",
        ),
        ("NULL, NULL, NULL, NULL".to_owned(), "the batch is empty"),
        (format!("NULL, '{{{id}}}', '{{x,y}}', '{{1}}'"), arrays_differ),
        (format!("NULL, '{{{id}}}', '{{x}}', '[0:0]={{1}}'"), arrays_differ),
        (format!("NULL, '{{{{{id}}},{{{id}}}}}', '{{x,x}}', '{{1,1}}'"), "event_id is missing"),
        (format!("NULL, '{{{id}}}', '{{x}}', '{{1}}', metadata => '{{1,1}}'"), arrays_differ),
        (format!("NULL, '{{{id}}}', '{{x}}', '{{1}}', tenant_ids => '{{1,1}}'"), arrays_differ),
        (format!("NULL, '{{{id}}}', '{{x}}', '{{1}}', schema_versions => '{{1,1}}'"), arrays_differ),
        (format!("NULL, '{{{id}}}', '{{x}}', '{{1}}', correlation_ids => '{{{id},{id}}}'"), arrays_differ),
        (format!("NULL, '{{{id}}}', '{{x}}', '{{1}}', causation_ids => '{{{id},{id}}}'"), arrays_differ),
        (format!("NULL, '{{{id}}}', '{{x}}', '{{1}}', created_by => '{{1,1}}'"), arrays_differ),
    ] {
        let row = client
            .query_one(&format!("SELECT * FROM inorder.append_events({arguments})"), &[])
            .await
            .unwrap();
        assert_eq!(row.get::<_, &str>("outcome"), "refused");
        assert!(row.get::<_, &str>("refusal").ends_with(why), "{row:?}");
    }
    let error = client.query("SELECT * FROM inorder.append(NULL, '1')", &[]).await.unwrap_err();
    assert!(error.as_db_error().unwrap().message().ends_with("event_type is missing"));
    let row =
        client.query_one("SELECT * FROM inorder.append('x', '1', event_id => NULL)", &[]).await.unwrap();
    assert!(row.get::<_, Option<Uuid>>("event_id").is_some());
}

/// A document of any shape: the one bad thing that was put into it is found, and named by its path.
#[tokio::test]
async fn the_place_is_named_wherever_it_is() {
    let db = database().await;
    let client = db.client().await;
    let seed = fastrand::u64(..);
    let mut random = Random { rng: fastrand::Rng::with_seed(seed), planted: None };
    let mut bad = 0;
    for _ in 0..2_000 {
        random.planted = None;
        let document = random.value("$", 0);
        let row = client.query_one("SELECT inorder.json_refusal($1)", &[&document]).await.unwrap();
        let refusal: Option<String> = row.get(0);
        match &random.planted {
            None => assert_eq!(refusal, None, "seed {seed}: {document}"),
            Some(path) => {
                bad += 1;
                let refusal = refusal.unwrap_or_else(|| panic!("seed {seed}: {document}: nothing at {path}"));
                let [before, after] = [format!("at {path}:"), format!("at {path} is")];
                assert!(
                    refusal.contains(&before) || refusal.contains(&after),
                    "seed {seed}: {document}: {path}: {refusal}"
                );
            }
        }
    }
    assert!((200..1_800).contains(&bad), "{bad}");
}

/// Makes documents, some with a bad thing in them.
struct Random {
    rng: fastrand::Rng,
    planted: Option<String>,
}

impl Random {
    fn pick(&mut self, from: &[&str]) -> String {
        from[self.rng.usize(..from.len())].to_owned()
    }

    /// Perhaps the one bad thing.
    fn plants(&mut self, path: &str) -> bool {
        let plants = self.planted.is_none() && self.rng.u32(..6) == 0;
        if plants {
            self.planted = Some(path.to_owned());
        }
        plants
    }

    fn value(&mut self, path: &str, depth: usize) -> String {
        let space = self.pick(&["", "", " ", "\n\t"]);
        let value = match self.rng.u32(..if depth > 4 { 4 } else { 8 }) {
            0 => self.pick(&["true", "false", "null"]),
            1 | 2 => self.number(path),
            3 => self.string(path),
            4 | 5 => {
                let count = self.rng.usize(..4);
                let values: Vec<String> =
                    (0..count).map(|at| self.value(&format!("{path}[{at}]"), depth + 1)).collect();
                format!("[{}]", values.join(","))
            }
            _ => {
                let count = self.rng.usize(..4);
                let members: Vec<String> = (0..count).map(|at| self.member(path, at, depth)).collect();
                format!("{{{}}}", members.join(","))
            }
        };
        format!("{space}{value}{space}")
    }

    fn member(&mut self, path: &str, at: usize, depth: usize) -> String {
        let plain = format!("k{at}_");
        let odd = self.pick(&["é", "a b", r"\\", r#"\""#, r"\u0041", "{[", "]},:", r"\\u0000", ""]);
        if self.rng.bool() {
            format!("\"{plain}\":{}", self.value(&format!("{path}.{plain}"), depth + 1))
        } else {
            let bad = format!(r#"["{odd}\ud900"]"#);
            let key = if self.plants(&format!("{path}{bad}")) {
                format!(r"{odd}\ud900")
            } else {
                format!("{odd}{at}")
            };
            let step = if odd.is_empty() && !key.contains('\\') {
                format!("[\"{at}\"]")
            } else {
                format!("[\"{key}\"]")
            };
            format!("\"{key}\":{}", self.value(&format!("{path}{step}"), depth + 1))
        }
    }

    fn number(&mut self, path: &str) -> String {
        if self.plants(path) {
            self.pick(&[
                "1e309",
                "-2.5E+400",
                "18446744073709551616",
                "-9999999999999999999",
                "123456789012345678901234",
            ])
        } else {
            self.pick(&[
                "0",
                "-1",
                "1.5e300",
                "18446744073709551615",
                "0.1234567890123456789012",
                "1e-999",
                "12e003",
            ])
        }
    }

    fn string(&mut self, path: &str) -> String {
        let around =
            self.pick(&["", "é漢🦀", r"\\", r#"\""#, r"\n\/", r"\ud83d\ude00", "[1e999,{", r"\\ud800"]);
        if self.plants(path) {
            let bad = self.pick(&[r"\u0000", r"\ud800", r"\uDC00", r"\ud800\ud800", r"\udc00\ud800"]);
            // A low half in front would pair with nothing, a high half behind would pair with what follows.
            format!("\"{around}{bad} {around}\"")
        } else {
            format!("\"{around}\"")
        }
    }
}
