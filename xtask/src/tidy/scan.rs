//! Splits Rust source into code, comments and tests, one record per line.

#![allow(clippy::wildcard_enum_match_arm, reason = "most kinds of tokens are code")]

use ra_ap_rustc_lexer::{FrontmatterAllowed, LiteralKind, TokenKind, tokenize};
use syn::UseTree;

/// A line of Rust source. `code` and `comment` leave out the contents of strings and characters.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) code: String,
    pub(super) comment: String,
    /// The contents of the strings that start on this line, to their ends, with escapes resolved.
    pub(super) strings: Vec<String>,
    /// Whether the line is part of an item under `#[cfg(test)]`.
    pub(super) is_test: bool,
}

/// A path such as `std::sync::Arc`, in full even where `use` braces take it apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) line: usize,
    pub(super) path: String,
    pub(super) is_test: bool,
}

/// The lines of `text`.
pub(super) fn lines(text: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = text.lines().map(|_| Line::default()).collect();
    let (mut start, mut number) = (0, 0);
    for token in tokenize(text, FrontmatterAllowed::No) {
        let part = &text[start..start + token.len as usize];
        match token.kind {
            TokenKind::LineComment { .. } | TokenKind::BlockComment { .. } => {
                part.lines().zip(&mut lines[number..]).for_each(|(part, line)| line.comment += part);
            }
            TokenKind::Literal { kind: LiteralKind::Str { .. } | LiteralKind::RawStr { .. }, .. } => {
                lines[number].code += "\"\"";
                lines[number].strings.extend(syn::parse_str::<syn::LitStr>(part).map(|string| string.value()));
            }
            TokenKind::Literal { kind: LiteralKind::Int { .. } | LiteralKind::Float { .. }, .. } => {
                lines[number].code += part;
            }
            TokenKind::Literal { .. } => lines[number].code += "''",
            _ => part.lines().zip(&mut lines[number..]).for_each(|(part, line)| line.code += part),
        }
        start += part.len();
        number += part.matches('\n').count();
    }
    mark_tests(&mut lines);
    lines
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
        && code.split(|letter| !is_identifier(letter)).any(|word| word == "test")
        && !code.contains("not(test")
        && !code.contains("any(test")
}

/// Whether `letter` may be part of an identifier.
pub(super) fn is_identifier(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Every path of two or more segments in the code, and everything that a `use` names.
pub(super) fn named(lines: &[Line]) -> Vec<Named> {
    const STARTS: [&str; 4] = ["use ", "pub use ", "pub(crate) use ", "pub(super) use "];
    let mut found = Vec::new();
    let mut open_use: Option<(usize, String)> = None;
    for (number, line) in (1..).zip(lines) {
        let mut add = |number, path: &str| {
            found.push(Named { line: number, path: path.to_owned(), is_test: line.is_test });
        };
        if let Some((_, text)) = &mut open_use {
            *text += &line.code;
        } else if STARTS.iter().any(|start| line.code.trim_start().starts_with(start)) {
            open_use = Some((number, line.code.clone()));
        } else {
            let words = line.code.split(|letter| !is_identifier(letter) && letter != ':');
            words.filter(|word| word.contains("::")).for_each(|word| add(number, word.trim_matches(':')));
        }
        if let Some((start, text)) = open_use.take_if(|(_, text)| text.contains(';'))
            && let Ok(item) = syn::parse_str::<syn::ItemUse>(&text)
        {
            expand("", &item.tree, &mut |path| add(start, path));
        }
    }
    found
}

/// Calls `add` with each path of a `use` tree.
fn expand(prefix: &str, tree: &UseTree, add: &mut impl FnMut(&str)) {
    match tree {
        UseTree::Path(part) => expand(&format!("{prefix}{}::", part.ident), &part.tree, add),
        UseTree::Name(part) => add(&format!("{prefix}{}", part.ident)),
        UseTree::Rename(part) => add(&format!("{prefix}{}", part.ident)),
        UseTree::Glob(_) => add(&format!("{prefix}*")),
        UseTree::Group(group) => group.items.iter().for_each(|tree| expand(prefix, tree, add)),
    }
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
        assert_eq!(code("x(r#\"a \" b\"#, b\"\\\"\"); z"), ["x(\"\", ''); z"]);
        assert_eq!(code("f('\"', '\\'', b'{', 1); &'a str"), ["f('', '', '', 1); &'a str"]);
        assert_eq!(code("\"one \\\n two\" x\ny"), ["\"\"", " x", "y"]);
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
}
