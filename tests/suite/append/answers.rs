//! The table of cases: what every way to append answers, and what is in the log afterwards.

use inorder::{Event, ExpectedVersion, Inorder};
use tokio_postgres::Client;
use uuid::Uuid;

use super::{Answer, Given, WAYS, Way, append, batch, count, log};
use crate::support::database;
use ExpectedVersion::{Any, Exact, Exists, NoStream};

struct Case {
    name: &'static str,
    /// Appended before, one by one.
    before: Vec<Given>,
    expected: ExpectedVersion,
    given: Vec<Given>,
    answer: Expect,
}

/// The answer, where ids are not known yet.
#[derive(Debug)]
enum Expect {
    Appended,
    Already,
    Completed {
        already: usize,
    },
    Conflict {
        actual: i64,
    },
    /// With the event at this place.
    Mismatch(usize),
}

fn case(
    name: &'static str,
    before: &[&Given],
    expected: ExpectedVersion,
    given: &[&Given],
    answer: Expect,
) -> Case {
    let owned = |events: &[&Given]| events.iter().map(|&e| e.clone()).collect();
    Case { name, before: owned(before), expected, given: owned(given), answer }
}

/// Each with events and a stream of its own.
fn cases() -> Vec<Case> {
    let loose = || Given::new("thing.happened", r#"{"a": 1}"#);
    let full = || Given {
        metadata: r#"{ "ip": "::1" }"#.into(),
        stream: Some(("thing".into(), Uuid::new_v4().to_string())),
        tenant_id: "tenant".into(),
        schema_version: 3,
        correlation_id: Some(Uuid::new_v4()),
        causation_id: Some(Uuid::new_v4()),
        created_by: Some("somebody".into()),
        ..loose()
    };
    let stream = |count: usize| -> Vec<Given> {
        let id = Uuid::new_v4().to_string();
        (0..count).map(|_| Given::of("thing", &id)).collect()
    };
    let mut cases = vec![
        case("an event without a stream", &[], Any, &[&loose()], Expect::Appended),
        case("an event with everything", &[], Any, &[&full()], Expect::Appended),
        case("many without a stream", &[], Any, &[&loose(), &loose(), &loose()], Expect::Appended),
        case("many with everything", &[], Any, &[&full(), &full()], Expect::Appended),
    ];

    // What a stream of `there` events is expected to look like, and whether it does.
    for (there, expected, answer) in [
        (0, Any, Expect::Appended),
        (0, NoStream, Expect::Appended),
        (0, Exists, Expect::Conflict { actual: 0 }),
        (0, Exact(0), Expect::Appended),
        (0, Exact(1), Expect::Conflict { actual: 0 }),
        (2, Any, Expect::Appended),
        (2, NoStream, Expect::Conflict { actual: 2 }),
        (2, Exists, Expect::Appended),
        (2, Exact(0), Expect::Conflict { actual: 2 }),
        (2, Exact(1), Expect::Conflict { actual: 2 }),
        (2, Exact(2), Expect::Appended),
        (2, Exact(3), Expect::Conflict { actual: 2 }),
        (2, Exact(i64::MAX), Expect::Conflict { actual: 2 }),
    ] {
        for added in [1, 3] {
            let events = stream(there + added);
            let events: Vec<&Given> = events.iter().collect();
            let (before, given) = events.split_at(there);
            let answer = match answer {
                Expect::Conflict { actual } => Expect::Conflict { actual },
                _ => Expect::Appended,
            };
            cases.push(case("an expected version", before, expected, given, answer));
        }
    }
    let there = full();
    for other in [
        full().with(|e| e.stream.clone_from(&there.stream)).with(|e| e.tenant_id = "other".into()),
        full().with(|e| e.stream = there.stream.clone().map(|s| ("other".into(), s.1))),
        full().with(|e| e.stream = there.stream.clone().map(|s| (s.0, s.1.to_uppercase() + " "))),
    ] {
        cases.push(case("another stream", &[&there], NoStream, &[&other], Expect::Appended));
    }

    let [a, b, c] = [full(), full(), loose()];
    cases.push(case("again", &[&a], Any, &[&a], Expect::Already));
    cases.push(case("again, all", &[&a, &b, &c], Any, &[&c, &a, &b], Expect::Already));
    let s = stream(3);
    cases.push(case(
        "again, the stream having moved on",
        &[&s[0], &s[1]],
        NoStream,
        &[&s[0]],
        Expect::Already,
    ));
    let both = [&s[0], &s[1]];
    cases.push(case(
        "again, all, the stream having moved on",
        &[&s[0], &s[1], &s[2]],
        Exact(0),
        &both,
        Expect::Already,
    ));
    let by_another = a.with(|e| e.created_by = Some("somebody else".into()));
    cases.push(case("again, by somebody else", &[&a], Any, &[&by_another], Expect::Already));

    let [new, newer] = [loose(), loose()];
    cases.push(case("in part", &[&b], Any, &[&new, &b, &newer], Expect::Completed { already: 1 }));
    let s = stream(4);
    let s: Vec<&Given> = s.iter().collect();
    cases.push(case("in part, as expected", &s[..2], Exact(2), &s[1..], Expect::Completed { already: 1 }));
    let s = stream(4);
    let s: Vec<&Given> = s.iter().collect();
    cases.push(case("in part, not as expected", &s[..2], Exact(1), &s[1..], Expect::Conflict { actual: 2 }));

    // A key that is there with other content, whatever differs.
    for (part, other) in [
        ("event_type", a.with(|e| e.event_type = "thing.undone".into())),
        ("payload", a.with(|e| e.payload = r#"{"a":1}"#.into())),
        ("metadata", a.with(|e| e.metadata = r#"{"ip":"::1"}"#.into())),
        ("tenant_id", a.with(|e| e.tenant_id = String::new())),
        ("stream_id", a.with(|e| e.stream = Some(("thing".into(), "other".into())))),
        ("stream_type", a.with(|e| e.stream = e.stream.take().map(|s| ("other".into(), s.1)))),
        ("stream", a.with(|e| e.stream = None)),
        ("schema_version", a.with(|e| e.schema_version = 4)),
        ("correlation_id", a.with(|e| e.correlation_id = None)),
        ("causation_id", a.with(|e| e.causation_id = Some(Uuid::new_v4()))),
    ] {
        cases.push(case(part, &[&a], Any, &[&other], Expect::Mismatch(0)));
        cases.push(case(part, &[&a, &b], Any, &[&loose(), &b, &other], Expect::Mismatch(2)));
    }
    let s = stream(1);
    let other = s[0].with(|e| e.payload = "2".into());
    cases.push(case(
        "other content, and not as expected",
        &[&s[0]],
        NoStream,
        &[&other],
        Expect::Mismatch(0),
    ));
    cases
}

#[tokio::test]
async fn every_way_to_append_gives_the_same_answers() {
    for way in WAYS {
        let db = database().await;
        let log = log(db.url()).await;
        let mut client = db.client().await;
        for case in cases() {
            if way != Way::One || case.given.len() == 1 {
                try_case(way, &log, &mut client, &case).await;
            }
        }
    }
}

async fn try_case(way: Way, log: &Inorder, client: &mut Client, case: &Case) {
    let name = format!("{way:?}, {}: {:?} {:?}", case.name, case.expected, case.given);
    for event in &case.before {
        batch(client, Any, std::slice::from_ref(event)).await;
    }
    let before = count(client).await;
    let there = ids(client, &case.given).await;

    let answer = append(way, log, client, case.expected, &case.given).await;

    let now = ids(client, &case.given).await;
    let in_log = || now.iter().map(|id| id.unwrap()).collect::<Vec<i64>>();
    let (expected, added) = match case.answer {
        Expect::Appended => (Answer::Appended(in_log()), case.given.len()),
        Expect::Already => (Answer::Already(in_log()), 0),
        Expect::Completed { already } => (Answer::Completed(in_log(), already), case.given.len() - already),
        Expect::Conflict { actual } => (Answer::Conflict(actual), 0),
        Expect::Mismatch(at) => (Answer::Mismatch(case.given[at].event_id, now[at].unwrap()), 0),
    };
    assert_eq!(answer, expected, "{name}");
    assert_eq!(count(client).await - before, i64::try_from(added).unwrap(), "{name}");
    let added: Vec<i64> =
        now.iter().zip(&there).filter(|(_, then)| then.is_none()).filter_map(|(id, _)| *id).collect();
    assert!(added.is_sorted(), "ids are in the order given: {name}");
    if matches!(case.answer, Expect::Appended | Expect::Already | Expect::Completed { .. }) {
        for given in &case.given {
            let event = log.event(given.event_id).await.unwrap().unwrap();
            assert_same(given, &event);
        }
    }
    assert_streams_have_no_gaps(client).await;
}

/// Byte for byte what was appended.
fn assert_same(given: &Given, event: &Event) {
    assert_eq!(event.event_type(), given.event_type);
    assert_eq!(event.payload_json(), given.payload);
    assert_eq!(event.metadata_json(), given.metadata);
    assert_eq!(event.stream_type().zip(event.stream_id()), given.stream.as_ref().map(|s| (&*s.0, &*s.1)));
    assert_eq!(event.stream_version().is_some(), given.stream.is_some());
    assert_eq!(event.tenant_id(), given.tenant_id);
    assert_eq!(event.schema_version(), given.schema_version);
    assert_eq!(event.correlation_id(), given.correlation_id);
    assert_eq!(event.causation_id(), given.causation_id);
}

async fn ids(client: &Client, given: &[Given]) -> Vec<Option<i64>> {
    let mut ids = Vec::new();
    for event in given {
        let statement = "SELECT id FROM inorder.events WHERE event_id = $1";
        let row = client.query_opt(statement, &[&event.event_id]).await.unwrap();
        ids.push(row.map(|row| row.get(0)));
    }
    ids
}

/// The versions of every stream are 1, 2, 3 and so on, in id order.
pub(super) async fn assert_streams_have_no_gaps(client: &Client) {
    let wrong = client
        .query(
            "SELECT * FROM (
                SELECT id, stream_version,
                    row_number() OVER (PARTITION BY tenant_id, stream_type, stream_id ORDER BY id) AS place
                FROM inorder.events
                WHERE stream_id IS NOT NULL
            ) AS placed
            WHERE stream_version <> place",
            &[],
        )
        .await
        .unwrap();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Whitespace, the order of keys, keys that come twice, big integers and every script come back as they were.
#[tokio::test]
async fn a_payload_is_kept_byte_for_byte() {
    let payloads = [
        " { \"b\" : 1 ,\n\t\"a\":2 } ",
        r#"{"a":1,"a":2}"#,
        "18446744073709551615",
        "-9223372036854775808",
        "0.10000000000000000555111512312578270211815834045410156250",
        "1.0",
        "1e0",
        r#""\u00e9\/é 漢字 🦀""#,
        r#""\ud83e\udd80""#,
        "null",
        "[]",
        "\"\"",
    ];
    for way in WAYS {
        let db = database().await;
        let log = log(db.url()).await;
        let mut client = db.client().await;
        for payload in payloads {
            let given = Given::new("x", payload).with(|e| e.metadata = payload.into());
            append(way, &log, &mut client, Any, std::slice::from_ref(&given)).await;
            assert_same(&given, &log.event(given.event_id).await.unwrap().unwrap());
        }
    }
}

/// Ids follow the order of the batch, however large.
#[tokio::test]
async fn the_largest_batch_is_appended_in_the_order_given() {
    let db = database().await;
    let log = log(db.url()).await;
    let mut client = db.client().await;
    let given: Vec<Given> = (0..10_000)
        .map(|n| match n % 3 {
            0 => Given::new("loose", &n.to_string()),
            1 => Given::of("one", "1").with(|e| e.payload = n.to_string()),
            _ => Given::of("many", &(n % 700).to_string()).with(|e| e.payload = n.to_string()),
        })
        .collect();
    append(Way::In, &log, &mut client, Any, &given).await;
    let rows = client.query("SELECT payload::text FROM inorder.events ORDER BY id", &[]).await.unwrap();
    let payloads: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(payloads, (0..10_000).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_streams_have_no_gaps(&client).await;

    let again = append(Way::Batch, &log, &mut client, Any, &given).await;
    assert!(matches!(again, Answer::Already(ids) if ids.len() == 10_000));
}

/// A raw INSERT and COPY are allowed, and unchecked: what they write is part of the log like anything else.
#[tokio::test]
async fn raw_insert_and_copy_are_allowed_and_unchecked() {
    use futures_util::SinkExt as _;

    let db = database().await;
    let log = log(db.url()).await;
    let client = db.client().await;
    client
        .batch_execute(
            r#"INSERT INTO inorder.events (event_type, payload) VALUES ('raw', '{"a":"\u0000","b":1e400}')"#,
        )
        .await
        .unwrap();
    let copy = client.copy_in("COPY inorder.events (event_type, payload) FROM STDIN").await.unwrap();
    let mut copy = Box::pin(copy);
    copy.send(&b"copied\t\"\\\\ud800\"\n"[..]).await.unwrap();
    assert_eq!(copy.as_mut().finish().await.unwrap(), 1);

    let events = log.read(0, 10).await.unwrap();
    assert_eq!(events[0].payload_json(), r#"{"a":"\u0000","b":1e400}"#);
    assert_eq!(events[1].payload_json(), r#""\ud800""#);
    let undecodable = events[1].payload::<String>().unwrap_err().to_string();
    assert!(undecodable.contains("event 2 (copied"), "{undecodable}");
}
