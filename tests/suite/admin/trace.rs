//! How events led to one another.

use inorder::{ErrorKind, Trace};
use uuid::Uuid;

use super::{Scene, refused};

/// Events are named after their ids.
fn name(id: i64) -> Uuid {
    Uuid::from_u128(id.unsigned_abs().into())
}

impl Scene {
    /// Events with these causes and correlations, which are named like events; 0 is none.
    async fn caused(&self, events: &[(i64, i64)]) {
        for (cause, correlation) in events {
            let insert = "INSERT INTO inorder.events (event_id, event_type, payload, causation_id, correlation_id) \
                SELECT lpad(to_hex(nextval('names')), 32, '0')::uuid, 'a', '1', $1, $2";
            let id = |id: i64| (id != 0).then(|| name(id));
            self.client.execute(insert, &[&id(*cause), &id(*correlation)]).await.unwrap();
        }
    }

    /// The next event has this id, and so this name.
    async fn next_id(&self, id: i64) {
        let restart = format!(
            "ALTER SEQUENCE inorder.events_id_seq RESTART WITH {id}; DROP SEQUENCE IF EXISTS names; \
             CREATE SEQUENCE names START {id}"
        );
        self.client.batch_execute(&restart).await.unwrap();
    }

    async fn related(events: &[(i64, i64)]) -> Scene {
        let scene = Scene::with(0).await;
        scene.next_id(1).await;
        scene.caused(events).await;
        scene
    }
}

fn ids(trace: &Trace) -> Vec<i64> {
    trace.events().iter().map(|event| event.id).collect()
}

async fn found(mut trace: Trace) -> Trace {
    while trace.search().await.unwrap() {}
    trace
}

#[tokio::test]
async fn a_tree_is_found_whole_from_each_of_its_events_and_nothing_else() {
    // 1 caused 2 and 4, 2 caused 5, 5 caused 7; 3 and 6 are others.
    let scene = Scene::related(&[(0, 0), (1, 0), (0, 0), (1, 0), (2, 0), (3, 0), (5, 0)]).await;
    for id in [1, 2, 4, 5, 7] {
        let by_id = found(scene.admin.trace(id).await.unwrap()).await;
        assert_eq!((ids(&by_id), by_id.start()), (vec![1, 2, 4, 5, 7], Some(name(id))), "{id}");
        assert_eq!((by_id.searched_to(), by_id.end(), by_id.is_cut()), (7, 7, false));
        let by_name = found(scene.admin.trace(name(id)).await.unwrap()).await;
        assert_eq!((ids(&by_name), by_name.missing_causes()), (vec![1, 2, 4, 5, 7], &[][..]));
    }
    refused(scene.admin.trace(8).await, ErrorKind::NotRegistered, &["no such event"]);
    refused(scene.admin.trace(0).await, ErrorKind::NotRegistered, &["no such event"]);
}

#[tokio::test]
async fn a_correlation_is_found_with_what_its_events_caused() {
    // 4 was caused by 3, and says nothing of the correlation.
    let scene = Scene::related(&[(0, 99), (0, 98), (1, 99), (3, 0), (2, 98)]).await;
    let trace = found(scene.admin.trace(name(99)).await.unwrap()).await;
    assert_eq!((ids(&trace), trace.start()), (vec![1, 3, 4], None));
    assert!(ids(&found(scene.admin.trace(name(77)).await.unwrap()).await).is_empty());
    // What an event is named after is the event.
    assert_eq!(found(scene.admin.trace(name(2)).await.unwrap()).await.start(), Some(name(2)));
}

#[tokio::test]
async fn causes_in_a_circle_and_causes_that_are_not_there_end_it() {
    // 1 and 2 caused each other, 3 itself, 4 was caused by what is not there.
    let scene = Scene::related(&[(2, 0), (1, 0), (3, 0), (77, 0), (4, 0)]).await;
    for (id, tree) in [(1, vec![1, 2]), (2, vec![1, 2]), (3, vec![3]), (4, vec![4, 5]), (5, vec![4, 5])] {
        let trace = found(scene.admin.trace(id).await.unwrap()).await;
        let missing = if id >= 4 { vec![name(77)] } else { Vec::new() };
        assert_eq!((ids(&trace), trace.missing_causes()), (tree, &missing[..]), "{id}");
    }
}

/// Part by part, what one found is looked for in the next; ids may leap.
#[tokio::test]
async fn a_long_log_is_searched_in_parts_to_its_end() {
    let scene = Scene::related(&[(0, 0), (1, 0)]).await;
    let fill =
        "INSERT INTO inorder.events (event_type, payload) SELECT 'other', '1' FROM generate_series(1, 60000)";
    scene.client.batch_execute(fill).await.unwrap();
    scene.next_id(100_000).await;
    scene.caused(&[(2, 0)]).await;
    scene.client.batch_execute(fill).await.unwrap();
    scene.next_id(1 << 53).await;
    scene.caused(&[(100_000, 0)]).await;
    let mut trace = scene.admin.trace(1).await.unwrap();
    let mut steps = 1;
    while trace.search().await.unwrap() {
        assert!(trace.searched_to() < trace.end());
        steps += 1;
    }
    assert_eq!((ids(&trace), steps), (vec![1, 2, 100_000, 1 << 53], 3));
}

#[tokio::test]
async fn a_trace_ends_at_its_limit_and_says_so() {
    let scene = Scene::related(&[(0, 0), (1, 0), (1, 0), (1, 0), (1, 0), (0, 0)]).await;
    let trace = found(scene.admin.trace(1).await.unwrap().limit(3)).await;
    assert_eq!((ids(&trace), trace.is_cut(), trace.searched_to()), (vec![1, 2, 3], true, 3));
    let trace = found(scene.admin.trace(1).await.unwrap().limit(6)).await;
    assert_eq!((ids(&trace), trace.is_cut()), (vec![1, 2, 3, 4, 5], false));
}
