//! Paths in a namespace, which are absolute and without `..`, and the places on a mount along a path.

use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};
use std::path::{Component, Components, Path};

use crate::error::NamespaceError;
use crate::namespace::mount::MountId;

/// Splits a path into names. Repeated slashes and single dots are ignored.
///
/// # Errors
/// `BadPath` if `path` is not absolute or contains `..`, whose meaning depends on symbolic links, which are not
/// followed here.
pub(super) fn check(path: &Path) -> Result<(), NamespaceError> {
    let mut names = path.components();
    let is_absolute = names.next() == Some(Component::RootDir);
    if is_absolute && names.all(|name| matches!(name, Component::Normal(_))) {
        return Ok(());
    }
    Err(NamespaceError::BadPath(path.into()))
}

/// A place on a mount: the names from its root on, and their hash, which are extended together.
#[derive(Clone)]
pub(super) struct Place<'p> {
    on: MountId,
    names: Components<'p>,
    count: usize,
    hasher: DefaultHasher,
}

impl<'p> Place<'p> {
    /// The root of `on`, before any of `names`.
    pub(super) fn root_of(on: MountId, names: Components<'p>, random: &RandomState) -> Self {
        let mut hasher = random.build_hasher();
        hasher.write_u64(on.0);
        Self { on, names, count: 0, hasher }
    }

    /// `path` on `on`.
    pub(super) fn of(on: MountId, path: &'p Path, random: &RandomState) -> Self {
        let mut place = Self::root_of(on, path.components(), random);
        for name in path.components() {
            place.go_to(name);
        }
        place
    }

    /// Descends to `name`, which is the next of the names.
    pub(super) fn go_to(&mut self, name: Component<'_>) {
        self.hasher.write(name.as_os_str().as_encoded_bytes());
        self.hasher.write_u8(b'/');
        self.count += 1;
    }

    pub(super) fn hash(&self) -> u64 {
        self.hasher.finish()
    }

    pub(super) fn is(&self, on: MountId, path: &Path) -> bool {
        on == self.on && self.names.clone().take(self.count).eq(path.components())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_absolute_and_has_no_parent_components() {
        for good in ["/", "//vol/./a/", "/vol"] {
            check(Path::new(good)).unwrap();
        }
        for bad in ["", "vol", "./vol", "/vol/../etc", ".."] {
            assert!(matches!(check(Path::new(bad)), Err(NamespaceError::BadPath(path)) if path == Path::new(bad)));
        }
    }

    #[test]
    fn a_place_is_found_by_its_names() {
        let random = RandomState::new();
        let (one, other) = (MountId(1), MountId(2));
        let mut names = Path::new("vol//a/b").components();
        let mut place = Place::root_of(one, names.clone(), &random);
        assert!(place.is(one, Path::new("")));
        for expected in ["vol", "vol/a", "vol/a/b"] {
            place.go_to(names.next().unwrap());
            assert!(place.is(one, Path::new(expected)) && !place.is(other, Path::new(expected)));
            assert_eq!(place.hash(), Place::of(one, Path::new(expected), &random).hash());
        }
        assert!(!place.is(one, Path::new("vol/a")) && !place.is(one, Path::new("vol/a/b/c")));
    }
}
