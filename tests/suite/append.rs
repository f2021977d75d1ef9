//! Appending.

use inorder::{Append, ErrorKind, ExpectedVersion, Inorder, NewEvent};

use crate::support::{Database, database};

async fn log(db: &Database) -> Inorder {
    Inorder::connect(db.url()).await.unwrap()
}

/// What an append answers leaves the caller's transaction usable, whatever it is.
#[tokio::test]
async fn every_answer_leaves_the_transaction_usable() {
    let db = database().await;
    let log = log(&db).await;
    let events = [NewEvent::from_json("a", "{}"), NewEvent::from_json("b", "{ }").in_stream("s", 1)];
    assert_eq!(log.append(ExpectedVersion::Any, &events).await.unwrap(), Append::Appended(vec![1, 2]));

    let mut client = db.client().await;
    let tx = client.transaction().await.unwrap();
    let again = log.append_in(&tx, ExpectedVersion::Any, &events).await.unwrap();
    assert_eq!(again, Append::AlreadyAppended(vec![1, 2]));

    let expected = ExpectedVersion::NoStream;
    let late = [NewEvent::from_json("b", "1").in_stream("s", 1)];
    let conflict = log.append_in(&tx, expected, &late).await.unwrap();
    assert_eq!(conflict, Append::Conflict { expected, actual: 1 });

    let refused =
        log.append_in(&tx, ExpectedVersion::Any, &[NewEvent::from_json("b", "nonsense")]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);

    let appended = log.append_in(&tx, ExpectedVersion::Exists, &late).await.unwrap();
    assert!(matches!(appended, Append::Appended(_)), "{appended:?}");
    tx.commit().await.unwrap();
}
