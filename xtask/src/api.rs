//! The public API of the libraries as text, one file per crate below `docs/api`, so that a review shows every change.
//!
//! `cargo xtask api` rewrites the files. The tidy rule `api` fails while one of them is stale.
//!
//! The sources are parsed, because rustdoc writes its JSON only with nightly compilers, in a format that changes. A listing has
//! the `pub` items of each module as [`prettyplease`] prints them, without what a caller does not see: documentation,
//! private fields, bodies. The lint `unreachable_pub` refuses a `pub` item that no path makes public, so a listing has no other
//! items. Types appear as the source spells them. A macro that defines items is listed itself, and so are its calls.

#![allow(clippy::wildcard_enum_match_arm, reason = "the syntax tree has more kinds of nodes than a listing shows")]

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::parse::{ParseStream, Parser};
use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, Field, Fields, File, ImplItem, Item, ItemImpl, Meta, Type, Visibility, parse_quote};

/// Folder and name of each crate whose public API is listed.
pub(crate) const CRATES: [(&str, &str); 8] = [
    ("crates/sync", "slackwater-sync"),
    ("crates/host", "slackwater-host"),
    ("crates/arena", "slackwater-arena"),
    ("crates/engine", "slackwater"),
    ("crates/backends", "slackwater-backends"),
    ("crates/testkit", "slackwater-testkit"),
    ("crates/fuse", "slackwater-fuse"),
    ("crates/mount", "slackwater-mount"),
];

/// The attributes that callers must know.
const ATTRIBUTES: [&str; 6] = ["deprecated", "derive", "from", "macro_export", "non_exhaustive", "repr"];

/// Where the listing of `package` lies.
pub(crate) fn path(package: &str) -> String {
    format!("docs/api/{package}.txt")
}

/// The public API of the crate in `folder`. `read` returns the text of a file of the checkout.
pub(crate) fn listing<'a>(folder: &str, package: &str, read: Read<'_, 'a>) -> Result<String, String> {
    let mut all = Vec::new();
    let source = format!("{folder}/src");
    collect(parse(&[format!("{source}/lib.rs")], read)?, &package.replace('-', "_"), &source, read, &mut all)?;
    let names = Names::of(&all);
    let mut modules = BTreeMap::<String, BTreeSet<(String, bool, String)>>::new();
    for (module, mut item) in all {
        if names.are_public(&item) {
            Private.visit_item_mut(&mut item);
            let key = (name(&item), matches!(item, Item::Impl(_)));
            if !matches!(&item, Item::Impl(block) if block.trait_.is_none() && block.items.is_empty()) {
                let text = prettyplease::unparse(&File {
                    shebang: None,
                    frontmatter: None,
                    attrs: Vec::new(),
                    items: vec![item],
                });
                modules.entry(module).or_default().insert((key.0, key.1, text));
            }
        }
    }
    let mut listing = format!("# The public API of `{package}`. `cargo xtask api` writes this file: do not edit it.\n");
    for (module, items) in modules {
        listing += &format!("\n## {module}\n");
        let mut last = None;
        for (name, _, text) in items {
            listing += if last.as_ref() == Some(&name) { "" } else { "\n" };
            listing += &text;
            last = Some(name);
        }
    }
    Ok(listing)
}

type Read<'r, 'a> = &'r dyn Fn(&str) -> Option<&'a str>;

/// The items of the first of `paths` that exists.
fn parse(paths: &[String], read: Read<'_, '_>) -> Result<Vec<Item>, String> {
    let found = paths.iter().find_map(|path| Some((path, read(path)?)));
    let (path, text) = found.ok_or_else(|| format!("{}: no such file", paths[0]))?;
    syn::parse_file(text).map(|file| file.items).map_err(|error| format!("{path}: {error}"))
}

