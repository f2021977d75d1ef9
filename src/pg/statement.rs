//! How a statement of ours goes to the server: prepared once per session; or, behind a pooler that gives each transaction another
//! session, whole, as what is prepared in one session is not there in the next.

use std::sync::Arc;

use deadpool_postgres::ClientWrapper;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, RowStream, Statement};

use super::Schema;

type Result<T> = std::result::Result<T, tokio_postgres::Error>;
type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A statement that can be run.
#[derive(Clone)]
pub(crate) enum Ready {
    Prepared(Statement),
    Whole(Arc<str>, Vec<Type>),
}

impl Schema {
    /// A statement for this schema, ready to run in this session.
    pub(crate) async fn prepare(&self, client: &ClientWrapper, statement: &'static str) -> Result<Ready> {
        if self.is_pooled() {
            return Ok(self.whole(statement));
        }
        Ok(Ready::Prepared(client.prepare_cached(&self.sql(statement)).await?))
    }

    /// The same, of a text that is for this schema already.
    #[cfg(feature = "http")]
    pub(crate) async fn prepare_text(&self, client: &ClientWrapper, text: &str) -> Result<Ready> {
        match self.is_pooled() {
            true => Ok(Ready::Whole(text.into(), types(text))),
            false => Ok(Ready::Prepared(client.prepare_cached(text).await?)),
        }
    }

    /// A statement for this schema that is sent whole anyway: it is rare.
    pub(crate) fn whole(&self, statement: &'static str) -> Ready {
        Ready::Whole(self.sql(statement), types(statement))
    }
}

impl Ready {
    pub(crate) async fn query(&self, client: &Client, params: Params<'_>) -> Result<Vec<Row>> {
        match self {
            Self::Prepared(statement) => client.query(statement, params).await,
            Self::Whole(text, types) => client.query_typed(text, &typed(params, types)).await,
        }
    }

    /// Of a statement that answers one row.
    pub(crate) async fn query_one(&self, client: &Client, params: Params<'_>) -> Result<Row> {
        match self {
            Self::Prepared(statement) => client.query_one(statement, params).await,
            Self::Whole(text, types) => client.query_typed_one(text, &typed(params, types)).await,
        }
    }

    /// Of a statement that answers one row or none.
    pub(crate) async fn query_opt(&self, client: &Client, params: Params<'_>) -> Result<Option<Row>> {
        match self {
            Self::Prepared(statement) => client.query_opt(statement, params).await,
            Self::Whole(text, types) => client.query_typed_opt(text, &typed(params, types)).await,
        }
    }

    /// The rows as they come.
    pub(crate) async fn query_raw(&self, client: &Client, params: Params<'_>) -> Result<RowStream> {
        match self {
            Self::Prepared(statement) => client.query_raw(statement, params.iter().copied()).await,
            Self::Whole(text, types) => client.query_typed_raw(text, typed(params, types)).await,
        }
    }

    /// How many rows it touched.
    pub(crate) async fn execute(&self, client: &Client, params: Params<'_>) -> Result<u64> {
        match self {
            Self::Prepared(statement) => client.execute(statement, params).await,
            Self::Whole(text, types) => client.execute_typed(text, &typed(params, types)).await,
        }
    }
}

fn typed<'a>(params: Params<'a>, types: &[Type]) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    params.iter().copied().zip(types.iter().cloned()).collect()
}

/// The types of a statement's parameters, which our statements write behind each of them: `$1::bigint`.
fn types(statement: &str) -> Vec<Type> {
    let mut types = Vec::new();
    let lines = statement.lines().filter(|line| !line.trim_start().starts_with("--"));
    for piece in lines.flat_map(|line| line.split('$').skip(1)) {
        let Some((number, cast)) = piece.split_once("::") else { continue };
        let Ok(number) = number.parse::<usize>() else { continue };
        let name = cast.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '[' | ']')).next();
        if types.len() < number {
            types.resize(number, Type::UNKNOWN);
        }
        if let Some(kind) = name.and_then(named) {
            types[number - 1] = kind;
        }
    }
    types
}

fn named(name: &str) -> Option<Type> {
    Some(match name {
        "bigint" => Type::INT8,
        "bigint[]" => Type::INT8_ARRAY,
        "boolean" => Type::BOOL,
        "float8" => Type::FLOAT8,
        "float8[]" => Type::FLOAT8_ARRAY,
        "int" => Type::INT4,
        "int[]" => Type::INT4_ARRAY,
        "jsonb" => Type::JSONB,
        "text" => Type::TEXT,
        "text[]" => Type::TEXT_ARRAY,
        "timestamptz" => Type::TIMESTAMPTZ,
        "uuid" => Type::UUID,
        "uuid[]" => Type::UUID_ARRAY,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn the_types_are_those_that_the_text_writes() {
        let found = types("-- $1 text  x\nSELECT $2::uuid[], $1::int + $1::int, $12::jsonb");
        assert_eq!((found.len(), &found[..2]), (12, &[Type::INT4, Type::UUID_ARRAY][..]));
        assert_eq!((&found[2], &found[11]), (&Type::UNKNOWN, &Type::JSONB));
    }

    /// Sent whole, a parameter without a type could not be written.
    #[test]
    fn every_statement_writes_the_type_of_each_of_its_parameters() {
        let mut folders = vec![PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/query"))];
        let mut seen = 0;
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = fs::read_to_string(&path).unwrap();
                let declared = text.lines().filter(|line| line.starts_with("-- $")).count();
                let types = types(&text);
                assert_eq!(types.len(), declared, "{}", path.display());
                assert!(!types.contains(&Type::UNKNOWN), "{}: {types:?}", path.display());
                seen += 1;
            }
        }
        assert!(seen > 50);
    }
}
