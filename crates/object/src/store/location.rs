//! Where a volume is: the URL, the place that it means, and the environment from which its store takes credentials.

use std::fmt;
use std::path::{Path as FsPath, PathBuf};

use object_store::ObjectStore;
use object_store::path::Path;
use slackwater_sync::shim::Arc;

use super::environment::Environment;
use super::patience::Patience;
use super::profile;
use crate::error::VolumeError;

/// The place of a volume: a bucket or directory, and a prefix in it. Its text never has credentials.
///
/// The URL is `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, `file:///directory` or
/// `memory:NAME/prefix`. Credentials and endpoints come from the environment that was present when it was parsed.
#[derive(Clone)]
pub struct Location {
    place: Place,
    /// Below the place; for [`Place::File`] the directory as text.
    prefix: Path,
    environment: Environment,
    layer: Option<Layer>,
    patience: Option<Patience>,
}

type Layer = Arc<dyn Fn(Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> + Send + Sync>;

/// A place that holds objects.
#[derive(Clone)]
pub(super) enum Place {
    S3 {
        bucket: String,
        endpoint: Option<String>,
    },
    Gcs {
        bucket: String,
    },
    Azure {
        container: String,
    },
    /// A directory of this machine, without symbolic links.
    File {
        directory: PathBuf,
    },
    /// A store in memory, shared by all locations of this name in the process.
    Memory {
        name: String,
    },
}

impl Location {
    /// Parses a URL, with the environment of this process.
    ///
    /// # Errors
    /// [`VolumeError::Location`]: another scheme, no bucket, credentials in the URL, a bad prefix.
    ///
    /// # Blocking
    /// On the file system, for `file:` (symbolic links are resolved) and for the profiles of `s3:`.
    pub fn parse(url: &str) -> Result<Self, VolumeError> {
        Self::parse_in(url, Environment::of_process())
    }

    /// [`Location::parse`] with another environment.
    ///
    /// # Errors
    /// As [`Location::parse`].
    pub fn parse_in(url: &str, environment: Environment) -> Result<Self, VolumeError> {
        let (scheme, rest) = url.split_once(':').ok_or_else(|| {
            bad("a volume's place is a URL such as s3://bucket/prefix, gs://, az://, file:///directory or memory:")
        })?;
        if scheme == "file" {
            return Self::of_directory(rest, environment);
        }
        if rest.contains('@') {
            return Err(bad(format!(
                "credentials in a {scheme}: URL are refused, because process lists and logs show them. Set them in the \
                 environment ({}) and leave them out of the URL",
                variables_of_scheme(scheme)
            )));
        }
        if rest.contains(['?', '#']) {
            return Err(bad(format!(
                "a {scheme}: URL has only a bucket and a prefix, no `?` and no `#`. Options and keys belong in the \
                 environment ({})",
                variables_of_scheme(scheme)
            )));
        }
        if scheme == "memory" {
            let (name, prefix) = split(rest.trim_start_matches('/'));
            return Ok(Self::new(Place::Memory { name: name.to_owned() }, parse_prefix(url, prefix)?, environment));
        }
        if !["s3", "gs", "az"].contains(&scheme) {
            return Err(bad(format!("the scheme {scheme}: is unknown. Use s3://, gs://, az://, file:/// or memory:")));
        }
        let rest = rest.strip_prefix("//").ok_or_else(|| bad(format!("write {scheme}://bucket/prefix")))?;
        let (bucket, prefix) = split(rest);
        check_bucket(scheme, bucket)?;
        environment.check(match scheme {
            "s3" => "AWS_",
            "gs" => "GOOGLE_",
            _ => "AZURE_",
        })?;
        let bucket = bucket.to_owned();
        let place = match scheme {
            "s3" => {
                let endpoint = profile::endpoint(&environment);
                if endpoint.as_ref().is_some_and(|endpoint| endpoint.contains('@')) {
                    return Err(bad(format!(
                        "credentials in AWS_ENDPOINT_URL are refused, because messages name the endpoint. Set {S3_VARIABLES}"
                    )));
                }
                Place::S3 { bucket, endpoint }
            }
            "gs" => Place::Gcs { bucket },
            _ => Place::Azure { container: bucket },
        };
        Ok(Self::new(place, parse_prefix(url, prefix)?, environment))
    }

    /// [`Location::parse`] with the variables in the file `credentials` in place of the environment. They must have a key, so
    /// that the identity of this machine is never used instead.
    ///
    /// # Errors
    /// As [`Location::parse`] and [`Environment::of_file`]; or there is no key.
    ///
    /// # Blocking
    /// As [`Location::parse`].
    pub fn parse_with(url: &str, credentials: &FsPath) -> Result<Self, VolumeError> {
        let location = Self::parse_in(url, Environment::of_file(credentials)?)?;
        if location.needs_machine() {
            return Err(bad(format!(
                "the credentials in {} have no key for {location}. Set {}",
                credentials.display(),
                variables_of(&location.place)
            )));
        }
        Ok(location)
    }

    fn new(place: Place, prefix: Path, environment: Environment) -> Self {
        Self { place, prefix, environment, layer: None, patience: None }
    }

    fn of_directory(rest: &str, environment: Environment) -> Result<Self, VolumeError> {
        let text = match rest.strip_prefix("//") {
            Some(path) if path.starts_with('/') => path,
            Some(_) => return Err(bad("write file:///directory, with three slashes and an absolute path")),
            None => rest,
        };
        if !text.starts_with('/') {
            return Err(bad("write file:///directory, with three slashes and an absolute path"));
        }
        let decoded = Path::from_url_path(text).map_err(|error| bad(format!("file://{text}: {error}")))?;
        let directory = resolve(&PathBuf::from(format!("/{decoded}")));
        let prefix = directory
            .to_str()
            .and_then(|text| Path::parse(text).ok())
            .ok_or_else(|| bad(format!("the name of {} is not valid UTF-8", directory.display())))?;
        if prefix.is_root() {
            return Err(bad("a volume cannot fill the root directory. Name a directory: file:///srv/volume"));
        }
        Ok(Self::new(Place::File { directory }, prefix, environment))
    }

    /// The same place, with `layer` around its store, below the layers that retry and count. For tests and experiments:
    /// see [`crate::layers`].
    #[must_use]
    pub fn layered(self, layer: impl Fn(Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> + Send + Sync + 'static) -> Self {
        let layer: Layer = match self.layer {
            Some(below) => Arc::new(move |store| layer(below(store))),
            None => Arc::new(layer),
        };
        Self { layer: Some(layer), ..self }
    }

    /// The same place, with other time limits for its requests. For tests and experiments.
    #[must_use]
    pub fn patient(self, patience: Patience) -> Self {
        Self { patience: Some(patience), ..self }
    }

    /// The directory of a `file:` volume, which nothing may be mounted over.
    pub fn local_directory(&self) -> Option<&FsPath> {
        match &self.place {
            Place::File { directory } => Some(directory),
            Place::S3 { .. } | Place::Gcs { .. } | Place::Azure { .. } | Place::Memory { .. } => None,
        }
    }

    /// Whether a `file:` volume has no directory any more. If the directory above is missing too, the disk may not be
    /// mounted: the store then reports it.
    pub(crate) fn is_gone(&self) -> bool {
        self.local_directory().is_some_and(|path| !path.exists() && path.parent().is_some_and(FsPath::exists))
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// The prefix of all objects of the volume, in the store that [`Place`] means.
    pub(super) fn prefix(&self) -> Path {
        match self.place {
            Place::File { .. } => Path::default(),
            Place::S3 { .. } | Place::Gcs { .. } | Place::Azure { .. } | Place::Memory { .. } => self.prefix.clone(),
        }
    }

    pub(super) fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The time limits of requests, if they are not the usual ones.
    pub(super) fn patience(&self) -> Option<Patience> {
        self.patience
    }

    /// Whether the store keeps attributes of objects.
    pub(super) fn has_attributes(&self) -> bool {
        !matches!(self.place, Place::File { .. })
    }

    /// Whether credentials can only come from the metadata service of a cloud machine.
    ///
    /// # Blocking
    /// Reads profiles.
    pub(super) fn needs_role(&self) -> bool {
        const SOURCES: [&str; 5] = [
            "AWS_ACCESS_KEY_ID",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            "AWS_SKIP_SIGNATURE",
        ];
        matches!(self.place, Place::S3 { .. })
            && SOURCES.iter().all(|name| self.environment.get(name).is_none())
            && profile::read(&self.environment).is_ok_and(|profile| profile.keys.is_none())
    }

    /// Whether credentials can only come from the identity of the machine, or from a file that no variable names.
    ///
    /// # Blocking
    /// Reads profiles.
    fn needs_machine(&self) -> bool {
        let has = |names: &[&str]| names.iter().any(|name| self.environment.get(name).is_some());
        match &self.place {
            Place::S3 { .. } => self.needs_role(),
            Place::Gcs { .. } => !has(&[
                "GOOGLE_APPLICATION_CREDENTIALS",
                "GOOGLE_SERVICE_ACCOUNT",
                "GOOGLE_SERVICE_ACCOUNT_KEY",
                "GOOGLE_SERVICE_ACCOUNT_PATH",
                "GOOGLE_BEARER_TOKEN",
                "GOOGLE_SKIP_SIGNATURE",
                "SERVICE_ACCOUNT",
            ]),
            Place::Azure { .. } => !has(&[
                "AZURE_STORAGE_ACCOUNT_KEY",
                "AZURE_STORAGE_ACCESS_KEY",
                "AZURE_STORAGE_MASTER_KEY",
                "AZURE_STORAGE_SAS_KEY",
                "AZURE_STORAGE_SAS_TOKEN",
                "AZURE_STORAGE_TOKEN",
                "AZURE_STORAGE_USE_EMULATOR",
                "AZURE_SKIP_SIGNATURE",
                "AZURE_CLIENT_SECRET",
                "AZURE_STORAGE_CLIENT_SECRET",
                "AZURE_FEDERATED_TOKEN_FILE",
            ]),
            Place::File { .. } | Place::Memory { .. } => false,
        }
    }

    pub(super) fn wrap(&self, store: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
        match &self.layer {
            Some(layer) => layer(store),
            None => store,
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, bucket) = match &self.place {
            Place::S3 { bucket, .. } => ("s3://", bucket.as_str()),
            Place::Gcs { bucket } => ("gs://", bucket.as_str()),
            Place::Azure { container } => ("az://", container.as_str()),
            Place::File { .. } => return write!(f, "file:///{}", self.prefix),
            Place::Memory { name } => ("memory:", name.as_str()),
        };
        match self.prefix.is_root() {
            true => write!(f, "{scheme}{bucket}"),
            false => write!(f, "{scheme}{bucket}/{}", self.prefix),
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({self})")
    }
}

fn bad(text: impl Into<String>) -> VolumeError {
    VolumeError::Location(text.into())
}

fn split(rest: &str) -> (&str, &str) {
    rest.split_once('/').unwrap_or((rest, ""))
}

fn parse_prefix(url: &str, prefix: &str) -> Result<Path, VolumeError> {
    Path::parse(prefix).map_err(|error| bad(format!("bad prefix in {url}: {error}")))
}

fn check_bucket(scheme: &str, bucket: &str) -> Result<(), VolumeError> {
    if bucket.is_empty() {
        return Err(bad(format!("the URL names no bucket. Write {scheme}://bucket/prefix")));
    }
    if bucket.contains(':') {
        return Err(bad(format!(
            "{bucket:?} is not a bucket. The address of a server belongs in the environment: set AWS_ENDPOINT_URL, and \
             write {scheme}://bucket/prefix"
        )));
    }
    let is_valid = bucket.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    if !is_valid {
        return Err(bad(format!("{bucket:?} is not a valid bucket name: use letters, digits, `-` and `.`")));
    }
    Ok(())
}

/// The variables that hold the credentials of a place.
pub(super) fn variables_of(place: &Place) -> &'static str {
    match place {
        Place::Gcs { .. } => GCS_VARIABLES,
        Place::Azure { .. } => AZURE_VARIABLES,
        Place::S3 { .. } | Place::File { .. } | Place::Memory { .. } => S3_VARIABLES,
    }
}

const S3_VARIABLES: &str = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE";
const GCS_VARIABLES: &str = "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT";
const AZURE_VARIABLES: &str = "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY";

fn variables_of_scheme(scheme: &str) -> &'static str {
    match scheme {
        "gs" => GCS_VARIABLES,
        "az" => AZURE_VARIABLES,
        _ => S3_VARIABLES,
    }
}

/// `path` without symbolic links in the part of it that exists.
fn resolve(path: &FsPath) -> PathBuf {
    let existing = path.ancestors().find_map(|ancestor| Some((ancestor, ancestor.canonicalize().ok()?)));
    match existing {
        Some((ancestor, real)) => match path.strip_prefix(ancestor) {
            Ok(rest) if rest.as_os_str().is_empty() => real,
            Ok(rest) => real.join(rest),
            Err(_) => path.to_owned(),
        },
        None => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Location, String> {
        Location::parse_in(url, Environment::default()).map_err(|error| error.to_string())
    }

    fn place(url: &str) -> Location {
        parse(url).expect("a good URL")
    }

    #[test]
    fn texts_are_canonical() {
        let same = [
            ("s3://bucket/a/b/", "s3://bucket/a/b"),
            ("s3://bucket", "s3://bucket"),
            ("s3://bucket/", "s3://bucket"),
            ("gs://b/x", "gs://b/x"),
            ("az://b/x", "az://b/x"),
            ("memory:", "memory:"),
            ("memory:one/two/", "memory:one/two"),
            ("memory:///one", "memory:one"),
            ("file:///nowhere/x/", "file:///nowhere/x"),
            ("file:/nowhere/x", "file:///nowhere/x"),
        ];
        for (url, text) in same {
            assert_eq!(place(url).to_string(), text);
            assert_eq!(place(text).to_string(), text, "{url}");
        }
    }

    #[test]
    fn an_error_says_what_to_write_instead() {
        let errors = [
            ("bucket/prefix", "s3://bucket/prefix"),
            ("http://bucket/x", "Use s3://"),
            ("s3:bucket", "write s3://bucket/prefix"),
            ("s3:///x", "names no bucket"),
            ("s3://host:9000/x", "AWS_ENDPOINT_URL"),
            ("s3://b!/x", "valid bucket name"),
            ("s3://bucket/a//b", "bad prefix"),
            ("s3://bucket/../b", "bad prefix"),
            ("file://srv/x", "three slashes"),
            ("file:///", "root directory"),
        ];
        for (url, part) in errors {
            let error = parse(url).expect_err(url);
            assert!(error.contains(part), "{url}: {error}");
        }
    }

    #[test]
    fn credentials_in_a_url_are_refused_and_not_repeated() {
        for url in ["s3://KEY:hunter2@bucket/x", "az://container/x?sig=hunter2", "gs://bucket/x#hunter2"] {
            let error = parse(url).expect_err(url);
            assert!(error.contains("environment"), "{error}");
            assert!(!error.contains("hunter2") && !error.contains("KEY:"), "{error}");
        }
    }

    #[test]
    fn credentials_in_an_endpoint_are_refused_and_not_repeated() {
        let environment = Environment::of([("AWS_ENDPOINT_URL", "https://KEY:hunter2@host")]);
        let error = Location::parse_in("s3://bucket/x", environment).expect_err("refused").to_string();
        assert!(error.contains("AWS_ENDPOINT_URL") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn a_symbolic_link_to_a_directory_is_the_same_place() {
        let base = std::env::temp_dir().join(format!("slackwater-location-{}", std::process::id()));
        std::fs::create_dir_all(base.join("real")).expect("a scratch directory");
        std::os::unix::fs::symlink(base.join("real"), base.join("link")).expect("a link");
        let (real, link) =
            ["real", "link"].map(|name| place(&format!("file://{}/{name}/new", base.display())).to_string()).into();
        assert_eq!(real, link);
        std::fs::remove_dir_all(base).expect("ours");
    }
}