/// Adds the items of a module, and of those below it in `folder`, each with the path of its module. The items in the call of a
/// macro count as items of the module.
fn collect(
    items: Vec<Item>,
    module: &str,
    folder: &str,
    read: Read<'_, '_>,
    all: &mut Vec<(String, Item)>,
) -> Result<(), String> {
    for item in items.into_iter().filter(|item| !is_hidden(item)) {
        match item {
            Item::Mod(mut inner) => {
                let (path, folder) = (format!("{module}::{}", inner.ident), format!("{folder}/{}", inner.ident));
                let items = match inner.content.take() {
                    Some((_, items)) => items,
                    None => parse(&[format!("{folder}.rs"), format!("{folder}/mod.rs")], read)?,
                };
                inner.semi = Some(Default::default());
                all.push((module.to_owned(), Item::Mod(inner)));
                collect(items, &path, &folder, read, all)?;
            }
            Item::Macro(call) if call.ident.is_none() && syn::parse2::<File>(call.mac.tokens.clone()).is_ok() => {
                collect(syn::parse2::<File>(call.mac.tokens).expect("parsed above").items, module, folder, read, all)?;
            }
            item => all.push((module.to_owned(), item)),
        }
    }
    Ok(())
}

/// The names that a crate defines.
struct Names {
    /// Types and traits; true for those that are public.
    types: BTreeMap<String, bool>,
    /// Macros that define public items.
    macros: BTreeSet<String>,
}

impl Names {
    fn of(all: &[(String, Item)]) -> Names {
        let mut names = Names { types: BTreeMap::new(), macros: BTreeSet::new() };
        for (_, item) in all {
            match item {
                Item::Enum(_) | Item::Struct(_) | Item::Trait(_) | Item::Type(_) | Item::Union(_) => {
                    *names.types.entry(name(item)).or_default() |= is_public(item);
                }
                Item::Macro(call) if call.ident.is_some() && has_pub(call.mac.tokens.clone()) => {
                    names.macros.insert(name(item));
                }
                _ => {}
            }
        }
        names
    }

    /// Whether a listing has the item. An implementation is public if its trait and its type are, as far as the crate
    /// defines them.
    fn are_public(&self, item: &Item) -> bool {
        let is_private = |name: &str| self.types.get(name) == Some(&false);
        match item {
            Item::Impl(block) => {
                let of_trait = block.trait_.as_ref().is_some_and(|(path, ..)| is_private(&last(path)));
                !of_trait && !is_private(&type_name(&block.self_ty))
            }
            Item::Macro(call) if call.ident.is_none() => self.macros.contains(&last(&call.mac.path)),
            Item::Macro(call) => {
                self.macros.contains(&name(item)) || call.attrs.iter().any(|one| one.path().is_ident("macro_export"))
            }
            item => is_public(item),
        }
    }
}

/// The name by which the items of a module are sorted; an implementation is beside its type.
fn name(item: &Item) -> String {
    match item {
        Item::Const(item) => item.ident.to_string(),
        Item::Enum(item) => item.ident.to_string(),
        Item::Fn(item) => item.sig.ident.to_string(),
        Item::Impl(item) => type_name(&item.self_ty),
        Item::Macro(item) => item.ident.as_ref().map(ToString::to_string).unwrap_or_default(),
        Item::Static(item) => item.ident.to_string(),
        Item::Struct(item) => item.ident.to_string(),
        Item::Trait(item) => item.ident.to_string(),
        Item::Type(item) => item.ident.to_string(),
        Item::Union(item) => item.ident.to_string(),
        _ => String::new(),
    }
}

fn type_name(of: &Type) -> String {
    match of {
        Type::Path(of) => last(&of.path),
        Type::Reference(of) => type_name(&of.elem),
        _ => String::new(),
    }
}

fn last(path: &syn::Path) -> String {
    path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default()
}

/// The attributes and the visibility with which an item starts.
fn head(item: &impl ToTokens) -> (Vec<Attribute>, Visibility) {
    let parser = |input: ParseStream<'_>| {
        let head = (input.call(Attribute::parse_outer)?, input.parse()?);
        input.parse::<TokenStream>()?;
        Ok(head)
    };
    parser.parse2(item.to_token_stream()).expect("every item starts with attributes and a visibility")
}

