//! The modules of one crate: their items after `cfg`, `doc(hidden)` and macros, and path resolution in each.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Attribute, ImplItem, Item, Meta, Token, UseTree, Visibility};

use super::macros::Rules;

/// A path resolves through at most so many `use` items; more is a cycle.
const USES_MAX: usize = 32;

/// All modules of a crate; the first is its root.
pub(super) struct Crate {
    pub(super) name: String,
    pub(super) modules: Vec<Module>,
    /// Names of the macros that other crates may use.
    pub(super) exported_macros: BTreeSet<String>,
    macros: BTreeMap<String, Rules>,
}

pub(super) struct Module {
    pub(super) items: Vec<Item>,
    pub(super) children: Vec<Child>,
    pub(super) uses: Vec<Use>,
    parent: usize,
}

pub(super) struct Child {
    pub(super) name: String,
    pub(super) is_public: bool,
    pub(super) module: usize,
}

/// One name that a `use` brings in; `*` for all names of a module.
pub(super) struct Use {
    pub(super) name: String,
    pub(super) path: Vec<String>,
    pub(super) is_public: bool,
}

/// The meaning of a path: an item (number of its module, number within it), a module, or a name of another crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Item(usize, usize),
    Module(usize),
    Foreign(String),
}

impl Crate {
    /// Reads `folder/lib.rs` and every module below it.
    pub(super) fn read<'a>(folder: &str, name: &str, read: &dyn Fn(&str) -> Option<&'a str>) -> Result<Crate, String> {
        let mut krate = Crate {
            name: name.to_owned(),
            modules: Vec::new(),
            exported_macros: BTreeSet::new(),
            macros: BTreeMap::new(),
        };
        // Twice: a `use` takes a macro to modules above its definition, so the first round only collects the macros.
        for _ in 0..2 {
            krate.modules.clear();
            let file = parse(&format!("{folder}/lib.rs"), read)?;
            krate.add_module(file.items, 0, folder, read)?;
        }
        Ok(krate)
    }

    /// Adds a module whose submodules lie in `folder`, and returns its number.
    fn add_module<'a>(
        &mut self,
        items: Vec<Item>,
        parent: usize,
        folder: &str,
        read: &dyn Fn(&str) -> Option<&'a str>,
    ) -> Result<usize, String> {
        let number = self.modules.len();
        self.modules.push(Module { items: Vec::new(), children: Vec::new(), uses: Vec::new(), parent });
        for item in items {
            self.add_item(number, item, folder, read)?;
        }
        Ok(number)
    }

    fn add_item<'a>(
        &mut self,
        number: usize,
        mut item: Item,
        folder: &str,
        read: &dyn Fn(&str) -> Option<&'a str>,
    ) -> Result<(), String> {
        if is_hidden(attributes(&item)) {
            return Ok(());
        }
        match item {
            Item::Mod(ref module) => {
                let name = module.ident.to_string();
                let inner = format!("{folder}/{name}");
                let items = match &module.content {
                    Some((_, items)) => items.clone(),
                    None => {
                        let paths = [format!("{inner}.rs"), format!("{inner}/mod.rs")];
                        let path = paths.iter().find(|path| read(path).is_some());
                        parse(path.ok_or_else(|| format!("{inner}.rs: no such file"))?, read)?.items
                    }
                };
                let is_public = matches!(module.vis, Visibility::Public(_));
                let module = self.add_module(items, number, &inner, read)?;
                self.modules[number].children.push(Child { name, is_public, module });
            }
            Item::Use(ref item) => {
                let is_public = matches!(item.vis, Visibility::Public(_));
                let start = if item.leading_colon.is_some() { vec![String::new()] } else { Vec::new() };
                flatten(&item.tree, start, is_public, &mut self.modules[number].uses);
            }
            Item::Macro(ref item) if item.mac.path.is_ident("macro_rules") => {
                let Some(name) = &item.ident else { return Ok(()) };
                if item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export")) {
                    self.exported_macros.insert(name.to_string());
                }
                if let Some(rules) = Rules::read(item.mac.tokens.clone()) {
                    self.macros.insert(name.to_string(), rules);
                }
            }
            Item::Macro(ref call) => {
                let Some(tokens) = self.expand(&call.mac) else { return Ok(()) };
                let file: syn::File = syn::parse2(tokens).map_err(|error| format!("{folder}: a macro: {error}"))?;
                for item in file.items {
                    self.add_item(number, item, folder, read)?;
                }
            }
            Item::Impl(ref mut block) => {
                block.items = self.without_macros(std::mem::take(&mut block.items), folder)?;
                self.modules[number].items.push(item);
            }
            item => self.modules[number].items.push(item),
        }
        Ok(())
    }

    /// The items of an `impl` with macros expanded, and without those that `cfg` and `doc(hidden)` hide.
    fn without_macros(&self, items: Vec<ImplItem>, folder: &str) -> Result<Vec<ImplItem>, String> {
        let mut all = Vec::new();
        for item in items {
            let ImplItem::Macro(call) = &item else {
                all.push(item);
                continue;
            };
            let Some(tokens) = self.expand(&call.mac) else { continue };
            let wrapped = quote::quote!(impl Expanded { #tokens });
            let block: syn::ItemImpl = syn::parse2(wrapped).map_err(|error| format!("{folder}: a macro: {error}"))?;
            all.extend(block.items);
        }
        all.retain(|item| {
            !is_hidden(match item {
                ImplItem::Const(item) => &item.attrs,
                ImplItem::Fn(item) => &item.attrs,
                ImplItem::Type(item) => &item.attrs,
                _ => &[],
            })
        });
        Ok(all)
    }

    /// The expansion of a macro of this crate; none for macros of other crates.
    fn expand(&self, call: &syn::Macro) -> Option<proc_macro2::TokenStream> {
        self.macros.get(&call.path.segments.last()?.ident.to_string())?.expand(&call.tokens)
    }

    /// Resolves `path` as written inside `module`.
    pub(super) fn resolve(&self, module: usize, path: &[String]) -> Target {
        self.resolve_in(module, path, USES_MAX).unwrap_or_else(|| Target::Foreign(path.join("::")))
    }

    fn resolve_in(&self, module: usize, path: &[String], uses_left: usize) -> Option<Target> {
        let uses_left = uses_left.checked_sub(1)?;
        let (first, mut rest) = path.split_first()?;
        let mut target = match first.as_str() {
            "crate" => Target::Module(0),
            "self" => Target::Module(module),
            "super" => Target::Module(self.modules[module].parent),
            name => self.name_in(module, name, rest.is_empty(), uses_left)?,
        };
        while let Some((name, after)) = rest.split_first() {
            target = match (target, name.as_str()) {
                (Target::Module(module), "super") => Target::Module(self.modules[module].parent),
                (Target::Module(module), "self") => Target::Module(module),
                (Target::Module(module), name) => self.name_in(module, name, after.is_empty(), uses_left)?,
                (Target::Foreign(path), name) => Target::Foreign(format!("{path}::{name}")),
                // A variant or an associated item resolves to its type.
                (item @ Target::Item(..), _) => return Some(item),
            };
            rest = after;
        }
        Some(target)
    }

    /// Resolves the single `name` in `module`. Before a `::` a module wins, since only modules have names inside.
    fn name_in(&self, module: usize, name: &str, is_last: bool, uses_left: usize) -> Option<Target> {
        let here = &self.modules[module];
        let item = here.items.iter().position(|item| name_of(item).is_some_and(|found| found == name));
        let item = item.map(|item| Target::Item(module, item));
        let child = here.children.iter().find(|child| child.name == name).map(|child| Target::Module(child.module));
        let own = if is_last { item.or(child) } else { child.or(item) };
        own.or_else(|| {
            let named = here.uses.iter().filter(|import| import.name == name);
            named.map(|import| self.imported(module, import, uses_left)).next()
        })
        .or_else(|| {
            let globs = here.uses.iter().filter(|import| import.name == "*");
            globs
                .filter_map(|import| match self.imported(module, import, uses_left) {
                    Target::Module(from) if from != module => {
                        self.name_in(from, name, is_last, uses_left.checked_sub(1)?)
                    }
                    _ => None,
                })
                .next()
        })
    }

    /// Resolves a `use` of `module`.
    pub(super) fn imported(&self, module: usize, import: &Use, uses_left: usize) -> Target {
        let foreign = || Target::Foreign(import.path.join("::").trim_start_matches(':').to_owned());
        // `use x::x` and `use std` name the outer crate where the inner name is the import itself.
        if import
            .path
            .first()
            .is_some_and(|first| first.is_empty() || (*first == import.name && import.path.len() == 1))
        {
            return foreign();
        }
        self.resolve_in(module, &import.path, uses_left).unwrap_or_else(foreign)
    }

    /// [`Crate::imported`] for one `use` alone.
    pub(super) fn import(&self, module: usize, import: &Use) -> Target {
        self.imported(module, import, USES_MAX)
    }

    /// The item at a target.
    pub(super) fn item(&self, module: usize, item: usize) -> &Item {
        &self.modules[module].items[item]
    }
}

fn parse<'a>(path: &str, read: &dyn Fn(&str) -> Option<&'a str>) -> Result<syn::File, String> {
    let text = read(path).ok_or_else(|| format!("{path}: no such file"))?;
    syn::parse_file(text).map_err(|error| format!("{path}: {error}"))
}

