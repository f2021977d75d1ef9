//! `--help`.

use super::run;

const NOWHERE: &str = "postgres://postgres@127.0.0.1:1/nowhere";

/// The verbs of the tool, or those below one of them.
async fn verbs(of: &str) -> Vec<String> {
    let help = run(NOWHERE, &format!("{of} --help")).await;
    let Some((_, commands)) = help.said().split_once("Commands:\n") else { return Vec::new() };
    let lines = commands.lines().take_while(|line| !line.is_empty());
    // A line that goes on is indented further.
    let named =
        lines.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    named.filter(|verb| *verb != "help").map(|verb| format!("{of} {verb}").trim().to_owned()).collect()
}

#[tokio::test]
async fn every_verb_has_help_with_examples() {
    let mut verbs = verbs("").await;
    assert!(verbs.len() >= 18, "{verbs:?}");
    for verb in verbs.clone() {
        verbs.extend(self::verbs(&verb).await);
    }
    for verb in ["dead-letters retry", "ledger forget"] {
        assert!(verbs.iter().any(|known| known == verb), "{verbs:?}");
    }
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
async fn help_is_given_however_it_is_asked_for() {
    let whole = run(NOWHERE, "--help").await.said().to_owned();
    for asked in ["help", "help --help", "help -h"] {
        assert_eq!(run(NOWHERE, asked).await.said(), whole, "{asked}");
    }
    let one = run(NOWHERE, "dead-letters retry --help").await.said().to_owned();
    for asked in ["help dead-letters retry", "dead-letters help retry", "dead-letters help retry --help"] {
        assert_eq!(run(NOWHERE, asked).await.said(), one, "{asked}");
    }
}

#[tokio::test]
async fn exit_codes_are_documented() {
    let help = run(NOWHERE, "--help").await;
    for code in ["0 ", "1 ", "2 ", "3 ", "4 ", "130 "] {
        assert!(help.said().contains(&format!("\n  {code}")), "{code}: {}", help.out);
    }
}
