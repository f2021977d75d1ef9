//! `--help`.

use super::run;

const NOWHERE: &str = "postgres://postgres@127.0.0.1:1/nowhere";

async fn verbs() -> Vec<String> {
    let help = run(NOWHERE, "--help").await;
    let (_, commands) = help.said().split_once("Commands:\n").unwrap();
    let lines = commands.lines().take_while(|line| !line.is_empty());
    // A line that goes on is indented further.
    let named =
        lines.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    named.filter(|verb| *verb != "help").map(str::to_owned).collect()
}

#[tokio::test]
async fn every_verb_has_help_with_examples() {
    let verbs = verbs().await;
    assert!(verbs.len() >= 18, "{verbs:?}");
    for verb in &verbs {
        let help = run(NOWHERE, &format!("{verb} --help")).await;
        assert!(help.said().contains(&format!("Examples:\n  inorder {verb}")), "{verb}: {}", help.out);
        assert!(help.out.contains("--json"), "{verb}");
        for line in help.out.lines() {
            assert!(line.chars().count() <= 100, "{verb}: {line}");
        }
    }
}

#[tokio::test]
async fn exit_codes_are_documented() {
    let help = run(NOWHERE, "--help").await;
    for code in ["0 ", "1 ", "2 ", "3 ", "4 ", "130 "] {
        assert!(help.said().contains(&format!("\n  {code}")), "{code}: {}", help.out);
    }
}
