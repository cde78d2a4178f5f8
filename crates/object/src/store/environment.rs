//! The environment variables from which stores take credentials, endpoints and other settings.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::geteuid;
use slackwater_sync::shim::Arc;

use crate::error::VolumeError;

/// A copy of the variables that matter to object stores. Its [`Debug`](fmt::Debug) form has their names only.
#[derive(Clone, Default)]
pub struct Environment {
    variables: Arc<BTreeMap<String, String>>,
}

/// The first letters of the variables that are copied, beside [`HOME`].
const PREFIXES: [&str; 7] = ["AWS_", "GOOGLE_", "AZURE_", "SERVICE_ACCOUNT", "IDENTITY_", "MSI_", "XDG_CONFIG_HOME"];
const HOME: &str = "HOME";
/// Variables whose values are parts of requests.
const IN_REQUESTS: [&str; 11] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_TOKEN",
    "GOOGLE_BEARER_TOKEN",
];
/// Longest file of variables.
const FILE_BYTES_MAX: u64 = 64 << 10;

impl Environment {
    /// The variables of this process.
    pub fn of_process() -> Self {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
            is_ours(&name).then_some((name, value))
        });
        variables.collect()
    }

    /// The variables in a file, and no others: lines `NAME=VALUE`, as for `docker run --env-file`. A value in double quotes is a
    /// JSON string. Empty lines, and those that begin with `#`, are ignored.
    ///
    /// # Errors
    /// [`VolumeError::Location`]: the file cannot be read, other users may read it, or a line is none of these. The text
    /// has nothing of the contents.
    ///
    /// # Blocking
    /// Reads the file.
    pub fn of_file(path: &Path) -> Result<Self, VolumeError> {
        let failed = |why: String| VolumeError::Location(format!("the credentials in {}: {why}", path.display()));
        let text = read_private(path).map_err(|error| failed(error.to_string()))?;
        let lines = text.lines().map(str::trim).enumerate();
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let variables = lines.map(|(at, line)| variable(line).map_err(|why| failed(format!("line {}: {why}", at + 1))));
        variables.collect()
    }

    /// Exactly these variables: for tests and experiments, whose stores must not depend on the user's.
    pub fn of<const N: usize>(variables: [(&str, &str); N]) -> Self {
        let owned = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self { variables: Arc::new(owned.into_iter().collect()) }
    }

    /// The variables and their values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// `path`, with a leading `~/` replaced by the home directory. `None` if there is none.
    pub(crate) fn path(&self, path: &str) -> Option<PathBuf> {
        match path.strip_prefix("~/") {
            Some(rest) => self.get(HOME).map(|home| PathBuf::from(home).join(rest)),
            None => Some(PathBuf::from(path)),
        }
    }

    /// Fails for a value that is part of requests to a store, and cannot be: in a variable that begins with `prefix`. The text
    /// has the name only.
    pub(super) fn check(&self, prefix: &str) -> Result<(), VolumeError> {
        let is_bad = |value: &str| value.bytes().any(|byte| !(0x20..0x7f).contains(&byte));
        let of_requests = |name: &str| name.starts_with(prefix) && IN_REQUESTS.contains(&name);
        match self.iter().find(|(name, value)| of_requests(name) && is_bad(value)) {
            None => Ok(()),
            Some((name, _)) => Err(VolumeError::Location(format!(
                "{name} has a character that no request can have, such as a line break at its end"
            ))),
        }
    }
}

/// An empty value is that of a variable that is not set.
impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Self {
        let is_set = |(_, value): &(String, String)| !value.is_empty();
        Self { variables: Arc::new(variables.into_iter().filter(is_set).collect()) }
    }
}