fn is_public(item: &impl ToTokens) -> bool {
    matches!(head(item).1, Visibility::Public(_))
}

fn has_pub(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Group(group) => has_pub(group.stream()),
        token => token.to_string() == "pub",
    })
}

/// Whether `cfg` leaves an item out of a release build, or `doc(hidden)` out of the public API.
fn is_hidden(item: &impl ToTokens) -> bool {
    head(item).0.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("doc") => list.tokens.to_string() == "hidden",
        Meta::List(list) if list.path.is_ident("cfg") => list.parse_args().is_ok_and(|meta| !holds(&meta)),
        _ => false,
    })
}

/// Whether a `cfg` predicate holds in a release build with all features, outside tests and model checkers.
fn holds(meta: &Meta) -> bool {
    let Meta::List(list) = meta else { return matches!(meta, Meta::NameValue(_)) || meta.path().is_ident("unix") };
    let parts = syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated;
    let mut parts = list.parse_args_with(parts).unwrap_or_default().into_iter().map(|part| holds(&part));
    match list.path.is_ident("all") {
        true => parts.all(|part| part),
        false => parts.any(|part| part) != list.path.is_ident("not"),
    }
}

/// Removes what a caller does not see.
struct Private;

impl VisitMut for Private {
    fn visit_attributes_mut(&mut self, attributes: &mut Vec<Attribute>) {
        attributes.retain(|attribute| ATTRIBUTES.iter().any(|name| attribute.path().is_ident(name)));
    }

    fn visit_block_mut(&mut self, block: &mut syn::Block) {
        block.stmts.clear();
    }

    fn visit_item_impl_mut(&mut self, block: &mut ItemImpl) {
        let items = std::mem::take(&mut block.items).into_iter().flat_map(opened);
        let is_of_trait = block.trait_.is_some();
        let is_shown = |item: &ImplItem| match is_of_trait {
            true => matches!(item, ImplItem::Type(_)),
            false => is_public(item) && !is_hidden(item),
        };
        block.items = items.filter(is_shown).collect();
        visit_mut::visit_item_impl_mut(self, block);
    }

    fn visit_item_trait_mut(&mut self, item: &mut syn::ItemTrait) {
        item.items.retain(|item| !is_hidden(item));
        visit_mut::visit_item_trait_mut(self, item);
    }

    fn visit_item_struct_mut(&mut self, item: &mut syn::ItemStruct) {
        match &mut item.fields {
            Fields::Named(fields) => {
                let all = std::mem::take(&mut fields.named);
                let (mut shown, hidden): (Vec<Field>, Vec<Field>) = all.into_iter().partition(is_public);
                shown.extend(hidden.into_iter().next().map(|field| Field {
                    ident: Some(Ident::new("_", Span::call_site())),
                    ty: parse_quote!(_),
                    ..field
                }));
                fields.named = shown.into_iter().collect();
            }
            Fields::Unnamed(fields) => {
                fields
                    .unnamed
                    .iter_mut()
                    .filter(|field| !is_public(*field))
                    .for_each(|field| field.ty = parse_quote!(_));
            }
            Fields::Unit => {}
        }
        visit_mut::visit_item_struct_mut(self, item);
    }

    fn visit_macro_mut(&mut self, call: &mut syn::Macro) {
        call.tokens = without_docs(std::mem::take(&mut call.tokens));
    }

    fn visit_pat_ident_mut(&mut self, name: &mut syn::PatIdent) {
        name.mutability = None;
    }

    fn visit_receiver_mut(&mut self, receiver: &mut syn::Receiver) {
        receiver.mutability = None;
    }
}

