//! The parameters of a storage class.
//!
//! `pool` names a pool of the command line, or is a place itself. Those that begin with `slackwater.` are limits. Those of
//! the platform are passed over; any other one is an error, because a misspelt one would change nothing.

use std::collections::{BTreeMap, HashMap};

use slackwater_control::exit::Failure;

use crate::limits::Limits;
use crate::volumes::Pool;

/// The parameter that selects a pool.
const POOL: &str = "pool";
/// Limits; parsed and checked by [`Limits`].
const LIMITS: &str = "slackwater.";
/// Parameters that Kubernetes adds, such as the name of the claim.
const OF_PLATFORM: &str = "csi.storage.k8s.io/";

/// The pools of the command line, each with its name.
#[derive(Clone, Debug, Default)]
pub(super) struct Pools(BTreeMap<String, Pool>);

impl Pools {
    /// # Errors
    /// A place is neither a path nor a URL, or a name is given twice.
    pub(super) fn parse(named: &[(String, String)]) -> Result<Self, Failure> {
        let mut pools = BTreeMap::new();
        for (name, place) in named {
            if pools.insert(name.clone(), Pool::parse(place)?).is_some() {
                return Err(
                    Failure::usage(format!("--pool {name} is given twice")).advise("give each pool its own name")
                );
            }
        }
        Ok(Self(pools))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Pool> {
        self.0.values()
    }

    /// The pool that `parameters` select.
    ///
    /// # Errors
    /// No pool is selected, and there is not just one; or the place is neither a path nor a URL.
    pub(super) fn of(&self, parameters: &HashMap<String, String>) -> Result<Pool, Failure> {
        let known = || match self.0.is_empty() {
            true => "write for example pool: /srv/pool or pool: s3://bucket/volumes".to_owned(),
            false => format!("pools of this plugin: {}", self.0.keys().cloned().collect::<Vec<_>>().join(", ")),
        };
        match (parameters.get(POOL), self.0.iter().next()) {
            (Some(name), _) if self.0.contains_key(name) => Ok(self.0[name].clone()),
            (Some(place), _) => Pool::parse(place).map_err(|failure| failure.advise(known())),
            (None, Some((_, only))) if self.0.len() == 1 => Ok(only.clone()),
            (None, _) => Err(Failure::usage("the storage class has no parameter `pool`").advise(known())),
        }
    }
}

/// The limits in the parameters of a class.
///
/// # Errors
/// A parameter is unknown, or has a bad value.
pub(super) fn limits(parameters: &HashMap<String, String>) -> Result<Limits, Failure> {
    let is_known = |key: &str| key == POOL || key.starts_with(LIMITS) || key.starts_with(OF_PLATFORM);
    if let Some(unknown) = parameters.keys().find(|key| !is_known(key)) {
        return Err(Failure::usage(format!("unknown parameter `{}`", unknown.escape_default()))
            .advise("known parameters: pool, and limits such as slackwater.dirty-limit"));
    }
    Limits::parse(&parameters.iter().map(|(key, value)| (key.clone(), value.clone())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn pools(names: &[&str]) -> Pools {
        let named: Vec<_> = names.iter().map(|name| ((*name).to_owned(), format!("/srv/{name}"))).collect();
        Pools::parse(&named).unwrap()
    }

    #[test]
    fn a_class_selects_a_pool_by_name_or_place_or_uses_the_only_one() {
        let of = |names: &[&str], parameters: &[(&str, &str)]| pools(names).of(&map(parameters));
        let directory = |path: &str| Ok(Pool::Directory(path.into()));
        assert_eq!(of(&["a", "b"], &[("pool", "b")]), directory("/srv/b"));
        assert_eq!(of(&["a"], &[("pool", "/srv/c")]), directory("/srv/c"));
        assert_eq!(of(&["a"], &[]), directory("/srv/a"));
        assert!(of(&["a", "b"], &[]).unwrap_err().to_string().contains("a, b"));
        assert!(of(&[], &[]).unwrap_err().to_string().contains("pool: /srv/pool"));
        assert!(of(&["a"], &[("pool", "c")]).unwrap_err().to_string().contains("pools of this plugin: a"));
        let twice = [("a".to_owned(), "/x".to_owned()), ("a".to_owned(), "/y".to_owned())];
        assert!(Pools::parse(&twice).unwrap_err().what.contains("twice"));
    }

    #[test]
    fn unknown_parameters_are_refused_except_those_of_the_platform() {
        let found =
            limits(&map(&[("pool", "a"), ("csi.storage.k8s.io/pvc/name", "data"), ("slackwater.dontcache", "on")]));
        assert_eq!(found.unwrap().attributes(), [("slackwater.dontcache".into(), "on".into())].into());
        assert!(limits(&map(&[("dontcache", "on")])).unwrap_err().what.contains("`dontcache`"));
        assert!(limits(&map(&[("slackwater.dontcach", "on")])).is_err());
    }
}