fn is_ours(name: &str) -> bool {
    name == HOME || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The name and the value in a line of a file.
fn variable(line: &str) -> Result<(String, String), &'static str> {
    let (name, value) = line.split_once('=').ok_or("write NAME=VALUE")?;
    if !is_ours(name) {
        return Err("it names no variable of an object store, such as AWS_ACCESS_KEY_ID");
    }
    let value = match value.starts_with('"') {
        true => serde_json::from_str(value).map_err(|_| "the value is not a JSON string in double quotes")?,
        false => value.to_owned(),
    };
    Ok((name.to_owned(), value))
}

/// The text of a file that only its owner may access.
fn read_private(path: &Path) -> io::Result<String> {
    // Does not wait for the writer of a pipe.
    let file = File::from(open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?);
    let stat = file.metadata()?;
    if !stat.is_file() || stat.len() > FILE_BYTES_MAX {
        return Err(io::Error::other("it is not a file of at most 64 KiB"));
    }
    if ![0, geteuid().as_raw()].contains(&stat.uid()) {
        return Err(io::Error::other("the file belongs to another user"));
    }
    if stat.permissions().mode() & 0o077 != 0 {
        return Err(io::Error::other("other users may access the file. Run chmod 600 on it"));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
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
    fn a_file_of_its_owner_has_the_variables_and_no_error_shows_them() {
        let path = std::env::temp_dir().join(format!("slackwater-credentials-{}", std::process::id()));
        let write = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Environment::of_file(&path).map_err(|error| error.to_string())
        };
        let found =
            write("# a comment\n\nAWS_ACCESS_KEY_ID=a=b \nGOOGLE_SERVICE_ACCOUNT_KEY=\"{\\n\\\"x\\\"}\"\n", 0o600);
        let found: Vec<_> = found.unwrap().iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(found, ["AWS_ACCESS_KEY_ID=a=b", "GOOGLE_SERVICE_ACCOUNT_KEY={\n\"x\"}"]);
        for (text, mode, part) in [
            ("AWS_ACCESS_KEY_ID=hush", 0o640, "chmod 600"),
            ("\nhush", 0o600, "line 2: write NAME=VALUE"),
            ("hush=hush", 0o600, "names no variable"),
            ("AWS_SECRET_ACCESS_KEY=\"hush", 0o400, "JSON string"),
            (&"#".repeat(70_000), 0o600, "64 KiB"),
        ] {
            let error = write(text, mode).unwrap_err();
            assert!(error.contains(part) && error.contains(path.to_str().unwrap()), "{error}");
            assert!(!error.contains("hush"), "{error}");
            std::fs::remove_file(&path).unwrap();
        }
        assert!(Environment::of_file(&path).unwrap_err().to_string().contains("No such file"));
    }

    #[test]
    fn values_that_no_request_can_have_are_refused_and_not_shown() {
        for value in ["hush\n", "hush\u{e9}", "\0hush"] {
            let environment = Environment::of([("AWS_SESSION_TOKEN", value), ("AWS_CONFIG_FILE", value)]);
            let error = environment.check("AWS_").unwrap_err().to_string();
            assert!(error.contains("AWS_SESSION_TOKEN") && !error.contains("hush"), "{error}");
            assert!(environment.check("AZURE_").is_ok(), "of another store");
            // A key in JSON has line breaks, and a file can have any name.
            for name in ["GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"] {
                assert!(Environment::of([(name, value)]).check("GOOGLE_").is_ok());
            }
        }
        let empty = [("AWS_ENDPOINT_URL".to_owned(), String::new())];
        assert_eq!(Environment::from_iter(empty).get("AWS_ENDPOINT_URL"), None);
    }

    #[test]
    fn a_tilde_is_the_home_directory() {
        let environment = Environment::of([("HOME", "/home/x")]);
        assert_eq!(environment.path("~/.aws/config"), Some(PathBuf::from("/home/x/.aws/config")));
        assert_eq!(environment.path("/etc/aws"), Some(PathBuf::from("/etc/aws")));
        assert_eq!(Environment::default().path("~/.aws/config"), None);
    }
}
