//! The environment variables from which stores take credentials, endpoints and other settings.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use slackwater_sync::shim::Arc;

/// A copy of the variables that matter to object stores. Its [`Debug`](fmt::Debug) form has their names only.
#[derive(Clone, Default)]
pub struct Environment {
    variables: Arc<BTreeMap<String, String>>,
}

/// The first letters of the variables that are copied, beside [`HOME`].
const PREFIXES: [&str; 7] = ["AWS_", "GOOGLE_", "AZURE_", "SERVICE_ACCOUNT", "IDENTITY_", "MSI_", "XDG_CONFIG_HOME"];
const HOME: &str = "HOME";

impl Environment {
    /// The variables of this process.
    pub fn of_process() -> Self {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
            let is_ours = name == HOME || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
            (is_ours && !value.is_empty()).then_some((name, value))
        });
        Self { variables: Arc::new(variables.collect()) }
    }

    /// Exactly these variables: for tests and experiments, whose stores must not depend on the user's.
    pub fn of<const N: usize>(variables: [(&str, &str); N]) -> Self {
        let owned = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self { variables: Arc::new(owned.into_iter().collect()) }
    }

    /// The variables and their values, to set them for another process.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// `path`, with a leading `~/` replaced by the home directory.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        match (path.strip_prefix("~/"), self.get(HOME)) {
            (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
            _ => PathBuf::from(path),
        }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_debug_form_has_no_values() {
        let environment = Environment::of([("AWS_SECRET_ACCESS_KEY", "hunter2")]);
        assert_eq!(format!("{environment:?}"), "{\"AWS_SECRET_ACCESS_KEY\"}");
    }

    #[test]
    fn a_tilde_is_the_home_directory() {
        let environment = Environment::of([("HOME", "/home/x")]);
        assert_eq!(environment.path("~/.aws/config"), PathBuf::from("/home/x/.aws/config"));
        assert_eq!(environment.path("/etc/aws"), PathBuf::from("/etc/aws"));
    }
}
