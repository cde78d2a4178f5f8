//! The listing of one crate: a block per public item, sorted by path.
//!
//! An item has its block under its shortest public path. Under every other path it is one line, `pub use PATH = ...`.
//! Fields and variants keep the order of the source, which `repr(C)` and `derive(PartialOrd)` depend on; methods and
//! implementations are sorted. Function bodies, values of constants, documentation and attributes without meaning
//! for callers are left out.

use std::collections::{BTreeMap, VecDeque};

use quote::ToTokens;
use syn::{Attribute, Fields, FnArg, ImplItem, Item, Pat, Signature, TraitItem, Type, Visibility};

use super::crate_map::{Crate, Target, attributes, is_hidden, name_of};
use super::render;

/// Number of a module, and of an item in it.
type Key = (usize, usize);

/// The public items by path, and the blocks as they are built.
struct Listing<'a> {
    krate: &'a Crate,
    paths: BTreeMap<Key, String>,
    /// First line, and the lines below it, by path.
    blocks: BTreeMap<String, Vec<(String, Vec<String>)>>,
    /// Lines of implementations and methods, by the item that has them.
    members: BTreeMap<Key, Vec<String>>,
}

/// The listing of a crate.
pub(super) fn text(krate: &Crate) -> String {
    let mut listing = Listing { krate, paths: BTreeMap::new(), blocks: BTreeMap::new(), members: BTreeMap::new() };
    listing.walk();
    listing.implementations();
    for name in &krate.exported_macros {
        let path = format!("{}::{name}", krate.name);
        listing.add(path.clone(), format!("pub macro {path}!"), Vec::new());
    }
    let paths: Vec<(Key, String)> = listing.paths.iter().map(|(key, path)| (*key, path.clone())).collect();
    for ((module, item), path) in paths {
        let (head, mut lines) = item_block(krate.item(module, item), &path);
        let mut members = listing.members.remove(&(module, item)).unwrap_or_default();
        members.sort();
        lines.extend(members);
        listing.add(path, head, lines);
    }
    let mut text = format!(
        "# The public API of `{}`. `cargo xtask api` writes this file: do not edit it.\n",
        krate.name.replace('_', "-")
    );
    let mut was_line = false;
    for (head, lines) in listing.blocks.values().flatten() {
        if !(was_line && lines.is_empty()) {
            text.push('\n');
        }
        was_line = lines.is_empty();
        text += &format!("{head}\n");
        lines.iter().for_each(|line| text += &format!("    {line}\n"));
    }
    text
}

