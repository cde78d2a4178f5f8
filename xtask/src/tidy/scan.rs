//! Splits Rust source into code, comments and tests, one record per line, without a parser.

/// One line. `code` and `comment` leave out the contents of strings and characters.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) code: String,
    pub(super) comment: String,
    /// The contents of the strings that start on this line, to their ends, with escapes resolved.
    pub(super) strings: Vec<String>,
    /// Part of an item under `#[cfg(test)]`.
    pub(super) is_test: bool,
}

/// A path such as `std::sync::Arc`, in full even where `use` braces take it apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) line: usize,
    pub(super) path: String,
    pub(super) is_test: bool,
}

enum State {
    Code,
    LineComment,
    BlockComment(usize),
    Text,
    /// A raw string with this many `#`.
    RawText(usize),
}

/// The lines of `text`.
pub(super) fn lines(text: &str) -> Vec<Line> {
    let mut lines = vec![Line::default()];
    let mut state = State::Code;
    let mut rest = text;
    // The string that is open, and the index of its first line.
    let (mut string, mut string_line) = (String::new(), 0);
    while let Some(next) = rest.chars().next() {
        let number = lines.len() - 1;
        let line = &mut lines[number];
        let mut taken = next.len_utf8();
        if next == '\n' {
            lines.push(Line::default());
            match state {
                State::LineComment => state = State::Code,
                State::Text | State::RawText(_) => string.push('\n'),
                State::Code | State::BlockComment(_) => {}
            }
            rest = &rest[taken..];
            continue;
        }
        match state {
            State::Code if rest.starts_with("//") => state = State::LineComment,
            State::Code if rest.starts_with("/*") => (state, taken) = (State::BlockComment(1), 2),
            State::Code if next == '"' => {
                let before = line.code.trim_end_matches('#');
                let hashes = line.code.len() - before.len();
                state = if before.ends_with('r') { State::RawText(hashes) } else { State::Text };
                (string, string_line) = (String::new(), number);
                line.code.push('"');
            }
            State::Code => {
                taken = character(rest).unwrap_or(taken);
                line.code.push(next);
            }
            State::LineComment => {}
            State::BlockComment(depth) if rest.starts_with("*/") => {
                (state, taken) = (if depth == 1 { State::Code } else { State::BlockComment(depth - 1) }, 2);
            }
            State::BlockComment(depth) if rest.starts_with("/*") => {
                (state, taken) = (State::BlockComment(depth + 1), 2)
            }
            State::BlockComment(_) => {}
            State::Text if next == '\\' => {
                let escaped = rest[1..].chars().next().unwrap_or_default();
                match escaped {
                    // Marked for `joined`; the newline itself is read next, so that lines are still counted.
                    '\n' => string.push('\u{0}'),
                    'n' => string.push('\n'),
                    _ => string.push(escaped),
                }
                taken += if escaped == '\n' { 0 } else { escaped.len_utf8() };
            }
            State::Text if next == '"' => {
                line.code.push('"');
                lines[string_line].strings.push(joined(&string));
                state = State::Code;
                rest = &rest[taken..];
                continue;
            }
            State::RawText(hashes) if next == '"' && rest[1..].starts_with(&"#".repeat(hashes)) => {
                line.code.push('"');
                lines[string_line].strings.push(string.clone());
                state = State::Code;
                rest = &rest[1 + hashes..];
                continue;
            }
            State::Text | State::RawText(_) => string.push(next),
        }
        if matches!(state, State::LineComment | State::BlockComment(_)) {
            line.comment.push_str(&rest[..taken]);
        }
        rest = &rest[taken..];
    }
    if text.ends_with('\n') {
        lines.pop();
    }
    mark_tests(&mut lines);
    lines
}

/// A string whose lines end in a backslash, marked by a NUL, as the compiler joins them.
fn joined(string: &str) -> String {
    let mut parts = string.split("\u{0}\n");
    let mut whole = parts.next().unwrap_or_default().to_owned();
    parts.for_each(|part| whole.push_str(part.trim_start()));
    whole
}

/// Length of the character literal that `text` starts with, if it is one and no lifetime.
fn character(text: &str) -> Option<usize> {
    let inner = text.strip_prefix('\'')?;
    let mut letters = inner.char_indices();
    let (_, first) = letters.next()?;
    let (end, second) = letters.next()?;
    if first != '\\' {
        return (second == '\'').then_some(end + 2);
    }
    let after_escape = end + second.len_utf8();
    Some(1 + after_escape + inner[after_escape..].find('\'')? + 1)
}

/// Marks every item under a `cfg` that holds in tests only: from the attribute to its closing brace or semicolon.
fn mark_tests(lines: &mut [Line]) {
    let mut depth = None;
    for line in lines {
        if depth.is_none() && is_test_cfg(&line.code) {
            depth = Some(0_usize);
        }
        line.is_test = depth.is_some();
        let Some(mut open) = depth else { continue };
        let mut ended = false;
        for letter in line.code.chars() {
            match letter {
                '{' | '(' | '[' => open += 1,
                '}' | ')' | ']' => open = open.saturating_sub(1),
                _ => {}
            }
            ended |= open == 0 && matches!(letter, '}' | ';');
        }
        depth = (!ended).then_some(open);
    }
}

