//! A schema becomes what the library needs: whoever else is at it, whatever happens meanwhile, or not at all.

use inorder::Inorder;

use crate::support::{database, empty_database};

#[tokio::test]
async fn a_schema_is_made_once_and_left_alone_afterwards() {
    let database = empty_database().await;
    let log = Inorder::connect(database.url()).await.unwrap();
    let first = log.migrate().await.unwrap();
    assert_eq!(first.from, 0);
    assert!(first.to >= 1 && first.functions_replaced);
    assert_eq!(first.applied.len(), usize::try_from(first.to).unwrap());
    log.check_schema().await.unwrap();
    let again = log.migrate().await.unwrap();
    assert_eq!((again.from, again.to, again.is_changed()), (first.to, first.to, false));
}

#[tokio::test]
async fn a_database_of_a_test_is_migrated() {
    let database = database().await;
    Inorder::connect(database.url()).await.unwrap().check_schema().await.unwrap();
}

/// Functions are created without a look into their bodies, so that their order does not matter; here is the look.
#[tokio::test]
async fn every_function_has_a_body_that_the_server_accepts() {
    let client = database().await.client().await;
    let functions = "SELECT p.oid::regprocedure::text, pg_get_functiondef(p.oid) \
        FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname = 'inorder'";
    let functions = client.query(functions, &[]).await.unwrap();
    assert!(functions.len() > 1);
    client.batch_execute("SET check_function_bodies = on; SET search_path = pg_catalog").await.unwrap();
    for function in functions {
        let (name, text): (String, String) = (function.get(0), function.get(1));
        client.batch_execute(&text).await.unwrap_or_else(|e| panic!("{name}: {e:?}"));
    }
}
