//! From a location to its store.

use std::collections::HashMap;
use std::fs;
use std::path::Path as FsPath;
use std::str::FromStr;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::prefix::PrefixStore;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use parking_lot::Mutex;
use slackwater_sync::shim::{Arc, OnceLock};

use super::environment::Environment;
use super::http::Connector;
use super::location::{Location, Place};
use super::profile;
use super::profile_keys::ProfileKeys;
use crate::error::VolumeError;

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Without a byte from the store for this long, a request is broken. The time limit of the whole is in `retry`.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// The bare store of a location, rooted at its prefix.
///
/// # Errors
/// [`VolumeError::Location`]: settings are missing or wrong, or the directory does not exist.
///
/// # Blocking
/// Reads profiles and directories; sends no request.
pub(super) fn connect(location: &Location) -> Result<Arc<dyn ObjectStore>, VolumeError> {
    let environment = location.environment();
    let failed = |error: String| VolumeError::Location(format!("cannot use {location}: {error}"));
    let object_error = |error: object_store::Error| failed(super::errors::reason(&error));
    let store: Arc<dyn ObjectStore> = match location.place() {
        Place::S3 { bucket, endpoint } => {
            let builder = s3(bucket, endpoint.as_deref(), environment).map_err(failed)?;
            Arc::new(builder.build().map_err(object_error)?)
        }
        Place::Gcs { bucket } => {
            let builder = GoogleCloudStorageBuilder::new().with_client_options(client());
            let builder = builder.with_http_connector(Connector::default());
            let builder =
                configure(builder, environment, "GOOGLE_", |builder, key, value| builder.with_config(key, value));
            let builder = builder.with_bucket_name(bucket).with_retry(no_retries());
            Arc::new(builder.build().map_err(object_error)?)
        }
        Place::Azure { container } => {
            let builder = MicrosoftAzureBuilder::new().with_client_options(client());
            let builder = builder.with_http_connector(Connector::default());
            let builder =
                configure(builder, environment, "AZURE_", |builder, key, value| builder.with_config(key, value));
            let builder = builder.with_container_name(container).with_retry(no_retries());
            Arc::new(builder.build().map_err(object_error)?)
        }
        Place::File { directory } => Arc::new(directory_store(directory).map_err(failed)?),
        Place::Memory { name } => in_memory(name),
    };
    let prefix = location.prefix();
    let store = location.wrap(store);
    Ok(if prefix.is_root() { store } else { Arc::new(PrefixStore::new(store, prefix)) })
}

/// Makes the directory of a `file:` location, and those above it. Other places need nothing.
///
/// # Errors
/// [`VolumeError::Location`]: the directory cannot be made.
///
/// # Blocking
/// On the file system.
pub(crate) fn make_place(location: &Location) -> Result<(), VolumeError> {
    let Some(directory) = location.local_directory() else { return Ok(()) };
    fs::create_dir_all(directory)
        .map_err(|error| VolumeError::Location(format!("cannot make the directory {}: {error}", directory.display())))
}

/// `object_store` does not retry: that is the task of `retry`, which knows all requests.
fn no_retries() -> RetryConfig {
    RetryConfig { backoff: BackoffConfig::default(), max_retries: 0, retry_timeout: Duration::ZERO }
}

fn client() -> ClientOptions {
    ClientOptions::new().with_connect_timeout(CONNECT_TIMEOUT).with_read_timeout(READ_TIMEOUT).with_timeout_disabled()
}

/// Applies the variables of `environment` that start with `prefix` and name a setting.
fn configure<B, K: FromStr>(builder: B, environment: &Environment, prefix: &str, apply: impl Fn(B, K, &str) -> B) -> B {
    let ours = environment.iter().filter(|(name, _)| name.starts_with(prefix) || *name == "SERVICE_ACCOUNT");
    let settings = ours.filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value)));
    settings.fold(builder, |builder, (key, value)| apply(builder, key, value))
}

fn s3(bucket: &str, endpoint: Option<&str>, environment: &Environment) -> Result<AmazonS3Builder, String> {
    let builder = AmazonS3Builder::new().with_client_options(client()).with_http_connector(Connector::default());
    let mut builder = configure(builder, environment, "AWS_", |builder, key, value| builder.with_config(key, value));
    let profile = profile::read(environment)?;
    let has_keys = builder.get_config_value(&AmazonS3ConfigKey::AccessKeyId).is_some();
    if let (false, Some(keys)) = (has_keys, profile.keys) {
        builder = builder.with_credentials(Arc::new(ProfileKeys::new(environment.clone(), keys)));
    }
    if let (None, Some(region)) = (builder.get_config_value(&AmazonS3ConfigKey::Region), profile.region) {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = endpoint {
        if endpoint.starts_with("http://") && environment.get("AWS_ALLOW_HTTP").is_none() {
            return Err(format!(
                "the endpoint {endpoint} is not encrypted. Use https://, or set AWS_ALLOW_HTTP=true if the network is \
                 trusted"
            ));
        }
        builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
    }
    Ok(builder.with_bucket_name(bucket).with_retry(no_retries()))
}

fn directory_store(directory: &FsPath) -> Result<LocalFileSystem, String> {
    let store = LocalFileSystem::new_with_prefix(directory)
        .map_err(|_| format!("there is no directory {}. `slackwater mkfs` makes it", directory.display()))?;
    // An answered PUT is durable, as with the other stores.
    Ok(store.with_fsync(true))
}

/// The store of this name in this process, empty when it is named first.
fn in_memory(name: &str) -> Arc<dyn ObjectStore> {
    static STORES: OnceLock<Mutex<HashMap<String, Arc<InMemory>>>> = OnceLock::new();
    STORES.get_or_init(Mutex::default).lock().entry(name.to_owned()).or_default().clone()
}