fn is_test_cfg(code: &str) -> bool {
    code.trim_start().starts_with("#[cfg(")
        && has_word(code, "test")
        && !code.contains("not(test")
        && !code.contains("any(test")
}

/// Whether `word` stands in `code` with no letter, digit or `_` beside it.
pub(super) fn has_word(code: &str, word: &str) -> bool {
    code.match_indices(word)
        .any(|(at, _)| !code[..at].ends_with(is_identifier) && !code[at + word.len()..].starts_with(is_identifier))
}

/// Whether `letter` may be part of an identifier.
pub(super) fn is_identifier(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Every path of two or more segments in the code, and everything that a `use` names.
pub(super) fn named(lines: &[Line]) -> Vec<Named> {
    let mut found = Vec::new();
    let mut open_use: Option<(usize, String)> = None;
    for (number, line) in (1..).zip(lines) {
        let mut add = |line_number, path: &str| {
            found.push(Named { line: line_number, path: path.to_owned(), is_test: line.is_test });
        };
        if open_use.is_none()
            && let Some(start) = use_start(&line.code)
        {
            open_use = Some((number, start.to_owned()));
        } else if let Some((_, text)) = &mut open_use {
            text.push(' ');
            text.push_str(&line.code);
        } else {
            let words = line.code.split(|letter| !is_identifier(letter) && letter != ':');
            words.filter(|word| word.contains("::")).for_each(|word| add(number, word.trim_matches(':')));
        }
        if let Some((start, text)) = &open_use
            && let Some((tree, _)) = text.split_once(';')
        {
            expand("", tree, &mut |path| add(*start, path));
            open_use = None;
        }
    }
    found
}

/// The text after `use` if the line starts with one, with or without `pub`.
fn use_start(code: &str) -> Option<&str> {
    let code = code.trim_start();
    let after_reach = match code.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1,
        Some(rest) => rest,
        None => code,
    };
    after_reach.trim_start().strip_prefix("use ")
}

/// Calls `add` with each path of a `use` tree.
fn expand(prefix: &str, tree: &str, add: &mut impl FnMut(&str)) {
    let tree = tree.trim();
    let Some((head, group)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree).trim();
        if !path.is_empty() {
            add(format!("{prefix}{path}").trim_matches(':'));
        }
        return;
    };
    let group = group.trim_end().strip_suffix('}').unwrap_or(group);
    let (mut depth, mut start) = (0_usize, 0);
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                expand(&format!("{prefix}{}", head.trim()), &group[start..at], add);
                start = at + 1;
            }
            _ => {}
        }
    }
    expand(&format!("{prefix}{}", head.trim()), &group[start..], add);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Vec<String> {
        lines(text).into_iter().map(|line| line.code).collect()
    }

    #[test]
    fn comments_and_strings_are_no_code() {
        assert_eq!(code("a /* b /* c */ d */ e // f"), ["a  e "]);
        assert_eq!(code("x(\"// \\\" y\"); z"), ["x(\"\"); z"]);
        assert_eq!(code("x(r#\"a \" b\"#, br\"\\\"); z"), ["x(r#\"\", br\"\"); z"]);
        assert_eq!(code("f('\"', '\\'', '\\u{7f}', b'/'); &'a str"), ["f(', ', ', b'); &'a str"]);
        assert_eq!(code("\"one \\\n two\" x\ny"), ["\"", "\" x", "y"]);
        assert_eq!(lines("a // b\n/// c")[1].comment, "/// c");
    }

    #[test]
    fn strings_are_kept_whole_with_their_first_line() {
        let text = "f(\"a \\\"b\\\" \\\n    c\", r#\"d \\n\"#);\ng(\"\\n\");";
        let strings: Vec<Vec<String>> = lines(text).into_iter().map(|line| line.strings).collect();
        assert_eq!(strings, [vec!["a \"b\" c".to_owned()], vec!["d \\n".to_owned()], vec!["\n".to_owned()]]);
    }

    #[test]
    fn items_under_cfg_test_are_tests() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n#[cfg(all(test, not(x)))]\nfn f(\n    x: [u8; 2],\n) {}\nfn c() {}\n\
                    #[cfg(not(test))]\nfn d() {}\n";
        let marks: Vec<bool> = lines(text).iter().map(|line| line.is_test).collect();
        assert_eq!(marks, [false, true, true, true, true, true, true, true, true, false, false, false]);
    }

    #[test]
    fn use_trees_are_expanded() {
        let text =
            "pub(crate) use std::{\n    fmt,\n    sync::{Arc, atomic::{self, AtomicU8}},\n};\nlet x = a::b::<c::D>();";
        let paths: Vec<String> =
            named(&lines(text)).into_iter().map(|named| format!("{} {}", named.line, named.path)).collect();
        assert_eq!(
            paths,
            [
                "1 std::fmt",
                "1 std::sync::Arc",
                "1 std::sync::atomic::self",
                "1 std::sync::atomic::AtomicU8",
                "5 a::b",
                "5 c::D"
            ]
        );
    }

    #[test]
    fn words_end_where_identifiers_end() {
        assert!(has_word("x = unsafe { y }", "unsafe"));
        assert!(!has_word("forbid(unsafe_code)", "unsafe"));
    }
}