impl Listing<'_> {
    fn add(&mut self, path: String, head: String, lines: Vec<String>) {
        self.blocks.entry(path).or_default().push((head, lines));
    }

    /// Gives each public item its path, level by level, so that the shortest one is found first.
    fn walk(&mut self) {
        let root = self.krate.name.clone();
        let mut modules = BTreeMap::from([(0, root.clone())]);
        let mut queue = VecDeque::from([(0, root)]);
        while let Some((number, path)) = queue.pop_front() {
            for (name, target) in self.public_names(number, 0) {
                let inner = format!("{path}::{name}");
                match target {
                    Target::Module(module) => match modules.get(&module) {
                        Some(first) => self.add_use(inner, &first.clone()),
                        None => {
                            modules.insert(module, inner.clone());
                            self.add(inner.clone(), format!("pub mod {inner}"), Vec::new());
                            queue.push_back((module, inner));
                        }
                    },
                    Target::Item(module, item) => match self.paths.get(&(module, item)) {
                        Some(first) => self.add_use(inner, &first.clone()),
                        None => drop(self.paths.insert((module, item), inner)),
                    },
                    Target::Foreign(foreign) => self.add_use(inner, &foreign),
                }
            }
        }
    }

    fn add_use(&mut self, path: String, target: &str) {
        let head = format!("pub use {path} = {target}");
        self.add(path, head, Vec::new());
    }

    /// The public names of a module, with their targets. `depth` counts glob imports, which may lead in a circle.
    fn public_names(&self, number: usize, depth: usize) -> Vec<(String, Target)> {
        let module = &self.krate.modules[number];
        let mut names = Vec::new();
        for (item, found) in module.items.iter().enumerate() {
            if let Some(name) = name_of(found).filter(|_| is_public(visibility(found))) {
                names.push((name.to_string(), Target::Item(number, item)));
            }
        }
        for child in module.children.iter().filter(|child| child.is_public) {
            names.push((child.name.clone(), Target::Module(child.module)));
        }
        for import in module.uses.iter().filter(|import| import.is_public) {
            let target = self.krate.import(number, import);
            match target {
                Target::Module(from) if import.name == "*" && depth < 4 => {
                    names.extend(self.public_names(from, depth + 1));
                }
                target => names.push((import.name.clone(), target)),
            }
        }
        names
    }

    /// Hands every `impl` of the crate to the public type or trait that it is about.
    fn implementations(&mut self) {
        for number in 0..self.krate.modules.len() {
            for item in &self.krate.modules[number].items {
                match item {
                    Item::Impl(block) => self.implementation(number, block),
                    Item::Struct(_) | Item::Enum(_) | Item::Union(_) => self.derived(number, item),
                    _ => {}
                }
            }
        }
    }

    fn implementation(&mut self, number: usize, block: &syn::ItemImpl) {
        let krate = self.krate;
        let target = |path: &syn::Path| {
            let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            krate.resolve(number, &names)
        };
        let own_type = match &*block.self_ty {
            Type::Path(path) if path.qself.is_none() => match target(&path.path) {
                Target::Item(module, item) => Some((module, item)),
                Target::Module(_) | Target::Foreign(_) => None,
            },
            _ => None,
        };
        // An `impl` for a private type is private; for a type of another crate it belongs to the trait.
        let is_private_type = own_type.is_some_and(|key| !self.paths.contains_key(&key));
        let generics = generics_and_where(&block.generics);
        let Some((path, _)) = &block.trait_ else {
            let Some(key) = own_type.filter(|_| !is_private_type) else { return };
            let start = match block.generics.params.is_empty() {
                true => String::new(),
                false => format!("impl{} {}{}: ", generics.0, render::text(&block.self_ty), generics.1),
            };
            let lines = block.items.iter().filter_map(|item| inherent(item).map(|line| start.clone() + &line));
            self.members.entry(key).or_default().extend(lines);
            return;
        };
        let own_trait = match target(path) {
            Target::Item(module, item) => Some((module, item)),
            Target::Module(_) | Target::Foreign(_) => None,
        };
        if is_private_type || own_trait.is_some_and(|key| !self.paths.contains_key(&key)) {
            return;
        }
        let types: Vec<String> = block.items.iter().filter_map(associated).collect();
        let types = if types.is_empty() { String::new() } else { format!(" {{ {} }}", types.join("; ")) };
        let line = format!(
            "{}impl{} {} for {}{}{types}",
            if block.unsafety.is_some() { "unsafe " } else { "" },
            generics.0,
            render::text(path),
            render::text(&block.self_ty),
            generics.1
        );
        match own_type.or(own_trait) {
            Some(key) => self.members.entry(key).or_default().push(line),
            // Neither is ours: `impl From<OurType> for TheirType`.
            None => self.add("~".into(), line, Vec::new()),
        }
    }

    fn derived(&mut self, number: usize, item: &Item) {
        let place = self.krate.modules[number].items.iter().position(|found| std::ptr::eq(found, item));
        let Some(key) = place.map(|place| (number, place)).filter(|key| self.paths.contains_key(key)) else { return };
        let mut names = Vec::new();
        for attribute in attributes(item).iter().filter(|attribute| attribute.path().is_ident("derive")) {
            let parts = syn::punctuated::Punctuated::<syn::Path, syn::Token![,]>::parse_terminated;
            names.extend(attribute.parse_args_with(parts).into_iter().flatten().map(|path| render::text(&path)));
        }
        names.sort();
        if !names.is_empty() {
            self.members.entry(key).or_default().push(format!("derive {}", names.join(", ")));
        }
    }
}

