//! Who may do what: four roles, which the application's roles are made members of.

use serde::Serialize;
use tokio_postgres::Row;

use super::Admin;
use crate::error::Error;
use crate::pg::admin as statements;

/// One of the four roles of a schema. `sql/functions/rights.sql` says what each may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Role {
    /// `producer`, `consumer`, `monitor` or `admin`.
    pub kind: String,
    /// Its name, `inorder_producer` in the schema `inorder`.
    pub role: String,
    /// Is it there?
    pub is_there: bool,
    /// What it may not do and should, in words; empty for a role that is not there.
    pub lacking: Vec<String>,
    /// The roles that are members of it, by themselves.
    pub members: Vec<String>,
}

/// Who may do what.
impl Admin {
    /// The four roles of the schema, in a fixed order.
    pub async fn roles(&self) -> Result<Vec<Role>, Error> {
        let rows = self.ask("looking at the roles", statements::roles).await?;
        Ok(rows.iter().map(Role::from_row).collect())
    }

    /// Makes those of the four roles that are missing, and gives each its rights; answers the names of those that were made.
    /// None of them can log in: `GRANT inorder_consumer TO shop` makes a role one of them. They belong to the cluster, their
    /// rights to this database.
    ///
    /// # Errors
    /// [`ErrorKind::Database`] with SQLSTATE 42501 for whoever may not create roles, or does not own the schema.
    ///
    /// [`ErrorKind::Database`]: crate::ErrorKind::Database
    pub async fn create_roles(&self) -> Result<Vec<String>, Error> {
        let rows = self.ask("creating the roles", statements::create_roles).await?;
        Ok(rows.iter().filter(|row| row.get("created")).map(|row| row.get("role")).collect())
    }
}

impl Role {
    fn from_row(row: &Row) -> Self {
        Self {
            kind: row.get("kind"),
            role: row.get("role"),
            is_there: row.get("is_there"),
            lacking: row.get("lacking"),
            members: row.get("members"),
        }
    }
}
