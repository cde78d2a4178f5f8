//! The `macro_rules!` of a crate, expanded: one matching rule, with the fragments and repetitions that the compiler has.
//!
//! Hygiene, nested macro definitions and macros of other crates are left out: the listing needs the items only.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::discouraged::Speculative;
use syn::parse::{ParseStream, Parser};

/// The rules of one macro: patterns, and the tokens that replace a match.
pub(super) struct Rules(Vec<(Vec<Pattern>, TokenStream)>);

enum Pattern {
    Token(String),
    Group(Delimiter, Vec<Pattern>),
    Fragment { name: String, kind: String },
    Repeat { patterns: Vec<Pattern>, separator: Option<String>, operator: char },
}

/// The tokens that a fragment matched; `Many` inside a repetition.
#[derive(Clone)]
enum Bound {
    One(TokenStream),
    Many(Vec<Bound>),
}

type Bindings = BTreeMap<String, Bound>;

impl Rules {
    /// Reads the body of a `macro_rules!`.
    pub(super) fn read(body: TokenStream) -> Option<Rules> {
        let mut tokens = body.into_iter();
        let mut rules = Vec::new();
        while let Some(TokenTree::Group(matcher)) = tokens.next() {
            tokens.next()?; // `=`
            tokens.next()?; // `>`
            let TokenTree::Group(body) = tokens.next()? else { return None };
            rules.push((patterns(matcher.stream())?, body.stream()));
            tokens.next(); // `;`, which the last rule may lack
        }
        Some(Rules(rules))
    }

    /// Expands a call with `input` by the first rule that matches.
    pub(super) fn expand(&self, input: &TokenStream) -> Option<TokenStream> {
        self.0.iter().find_map(|(patterns, body)| {
            let matcher = |input: ParseStream<'_>| {
                let mut bindings = Bindings::new();
                match_all(patterns, input, &mut bindings).map(|()| bindings)
            };
            Some(transcribe(body.clone(), &matcher.parse2(input.clone()).ok()?))
        })
    }
}

fn patterns(tokens: TokenStream) -> Option<Vec<Pattern>> {
    let mut found = Vec::new();
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        found.push(match token {
            TokenTree::Punct(dollar) if dollar.as_char() == '$' => match tokens.next()? {
                TokenTree::Ident(name) => {
                    tokens.next()?; // `:`
                    Pattern::Fragment { name: name.to_string(), kind: tokens.next()?.to_string() }
                }
                TokenTree::Group(group) => {
                    let (separator, operator) = repetition(&mut tokens)?;
                    Pattern::Repeat { patterns: patterns(group.stream())?, separator, operator }
                }
                _ => return None,
            },
            TokenTree::Group(group) => Pattern::Group(group.delimiter(), patterns(group.stream())?),
            token => Pattern::Token(token.to_string()),
        });
    }
    Some(found)
}

/// Reads the end of `$(...)`: an optional separator, then `*`, `+` or `?`.
fn repetition(tokens: &mut impl Iterator<Item = TokenTree>) -> Option<(Option<String>, char)> {
    let operator = |token: &TokenTree| token.to_string().chars().next().filter(|letter| "*+?".contains(*letter));
    let first = tokens.next()?;
    match operator(&first) {
        Some(found) => Some((None, found)),
        None => Some((Some(first.to_string()), operator(&tokens.next()?)?)),
    }
}

fn match_all(patterns: &[Pattern], input: ParseStream<'_>, bindings: &mut Bindings) -> syn::Result<()> {
    for pattern in patterns {
        match pattern {
            Pattern::Token(expected) => literal_token(input, expected)?,
            Pattern::Group(delimiter, patterns) => {
                let TokenTree::Group(group) = input.parse()? else { return Err(input.error("no group")) };
                if group.delimiter() != *delimiter {
                    return Err(input.error("another bracket"));
                }
                let matcher = |inner: ParseStream<'_>| match_all(patterns, inner, bindings);
                matcher.parse2(group.stream())?;
            }
            Pattern::Fragment { name, kind } => {
                bindings.insert(name.clone(), Bound::One(fragment(kind, input)?));
            }
            Pattern::Repeat { patterns, separator, operator } => {
                let mut rounds = Vec::new();
                loop {
                    let ahead = input.fork();
                    let mut round = Bindings::new();
                    let is_separated = rounds.is_empty()
                        || separator.as_ref().is_none_or(|expected| literal_token(&ahead, expected).is_ok());
                    let matched = is_separated && match_all(patterns, &ahead, &mut round).is_ok();
                    if !matched || ahead.cursor() == input.cursor() {
                        break;
                    }
                    input.advance_to(&ahead);
                    rounds.push(round);
                    if *operator == '?' {
                        break;
                    }
                }
                for name in names(patterns) {
                    let values = rounds.iter().filter_map(|round| round.get(name).cloned()).collect();
                    bindings.insert(name.to_owned(), Bound::Many(values));
                }
            }
        }
    }
    Ok(())
}

fn literal_token(input: ParseStream<'_>, expected: &str) -> syn::Result<()> {
    let found: TokenTree = input.parse()?;
    if found.to_string() == expected { Ok(()) } else { Err(input.error("another token")) }
}

