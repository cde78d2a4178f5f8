//! Tokens as text, spaced as `rustfmt` spaces signatures.

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};
use quote::ToTokens;

/// The text of a piece of a signature, on one line.
pub(super) fn text(tokens: &impl ToTokens) -> String {
    let mut text = String::new();
    append(&mut text, tokens.to_token_stream());
    text
}

fn append(text: &mut String, tokens: TokenStream) {
    // Whether the previous token was a `Joint` punctuation: `:` of `::`, `-` of `->`.
    let mut is_joint = false;
    for token in tokens {
        let word = match &token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::Brace => ("{ ", " }"),
                    Delimiter::None => ("", ""),
                };
                separate(text, if open.is_empty() { "x" } else { open }, false);
                // The tuple `(T,)` needs its comma; the arguments `f(a,)` of a broken line do not.
                let is_call = text.ends_with(|letter: char| letter.is_alphanumeric() || "_>".contains(letter));
                text.push_str(open);
                let start = text.len();
                append(text, group.stream());
                if text.ends_with(',') && (is_call || text[start..].matches(',').count() > 1) {
                    text.pop();
                }
                text.push_str(close);
                is_joint = false;
                continue;
            }
            token => token.to_string(),
        };
        separate(text, &word, is_joint);
        text.push_str(&word);
        is_joint = matches!(&token, TokenTree::Punct(punct) if punct.spacing() == Spacing::Joint);
    }
}

/// Adds a space to `text` where one belongs before `next`.
fn separate(text: &mut String, next: &str, is_joint: bool) {
    let Some(last) = text.chars().next_back() else { return };
    let ends = |suffix: &str| text.ends_with(suffix);
    let none_after = is_joint
        || matches!(last, '(' | '[' | '<' | '&' | '!' | '?' | '#' | '*' | '\'' | '.' | ' ')
        || ends("::")
        || (next == "<" && !ends("->") && !ends("="));
    let none_before = matches!(next, "," | ";" | ">" | "." | ")" | "]")
        || (next == ":" && last != '=')
        || (next == "(" && (last.is_alphanumeric() || last == '_' || last == '>') && !ends("->") && !ends("dyn"));
    if !none_after && !none_before {
        text.push(' ');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_spaced_as_rustfmt_does() {
        for source in [
            "fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<usize, FileError>",
            "fn f<'a, T: ?Sized + Send>(x: &'a mut T, y: *const u8) -> Option<&'a T>",
            "fn g(f: impl Fn(u8) -> bool + Send + 'static, a: [u8; 4], b: (u8, u16)) -> Box<dyn Fn(u8)>",
            "const fn h() -> [u8; size_of::<Self>()]",
            "unsafe extern \"C\" fn i(self: Arc<Self>) -> <T as Iterator>::Item",
            "fn j(x: Pin<&mut Self>) -> !",
        ] {
            let tokens: TokenStream = source.parse().unwrap();
            assert_eq!(text(&tokens), source);
        }
    }

    #[test]
    fn commas_of_broken_lines_go_and_those_of_tuples_stay() {
        let tokens: TokenStream = "fn f(\n    a: u8,\n) -> (u8,)".parse().unwrap();
        assert_eq!(text(&tokens), "fn f(a: u8) -> (u8,)");
    }
}