/// The items of an implementation, with those in the call of a macro.
fn opened(item: ImplItem) -> Vec<ImplItem> {
    let ImplItem::Macro(call) = &item else { return vec![item] };
    let tokens = &call.mac.tokens;
    syn::parse2(quote!(impl Opened { #tokens })).map_or_else(|_| vec![item], |block: ItemImpl| block.items)
}

/// The tokens without doc comments.
fn without_docs(tokens: TokenStream) -> TokenStream {
    let mut kept = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Group(group) if group.stream().to_string().starts_with("doc =") => drop(kept.pop()),
            TokenTree::Group(group) => {
                let inner = without_docs(group.stream());
                kept.push(TokenTree::Group(proc_macro2::Group::new(group.delimiter(), inner)));
            }
            token => kept.push(token),
        }
    }
    kept.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The listing of a crate of these files, without its first line.
    fn listed(files: &[(&str, &str)]) -> Vec<String> {
        let read = |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| *text);
        let text = listing("a", "a", &read).unwrap();
        text.lines().skip(1).filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn public_items_are_listed_in_the_module_that_defines_them() {
        let files = [
            ("a/src/lib.rs", "mod b; pub mod c; pub use b::{B, f as g}; pub(crate) use b::Hidden;"),
            (
                "a/src/b.rs",
                "/// B.\n pub struct B { pub x: u8, y: u8 } struct Hidden; pub fn f(mut n: u8,) -> u8 { n } fn p() {}",
            ),
            ("a/src/c/mod.rs", "mod d; pub use d::*;"),
            ("a/src/c/d.rs", "pub trait T: Send { fn r(&self); fn p(mut self) { x } } pub const K: u8 = 1;"),
        ];
        let expected = [
            "## a",
            "pub mod c;",
            "pub use b::{B, f as g};",
            "## a::b",
            "pub struct B {",
            "    pub x: u8,",
            "    _: _,",
            "}",
            "pub fn f(n: u8) -> u8 {}",
            "## a::c",
            "pub use d::*;",
            "## a::c::d",
            "pub const K: u8 = 1;",
            "pub trait T: Send {",
            "    fn r(&self);",
            "    fn p(self) {}",
            "}",
        ];
        assert_eq!(listed(&files), expected);
    }

    #[test]
    fn implementations_are_beside_their_types() {
        let lib =
            "trait Q {} struct P; #[derive(Debug)] #[must_use] pub struct B(u8); pub enum E { X = 1, Y(#[from] u8) }
            impl B { pub fn yes() { x } fn no() {} } impl P { pub fn no() {} } impl Q for B {} impl Clone for P {}
            impl Iterator for B { type Item = u8; fn next(&mut self) {} } impl From<B> for u8 {} impl E { fn no() {} }";
        let expected = [
            "## a",
            "#[derive(Debug)]",
            "pub struct B(_);",
            "impl B {",
            "    pub fn yes() {}",
            "}",
            "impl Iterator for B {",
            "    type Item = u8;",
            "}",
            "pub enum E {",
            "    X = 1,",
            "    Y(#[from] u8),",
            "}",
            "impl From<B> for u8 {}",
        ];
        assert_eq!(listed(&[("a/src/lib.rs", lib)]), expected);
    }

    #[test]
    fn macros_are_listed_with_their_calls_and_what_cfg_hides_is_not() {
        let lib = "#[cfg(test)] pub fn t() {} #[doc(hidden)] pub fn h() {} #[cfg(not(any(test, loom)))] pub fn r() {}
            macro_rules! make { ($n:ident) => { /// Made.\n pub struct $n; } } make!(M); /// D.\n make! { pub fn f() {} }
            macro_rules! quiet { ($($t:tt)*) => { $($t)* } } quiet! { pub fn q() {} } quiet!(1);
            pub struct A; impl A { quiet! { pub const fn new() -> A { A } } }";
        let expected = [
            "## a",
            "make!(M);",
            "pub struct A;",
            "impl A {",
            "    pub const fn new() -> A {}",
            "}",
            "pub fn f() {}",
            "macro_rules! make {",
            "    ($n:ident) => {",
            "        pub struct $n;",
            "    };",
            "}",
            "pub fn q() {}",
            "pub fn r() {}",
        ];
        assert_eq!(listed(&[("a/src/lib.rs", lib)]), expected);
    }
}
