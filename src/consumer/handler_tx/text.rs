//! What the text of a statement tells about it; pure.

/// Would one of these statements end the transaction that it runs in?
pub(super) fn ends_transaction(statements: &str) -> bool {
    let mut rest = statements;
    loop {
        rest = skip_blank(rest);
        let (word, after) = split_word(rest);
        // The body of a routine in SQL has statements of its own, and words that look like them.
        if word.eq_ignore_ascii_case("create") {
            return false;
        }
        if is_end(word, after) {
            return true;
        }
        match skip_statement(rest) {
            Some(next) => rest = next,
            None => return false,
        }
    }
}

fn is_end(word: &str, after: &str) -> bool {
    let is = |w: &str| word.eq_ignore_ascii_case(w);
    let next = |from: &str| split_word(skip_blank(from)).0.to_ascii_lowercase();
    match () {
        () if is("commit") || is("end") || is("abort") => true,
        () if is("prepare") => next(after) == "transaction",
        () if is("rollback") => {
            let mut after = skip_blank(after);
            if matches!(next(after).as_str(), "work" | "transaction") {
                after = split_word(after).1;
            }
            next(after) != "to"
        }
        () => false,
    }
}

/// Does the statement put events into the log of this schema, by its own words?
pub(super) fn appends(statement: &str, schema: &str, quoted: &str) -> bool {
    statement.match_indices('.').any(|(dot, _)| {
        let (before, after) = (&statement[..dot], &statement[dot + 1..]);
        let of_schema = before.ends_with(quoted)
            || before.get(dot.wrapping_sub(schema.len())..).is_some_and(|s| s.eq_ignore_ascii_case(schema));
        let begins = |word: &str| {
            after.trim_start_matches('"').get(..word.len()).is_some_and(|w| w.eq_ignore_ascii_case(word))
        };
        of_schema && (begins("append") || begins("events") && has_word(before, "into"))
    })
}

fn has_word(text: &str, word: &str) -> bool {
    text.split_ascii_whitespace().any(|w| w.eq_ignore_ascii_case(word))
}

fn split_word(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len()))
}

/// Skips white space, comments and empty statements.
fn skip_blank(text: &str) -> &str {
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ';');
        rest = match rest.get(..2) {
            Some("--" | "/*") => skip_comment(rest),
            _ => return rest,
        }
    }
}

fn skip_comment(text: &str) -> &str {
    if text.starts_with("--") {
        return text.find('\n').map_or("", |end| &text[end..]);
    }
    // These nest.
    let (mut depth, mut rest) = (0_u32, text);
    loop {
        match (rest.find("/*"), rest.find("*/")) {
            (Some(open), Some(close)) if open < close => (depth, rest) = (depth + 1, &rest[open + 2..]),
            (_, Some(close)) => (depth, rest) = (depth.saturating_sub(1), &rest[close + 2..]),
            (_, None) => return "",
        }
        if depth == 0 {
            return rest;
        }
    }
}

/// What follows the semicolon that ends the statement, if there is one.
fn skip_statement(text: &str) -> Option<&str> {
    let mut rest = text;
    loop {
        let at = rest.find([';', '\'', '"', '$', '-', '/'])?;
        let escapes = rest[..at].ends_with(['e', 'E']);
        rest = &rest[at..];
        rest = match rest.as_bytes()[0] {
            b';' => return Some(&rest[1..]),
            b'\'' => skip_quoted(&rest[1..], '\'', escapes),
            b'"' => skip_quoted(&rest[1..], '"', false),
            b'$' => skip_dollars(rest),
            _ if rest.starts_with("--") || rest.starts_with("/*") => skip_comment(rest),
            _ => &rest[1..],
        };
    }
}

fn skip_quoted(text: &str, quote: char, escapes: bool) -> &str {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if escapes => escaped = true,
            // A doubled quote opens again at once.
            c if c == quote => return &text[at + 1..],
            _ => {}
        }
    }
    ""
}

fn skip_dollars(text: &str) -> &str {
    let tag = text[1..].find(|c: char| !c.is_alphanumeric() && c != '_').map(|end| &text[..end + 2]);
    match tag {
        Some(tag) if tag.ends_with('$') && !tag[1..].starts_with(|c: char| c.is_ascii_digit()) => {
            let body = &text[tag.len()..];
            body.find(tag).map_or("", |end| &body[end + tag.len()..])
        }
        // A parameter.
        _ => &text[1..],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_a_transaction_is_found_among_other_statements() {
        for text in [
            "COMMIT",
            " commit ;",
            "-- a remark\nROLLBACK",
            "/* a /* nested */ remark */ end",
            "ABORT WORK",
            "rollback transaction",
            "PREPARE TRANSACTION 'x'",
            "SELECT 1; COMMIT",
            "SELECT ';', $$;$$, \"a;b\", E'\\';' /* ; */; SELECT $1;\nROLLBACK",
            "INSERT INTO t VALUES ('it''s'); COMMIT AND CHAIN",
        ] {
            assert!(ends_transaction(text), "{text}");
        }
    }

    #[test]
    fn what_only_looks_like_an_end_is_let_through() {
        for text in [
            "",
            "SELECT 1",
            "ROLLBACK TO SAVEPOINT s",
            "rollback work to s",
            "SELECT 'x; COMMIT'",
            "DO $do$ BEGIN PERFORM 1; END $do$",
            "SELECT $1; SELECT '; COMMIT'",
            "PREPARE p AS SELECT 1",
            "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END",
            "committed",
            "/* COMMIT",
        ] {
            assert!(!ends_transaction(text), "{text}");
        }
    }

    #[test]
    fn an_append_is_seen_in_the_text() {
        let appends = |text| appends(text, "inorder", "\"inorder\"");
        assert!(appends("SELECT * FROM inorder.append('a', '{}')"));
        assert!(appends("insert into INORDER.events (event_type) VALUES ('a')"));
        assert!(appends("SELECT \"inorder\".\"append\"('a')"));
        assert!(!appends("SELECT count(*) FROM inorder.events"));
        assert!(!appends("INSERT INTO reinorder.eventual VALUES (1.5)"));
        assert!(!appends("INSERT INTO shop.events VALUES (1)"));
    }
}