fn flatten(tree: &UseTree, mut path: Vec<String>, is_public: bool, found: &mut Vec<Use>) {
    let mut add = |name: String, path| found.push(Use { name, path, is_public });
    match tree {
        UseTree::Path(part) => {
            path.push(part.ident.to_string());
            flatten(&part.tree, path, is_public, found);
        }
        UseTree::Name(part) if part.ident == "self" => add(path.last().cloned().unwrap_or_default(), path),
        UseTree::Name(part) => {
            path.push(part.ident.to_string());
            add(part.ident.to_string(), path);
        }
        UseTree::Rename(part) => {
            if part.ident != "self" {
                path.push(part.ident.to_string());
            }
            add(part.rename.to_string(), path);
        }
        UseTree::Glob(_) => add("*".into(), path),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, path.clone(), is_public, found)),
    }
}

/// The name that an item defines.
pub(super) fn name_of(item: &Item) -> Option<&proc_macro2::Ident> {
    match item {
        Item::Const(item) => Some(&item.ident),
        Item::Enum(item) => Some(&item.ident),
        Item::Fn(item) => Some(&item.sig.ident),
        Item::Static(item) => Some(&item.ident),
        Item::Struct(item) => Some(&item.ident),
        Item::Trait(item) => Some(&item.ident),
        Item::Type(item) => Some(&item.ident),
        Item::Union(item) => Some(&item.ident),
        _ => None,
    }
}

