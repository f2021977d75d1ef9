//! A role of its own for a test, with the rights of one kind.

use inorder::Inorder;
use tokio_postgres::Client;

use super::{Database, connect};

/// Gone again when the test ends well.
pub(crate) struct Role {
    pub(crate) name: String,
    /// A session of the owner of the schema.
    pub(crate) owner: Client,
    url: String,
}

impl Role {
    /// That may do what a `producer`, `consumer`, `monitor` or `admin` does.
    pub(crate) async fn of(kind: &str, db: &Database) -> Role {
        let name = format!("{kind} {}", fastrand::u64(..));
        let owner = db.client().await;
        let create = format!("CREATE ROLE \"{name}\" LOGIN; SELECT inorder.grant_{kind}('{name}')");
        owner.batch_execute(&create).await.unwrap();
        Role { name, owner, url: db.url().to_owned() }
    }

    /// As the role, from a session of a superuser: the test needs no rule that lets the role in.
    pub(crate) async fn client(&self) -> Client {
        let client = connect(&self.url).await;
        client.batch_execute(&format!("SET SESSION AUTHORIZATION \"{}\"", self.name)).await.unwrap();
        client
    }

    /// Where sessions begin as the role.
    pub(crate) fn url(&self) -> String {
        let separator = if self.url.contains('?') { '&' } else { '?' };
        let role = self.name.replace(' ', "%5C%20");
        format!("{}{separator}options=-crole%3D{role}", self.url)
    }

    pub(crate) async fn log(&self) -> Inorder {
        Inorder::connect(self.url()).await.unwrap()
    }

    /// Each of the statements is refused for want of a right.
    pub(crate) async fn may_not(&self, statements: &[&str]) {
        let client = self.client().await;
        for statement in statements {
            let error = client.batch_execute(statement).await.expect_err(statement);
            assert_eq!(error.code().unwrap().code(), "42501", "{statement}: {error:?}");
        }
    }

    pub(crate) async fn drop(self) {
        let drop = format!("DROP OWNED BY \"{0}\"; DROP ROLE \"{0}\"", self.name);
        self.owner.batch_execute(&drop).await.unwrap();
    }
}
