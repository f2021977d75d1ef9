//! The thin path, end to end: a file, the log, a consumer, its table.

use inorder::Inorder;

use super::tool::{file, flights};
use crate::support::database;

#[path = "../../examples/flights/landings.rs"]
mod landings;

/// I-1, I-4: what the consumer kept equals a fold over the file that knows nothing of the log.
#[tokio::test]
async fn a_projection_of_a_file_equals_an_independent_fold() {
    let db = database().await;
    let log = Inorder::connect(db.url()).await.unwrap();
    let file = file(&flights(2_345));
    assert_eq!(landings::append(&log, file.path()).await.unwrap(), (2_345, 0));
    assert_eq!(landings::project(&log).await.unwrap(), 2_345);
    let folded = landings::fold(file.path()).unwrap();
    assert_eq!(folded.len(), 7);
    assert_eq!(landings::projected(&log).await.unwrap(), folded);

    assert_eq!(landings::append(&log, file.path()).await.unwrap(), (0, 2_345), "idempotent");
    assert_eq!(landings::project(&log).await.unwrap(), 0);
    assert_eq!(landings::projected(&log).await.unwrap(), folded);
}