/// The attributes of an item.
pub(super) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether `cfg` leaves an item out of a release build on Linux, or `doc(hidden)` out of the public API.
pub(super) fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let Meta::List(list) = &attribute.meta else { return false };
        if list.path.is_ident("doc") {
            return list.tokens.to_string() == "hidden";
        }
        list.path.is_ident("cfg") && list.parse_args::<Meta>().is_ok_and(|meta| !holds(&meta))
    })
}

/// Whether a `cfg` predicate holds in a release build with all features on Linux on x86-64, outside tests and model
/// checkers.
fn holds(meta: &Meta) -> bool {
    let parts = |list: &syn::MetaList| {
        let parts = syn::punctuated::Punctuated::<Meta, Token![,]>::parse_terminated;
        list.parse_args_with(parts).map(|parts| parts.into_iter().collect::<Vec<_>>()).unwrap_or_default()
    };
    match meta {
        Meta::Path(path) => path.is_ident("unix"),
        Meta::List(list) if list.path.is_ident("not") => !parts(list).iter().any(holds),
        Meta::List(list) if list.path.is_ident("all") => parts(list).iter().all(holds),
        Meta::List(list) => parts(list).iter().any(holds),
        Meta::NameValue(pair) => {
            if pair.path.is_ident("feature") {
                return true;
            }
            let value = super::render::text(&pair.value);
            [("target_os", "\"linux\""), ("target_arch", "\"x86_64\""), ("target_pointer_width", "\"64\"")]
                .iter()
                .any(|(name, expected)| pair.path.is_ident(name) && value == *expected)
        }
    }
}
