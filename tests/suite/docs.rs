//! What is written down is kept true: names in the pages exist, and statements say who they are.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every file below a folder with this ending.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no .{ending} below {folder}");
    found
}

/// The words in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Every guarantee names a test that pins it, and that test is there.
#[test]
fn each_invariant_names_tests_that_exist() {
    let page = read("docs/invariants.md");
    let sources: String = files("tests", "rs")
        .iter()
        .chain(&files("src", "rs"))
        .map(|p| fs::read_to_string(p).unwrap())
        .collect();
    let mut pinned = 0;
    for line in page.lines().filter(|line| line.starts_with("- pinned by:")) {
        let mut names = quoted(line).peekable();
        assert!(names.peek().is_some(), "names no test: {line}");
        for name in names {
            assert!(
                sources.contains(&format!("fn {name}(")),
                "docs/invariants.md names the test {name}, which is not there"
            );
            pinned += 1;
        }
    }
    let invariants = page.lines().filter(|line| line.starts_with("## I-")).count();
    let with_tests = page.lines().filter(|line| line.starts_with("- pinned by:")).count();
    assert!(
        invariants >= 8 && with_tests >= invariants && pinned >= 20,
        "{invariants} {with_tests} {pinned}"
    );
}

/// The table of metrics and the code have the same names.
#[test]
fn the_page_of_metrics_has_every_metric_and_no_other() {
    let code: BTreeSet<String> = read("src/metrics.rs")
        .split('"')
        .filter(|word| {
            word.starts_with("inorder_") && word.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        })
        .map(str::to_owned)
        .collect();
    let page = read("docs/metrics.md");
    let listed: BTreeSet<String> = page
        .lines()
        .filter(|line| line.starts_with("| `inorder_"))
        .map(|line| quoted(line).next().unwrap().to_owned())
        .collect();
    assert_eq!(code, listed);
}

/// The first line of a statement is its name, which `pg_stat_statements` and the server's log show.
#[test]
fn each_statement_begins_with_its_name() {
    for path in files("sql/query", "sql") {
        let name = path.strip_prefix(root().join("sql/query")).unwrap().with_extension("");
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(
            text.lines().next(),
            Some(format!("-- inorder {}", name.display()).as_str()),
            "{}",
            path.display()
        );
        assert!(
            text.lines().nth(1).is_some_and(|line| line.starts_with("-- ")),
            "{} says nothing of its purpose",
            path.display()
        );
    }
}

/// What is prepared by hand is not there behind a pooler.
#[test]
fn statements_of_ours_are_prepared_in_one_place() {
    for path in files("src/pg", "rs").into_iter().filter(|path| !path.ends_with("statement.rs")) {
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("prepare_cached"), "{}: use Schema::prepare", path.display());
    }
}

/// Links between pages lead somewhere.
#[test]
fn links_between_the_pages_lead_somewhere() {
    for page in files("docs", "md").into_iter().chain([root().join("README.md")]) {
        let text = fs::read_to_string(&page).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = target.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let path = page.parent().unwrap().join(target);
            assert!(path.exists(), "{} links to {target}, which is not there", page.display());
        }
    }
}

/// Whatever the doctor may find, the page for operators says what it means.
#[test]
fn every_finding_of_the_doctor_is_explained() {
    let page = read("docs/operations.md");
    let section = page.split("## What the doctor finds").nth(1).unwrap().split("\n## ").next().unwrap();
    let sql = read("sql/functions/doctor.sql");
    let mut kinds: BTreeSet<String> = sql
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("SELECT '")?.split_once("', "))
        .map(|(kind, _)| kind.to_owned())
        .collect();
    kinds.extend(["clock", "pooler"].map(str::to_owned));
    assert!(kinds.len() >= 17, "{kinds:?}");
    for kind in kinds {
        assert!(section.contains(&format!("`{kind}`")), "docs/operations.md does not explain `{kind}`");
    }
}

/// Names of our metrics in a text.
fn metrics_in(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("inorder_") && word.len() > "inorder_".len())
        .map(|word| word.strip_suffix("_bucket").unwrap_or(word).to_owned())
        .collect()
}

/// An alert about a metric that does not exist never fires.
#[test]
fn rules_and_dashboard_speak_of_metrics_that_exist() {
    let known = metrics_in(&read("docs/metrics.md"));
    for file in ["docs/monitoring/inorder.rules.yml", "docs/monitoring/dashboard.json"] {
        let used = metrics_in(&read(file));
        assert!(used.len() > 10, "{file}: {used:?}");
        let unknown: Vec<_> = used.difference(&known).collect();
        assert!(unknown.is_empty(), "{file} speaks of {unknown:?}, which docs/metrics.md does not list");
    }
}

#[test]
fn every_alert_is_explained_and_tried() {
    let (rules, page) = (read("docs/monitoring/inorder.rules.yml"), read("docs/monitoring/README.md"));
    let trials = read("docs/monitoring/inorder.rules.test.yml");
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 10, "{alerts:?}");
    for alert in alerts {
        assert!(
            page.contains(&format!("\n### {alert}\n")),
            "docs/monitoring/README.md does not explain {alert}"
        );
        assert!(rules.contains(&format!("README.md#{}\n", alert.to_lowercase())), "{alert} has no runbook");
        assert!(trials.contains(&format!("alertname: {alert}\n")), "{alert} is never tried");
    }
}

/// The unit tests of the rules, by Prometheus itself.
#[test]
fn the_rules_pass_their_tests() {
    for arguments in [["check", "rules", "inorder.rules.yml"], ["test", "rules", "inorder.rules.test.yml"]] {
        let output = std::process::Command::new("promtool")
            .args(arguments)
            .current_dir(root().join("docs/monitoring"))
            .output()
            .unwrap_or_else(|e| panic!("promtool, of the package `prometheus`, is needed; script/setup installs it where it can: {e}"));
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "promtool {arguments:?}:\n{}", String::from_utf8_lossy(&said));
    }
}