fn fragment(kind: &str, input: ParseStream<'_>) -> syn::Result<TokenStream> {
    let tokens = match kind {
        "ident" => input.call(Ident::parse_any)?.into_token_stream(),
        "literal" => input.parse::<syn::Lit>()?.into_token_stream(),
        "lifetime" => input.parse::<syn::Lifetime>()?.into_token_stream(),
        "ty" => input.parse::<syn::Type>()?.into_token_stream(),
        "path" => input.parse::<syn::Path>()?.into_token_stream(),
        "expr" => input.parse::<syn::Expr>()?.into_token_stream(),
        "block" => input.parse::<syn::Block>()?.into_token_stream(),
        "item" => input.parse::<syn::Item>()?.into_token_stream(),
        "meta" => input.parse::<syn::Meta>()?.into_token_stream(),
        "vis" => input.parse::<syn::Visibility>()?.into_token_stream(),
        "tt" => input.parse::<TokenTree>()?.into_token_stream(),
        _ => return Err(input.error("a fragment that xtask/src/api/macros.rs does not know")),
    };
    Ok(tokens)
}

fn names(patterns: &[Pattern]) -> Vec<&str> {
    patterns
        .iter()
        .flat_map(|pattern| match pattern {
            Pattern::Token(_) => Vec::new(),
            Pattern::Fragment { name, .. } => vec![name.as_str()],
            Pattern::Group(_, patterns) | Pattern::Repeat { patterns, .. } => names(patterns),
        })
        .collect()
}

fn transcribe(body: TokenStream, bindings: &Bindings) -> TokenStream {
    let mut out = TokenStream::new();
    let mut tokens = body.into_iter();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(dollar) if dollar.as_char() == '$' => match tokens.next() {
                Some(TokenTree::Ident(name)) => match bindings.get(&name.to_string()) {
                    Some(Bound::One(value)) => out.extend(value.clone()),
                    Some(Bound::Many(_)) | None => out.extend([TokenTree::Ident(name)]), // `$crate`
                },
                Some(TokenTree::Group(group)) => {
                    let separator = repetition(&mut tokens).and_then(|(separator, _)| separator);
                    for (number, round) in rounds(&group.stream(), bindings).iter().enumerate() {
                        if number > 0 {
                            out.extend(separator.iter().filter_map(|text| text.parse::<TokenStream>().ok()).flatten());
                        }
                        out.extend(transcribe(group.stream(), round));
                    }
                }
                Some(_) | None => {}
            },
            TokenTree::Group(group) => {
                let inner = transcribe(group.stream(), bindings);
                out.extend([TokenTree::Group(Group::new(group.delimiter(), inner))]);
            }
            token => out.extend([token]),
        }
    }
    out
}

/// The bindings of each round of a repetition: those of the fragments it uses that repeat, one by one.
fn rounds(body: &TokenStream, bindings: &Bindings) -> Vec<Bindings> {
    let mut used = Vec::new();
    fragments_of(body.clone(), &mut used);
    let repeated: Vec<(&String, &Vec<Bound>)> = bindings
        .iter()
        .filter_map(|(name, bound)| match bound {
            Bound::Many(values) if used.contains(name) => Some((name, values)),
            Bound::Many(_) | Bound::One(_) => None,
        })
        .collect();
    let count = repeated.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    (0..count)
        .map(|number| {
            let mut round = bindings.clone();
            for (name, values) in &repeated {
                round.extend(values.get(number).map(|value| ((*name).clone(), value.clone())));
            }
            round
        })
        .collect()
}

fn fragments_of(body: TokenStream, found: &mut Vec<String>) {
    let mut is_fragment = false;
    for token in body {
        match token {
            TokenTree::Group(group) => fragments_of(group.stream(), found),
            TokenTree::Ident(name) if is_fragment => found.push(name.to_string()),
            TokenTree::Punct(punct) => {
                is_fragment = punct.as_char() == '$';
                continue;
            }
            TokenTree::Ident(_) | TokenTree::Literal(_) => {}
        }
        is_fragment = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(rules: &str, input: &str) -> Option<String> {
        let expected: TokenStream = input.parse().unwrap();
        Some(Rules::read(rules.parse().unwrap())?.expand(&expected)?.to_string())
    }

    /// Compares without spaces, which tell only how the tokens were made.
    fn same(left: &str, right: &str) {
        let tokens: TokenStream = right.parse().unwrap();
        assert_eq!(left.replace(' ', ""), tokens.to_string().replace(' ', ""));
    }

    #[test]
    fn repetitions_inside_repetitions_are_written_out() {
        let rules = "($($(#[$meta:meta])* pub struct $name:ident { $(pub $field:ident: $kind:ty,)* })*) => {$(
            $(#[$meta])* pub struct $name { $(pub $field: $kind,)* }
            const _: usize = 0 $(+ size_of::<$kind>())*;
        )*};";
        let input = "/// A.\n pub struct A { pub x: u8, pub y: Vec<u8>, } pub struct B {}";
        same(
            &expanded(rules, input).unwrap(),
            "/// A.\n pub struct A { pub x: u8, pub y: Vec<u8>, } const _: usize = 0 + size_of::<u8>() + size_of::<Vec<u8>>();
             pub struct B {} const _: usize = 0;",
        );
    }

    #[test]
    fn the_first_rule_that_matches_is_taken() {
        let rules = "(a $x:literal) => { one($x) }; ($($x:ident),*) => { $crate::many($($x),*) };";
        same(&expanded(rules, "a 1").unwrap(), "one(1)");
        same(&expanded(rules, "a, b").unwrap(), "crate::many(a, b)");
        assert_eq!(expanded(rules, "1"), None);
    }
}