fn visibility(item: &Item) -> &Visibility {
    match item {
        Item::Const(item) => &item.vis,
        Item::Enum(item) => &item.vis,
        Item::Fn(item) => &item.vis,
        Item::Static(item) => &item.vis,
        Item::Struct(item) => &item.vis,
        Item::Trait(item) => &item.vis,
        Item::Type(item) => &item.vis,
        Item::Union(item) => &item.vis,
        _ => &Visibility::Inherited,
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// The first line of an item, and its fields, variants or trait items.
fn item_block(item: &Item, path: &str) -> (String, Vec<String>) {
    let marks = marks(attributes(item));
    match item {
        Item::Fn(item) => (format!("{marks}pub {}", signature(&item.sig, path)), Vec::new()),
        Item::Const(item) => (format!("pub const {path}: {}", render::text(&item.ty)), Vec::new()),
        Item::Static(item) => (format!("pub static {path}: {}", render::text(&item.ty)), Vec::new()),
        Item::Type(item) => {
            let (params, bounds) = generics_and_where(&item.generics);
            (format!("pub type {path}{params} = {}{bounds}", render::text(&item.ty)), Vec::new())
        }
        Item::Struct(item) => {
            let (params, bounds) = generics_and_where(&item.generics);
            let (tuple, lines) = fields(&item.fields, true);
            (format!("{marks}pub struct {path}{params}{tuple}{bounds}"), lines)
        }
        Item::Enum(item) => {
            let (params, bounds) = generics_and_where(&item.generics);
            let variants = item.variants.iter().filter(|variant| !is_hidden(&variant.attrs)).map(|variant| {
                let (tuple, lines) = fields(&variant.fields, false);
                let named = if lines.is_empty() { String::new() } else { format!(" {{ {} }}", lines.join(", ")) };
                let number = variant.discriminant.as_ref();
                let number = number.map_or(String::new(), |(_, value)| format!(" = {}", render::text(value)));
                format!("{}{}{tuple}{named}{number}", self::marks(&variant.attrs), variant.ident)
            });
            (format!("{marks}pub enum {path}{params}{bounds}"), variants.collect())
        }
        Item::Trait(item) => {
            let (params, bounds) = generics_and_where(&item.generics);
            let above = if item.supertraits.is_empty() {
                String::new()
            } else {
                format!(": {}", render::text(&item.supertraits))
            };
            let mut lines: Vec<String> = item.items.iter().filter_map(trait_item).collect();
            lines.sort();
            let unsafety = if item.unsafety.is_some() { "unsafe " } else { "" };
            (format!("{marks}pub {unsafety}trait {path}{params}{above}{bounds}"), lines)
        }
        item => (format!("pub {path}: {}", render::text(&item)), Vec::new()),
    }
}

/// The attributes that callers must know, each with a space behind it.
fn marks(attributes: &[Attribute]) -> String {
    const NAMES: [&str; 3] = ["deprecated", "non_exhaustive", "repr"];
    let named = attributes.iter().filter(|attribute| NAMES.iter().any(|name| attribute.path().is_ident(name)));
    named.map(|attribute| render::text(attribute) + " ").collect()
}

/// The fields of a tuple in brackets, or the named ones as lines. Those of a variant are public by nature.
fn fields(fields: &Fields, need_pub: bool) -> (String, Vec<String>) {
    let shown = |field: &syn::Field| !need_pub || is_public(&field.vis);
    let word = if need_pub { "pub " } else { "" };
    match fields {
        Fields::Unit => (String::new(), Vec::new()),
        Fields::Unnamed(all) => {
            let text = |field: &syn::Field| {
                if shown(field) { format!("{}{word}{}", from(field), render::text(&field.ty)) } else { "_".into() }
            };
            (format!("({})", all.unnamed.iter().map(text).collect::<Vec<_>>().join(", ")), Vec::new())
        }
        Fields::Named(all) => {
            let named = |field: &syn::Field| {
                let name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
                format!("{}{word}{name}: {}", from(field), render::text(&field.ty))
            };
            let mut lines: Vec<String> = all.named.iter().filter(|field| shown(field)).map(named).collect();
            if lines.len() < all.named.len() && !lines.is_empty() {
                lines.push("_: private fields".into());
            }
            let tuple = if lines.is_empty() && !all.named.is_empty() { " { private fields }" } else { "" };
            (tuple.into(), lines)
        }
    }
}

/// `thiserror` derives `From` for such a field.
fn from(field: &syn::Field) -> &'static str {
    if field.attrs.iter().any(|attribute| attribute.path().is_ident("from")) { "#[from] " } else { "" }
}

/// A line for a public function or constant of an `impl`.
fn inherent(item: &ImplItem) -> Option<String> {
    match item {
        ImplItem::Fn(item) if is_public(&item.vis) => {
            Some(format!("{}pub {}", marks(&item.attrs), signature(&item.sig, &item.sig.ident.to_string())))
        }
        ImplItem::Const(item) if is_public(&item.vis) => {
            Some(format!("pub const {}: {}", item.ident, render::text(&item.ty)))
        }
        _ => None,
    }
}

/// A type that an implementation of a trait chooses.
fn associated(item: &ImplItem) -> Option<String> {
    let ImplItem::Type(item) = item else { return None };
    Some(format!("type {}{} = {}", item.ident, generics_and_where(&item.generics).0, render::text(&item.ty)))
}

fn trait_item(item: &TraitItem) -> Option<String> {
    match item {
        TraitItem::Fn(item) if !is_hidden(&item.attrs) => {
            let end = if item.default.is_some() { " { provided }" } else { "" };
            Some(format!("{}{}{end}", marks(&item.attrs), signature(&item.sig, &item.sig.ident.to_string())))
        }
        TraitItem::Const(item) => {
            let end = if item.default.is_some() { " { provided }" } else { "" };
            Some(format!("const {}: {}{end}", item.ident, render::text(&item.ty)))
        }
        TraitItem::Type(item) => {
            let bounds =
                if item.bounds.is_empty() { String::new() } else { format!(": {}", render::text(&item.bounds)) };
            Some(format!("type {}{}{bounds}", item.ident, generics_and_where(&item.generics).0))
        }
        _ => None,
    }
}

/// A signature with `name` in the place of its own, and without the `mut` of arguments, which callers do not see.
fn signature(signature: &Signature, name: &str) -> String {
    let mut plain = signature.clone();
    for argument in &mut plain.inputs {
        match argument {
            FnArg::Receiver(receiver) => {
                receiver.attrs.clear();
                receiver.mutability = None;
            }
            FnArg::Typed(typed) => {
                typed.attrs.clear();
                if let Pat::Ident(pattern) = &mut *typed.pat {
                    pattern.mutability = None;
                }
            }
        }
    }
    let text = render::text(&plain);
    text.replacen(&format!("fn {}", plain.ident), &format!("fn {name}"), 1)
}

/// `<T: Send>`, and ` where ...` with its space.
fn generics_and_where(generics: &syn::Generics) -> (String, String) {
    let bounds = generics.where_clause.as_ref().map(|clause| {
        let predicates: Vec<String> =
            clause.predicates.iter().map(|part| render::text(&part.to_token_stream())).collect();
        format!(" where {}", predicates.join(", "))
    });
    (render::text(generics), bounds.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The listing of a crate of these files, without its first line.
    fn listed(files: &[(&str, &str)]) -> Vec<String> {
        let read = |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| *text);
        let krate = Crate::read("src", "a", &read).unwrap();
        text(&krate).lines().skip(1).filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn only_what_the_root_exports_is_listed_under_its_shortest_path() {
        let files = [
            ("src/lib.rs", "mod b; pub mod c; pub use b::{B, f as g}; pub use std::fmt; pub(crate) use b::Hidden;"),
            (
                "src/b.rs",
                "pub struct B { pub x: u8, y: u8 } pub struct Hidden; pub fn f(mut n: u8,) -> u8 { n } fn p() {}",
            ),
            ("src/c/mod.rs", "mod d; pub use d::*; pub use crate::b::B as Again;"),
            ("src/c/d.rs", "pub trait T: Send { fn r(&self); fn p(mut self) {} } pub const K: u8 = 1;"),
        ];
        let expected = [
            "pub struct a::B",
            "    pub x: u8",
            "    _: private fields",
            "pub mod a::c",
            "pub use a::c::Again = a::B",
            "pub const a::c::K: u8",
            "pub trait a::c::T: Send",
            "    fn p(self) { provided }",
            "    fn r(&self)",
            "pub use a::fmt = std::fmt",
            "pub fn a::g(n: u8) -> u8",
        ];
        assert_eq!(listed(&files), expected);
    }

    #[test]
    fn implementations_are_found_wherever_they_are() {
        let files = [
            ("src/lib.rs", "mod b; mod c; pub use b::{B, E}; mod private { pub trait Q {} }"),
            ("src/b.rs", "#[derive(Debug, Clone)] pub struct B(u8); #[non_exhaustive] pub enum E { X = 1, Y(#[from] u8), Z { n: u8 } }"),
            (
                "src/c.rs",
                "use super::b; use b::B as Short; struct B; impl B { pub fn no() {} } impl Short { pub fn yes() {} fn no() {} }
                 impl crate::private::Q for Short {} impl Iterator for b::B { type Item = u8; fn next(&mut self) {} }
                 impl From<Short> for u8 {}",
            ),
        ];
        let expected = [
            "pub struct a::B(_)",
            "    derive Clone, Debug",
            "    impl Iterator for b::B { type Item = u8 }",
            "    pub fn yes()",
            "#[non_exhaustive] pub enum a::E",
            "    X = 1",
            "    Y(#[from] u8)",
            "    Z { n: u8 }",
            "impl From<Short> for u8",
        ];
        assert_eq!(listed(&files), expected);
    }

    #[test]
    fn macros_are_expanded_and_cfg_and_hidden_items_are_dropped() {
        let files = [
            (
                "src/lib.rs",
                "mod early; pub use early::A; mod late; #[cfg(test)] pub fn t() {} #[doc(hidden)] pub fn h() {}
                            #[cfg(not(any(test, loom)))] pub fn r() {} #[cfg(debug_assertions)] pub fn d() {}",
            ),
            ("src/early.rs", "use crate::late::make; pub struct A; impl A { make! { pub const fn new() -> A { A } } }"),
            (
                "src/late.rs",
                "macro_rules! make { ($($rest:tt)*) => { #[cfg(loom)] $($rest)* #[cfg(not(loom))] $($rest)* }; }
                             pub(crate) use make; #[macro_export] macro_rules! out { () => {} }",
            ),
        ];
        assert_eq!(
            listed(&files),
            ["pub struct a::A", "    pub const fn new() -> A", "pub macro a::out!", "pub fn a::r()"]
        );
    }
}
