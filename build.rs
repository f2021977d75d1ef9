//! Lists the SQL files of the schema, so that adding one is all that it takes and no list can forget one.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let mut list = String::from("pub(crate) const MIGRATIONS: &[Migration] = &[\n");
    for (index, path) in sql_files(&root.join("sql/migrations")).iter().enumerate() {
        let stem = stem(path);
        let (version, name) = stem.split_once('_').unwrap_or_default();
        assert!(
            version.len() == 4 && version.parse() == Ok(index + 1) && !name.is_empty(),
            "sql/migrations/{stem}.sql: the next migration is {:04}_<name>.sql",
            index + 1
        );
        writeln!(
            list,
            "    Migration {{ version: {}, name: {name:?}, text: include_str!({path:?}) }},",
            index + 1
        )
        .expect("a string takes everything");
    }
    list.push_str("];\npub(crate) const FUNCTIONS: &[(&str, &str)] = &[\n");
    for path in sql_files(&root.join("sql/functions")) {
        writeln!(list, "    ({:?}, include_str!({path:?})),", stem(&path))
            .expect("a string takes everything");
    }
    list.push_str("];\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("schema_files.rs"), list).expect("the list of SQL files is written");
    println!("cargo::rerun-if-changed=build.rs");
}

/// The SQL files of a folder, in the order of their names.
fn sql_files(folder: &Path) -> Vec<PathBuf> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.expect("a folder can be read to its end").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sql"))
        .collect();
    files.sort();
    files
}

fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|stem| stem.to_str()).expect("the name of an SQL file is ASCII")
}
