//! The configuration file of a daemon, in TOML. Keys that are missing have the defaults of `slackwater mount`.
//!
//! Errors name the line and the key. Unknown keys are errors: a user may rely on a misspelt one.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use slackwater_host::Printable as _;
use slackwater_mount::tenants::TenantConfig;

use crate::control::protocol::{MountRequest, Transport, VolumeOptions};
use crate::exit::Failure;
use crate::option_values::{
    DIRTY_EXPIRE, DIRTY_RATIO, parse_address, parse_duration, parse_follow, parse_upload_limit,
};
use crate::source;
use crate::volume::front_end::TenantBy;
use crate::volume::name::VolumeName;

/// The configuration of a daemon.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Config {
    /// Size of the cache that all volumes share.
    #[serde(deserialize_with = "size")]
    pub(crate) cache: Option<u64>,
    /// The file on tmpfs that holds the cache.
    pub(crate) arena: Option<PathBuf>,
    /// The group of the socket, whose members may query the daemon.
    pub(crate) socket_group: Option<String>,
    /// Percentage of the cache that may be dirty; the limit also applies to each volume.
    #[serde(deserialize_with = "percent")]
    pub(crate) dirty_ratio: u32,
    #[serde(deserialize_with = "duration")]
    pub(crate) dirty_expire: Duration,
    #[serde(deserialize_with = "word")]
    pub(crate) tenant_by: TenantBy,
    /// The address that serves metrics.
    #[serde(deserialize_with = "address")]
    pub(crate) metrics: Option<SocketAddr>,
    /// The address that serves the page for operators.
    #[serde(deserialize_with = "address")]
    pub(crate) web: Option<SocketAddr>,
    /// The file with the token that its clients must have.
    pub(crate) web_token_file: Option<PathBuf>,
    /// By the path of a cgroup, or `uid:1000`.
    pub(crate) tenants: BTreeMap<PathBuf, TenantTable>,
    pub(crate) volumes: BTreeMap<VolumeName, VolumeTable>,
}

/// The settings of one tenant.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct TenantTable {
    /// Limit for its unwritten data.
    #[serde(deserialize_with = "size")]
    pub(crate) limit: Option<u64>,
    pub(crate) dontcache: Option<bool>,
}

/// A volume that is mounted when the daemon starts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct VolumeTable {
    source: PathBuf,
    mountpoint: PathBuf,
    #[serde(default)]
    read_only: bool,
    #[serde(default)]
    allow_other: bool,
    #[serde(default)]
    nosuid: bool,
    #[serde(default)]
    nodev: bool,
    #[serde(default)]
    noexec: bool,
    #[serde(default)]
    dontcache: bool,
    #[serde(default)]
    transport: Transport,
    /// Of an object volume.
    #[serde(default, deserialize_with = "age")]
    follow: Option<Duration>,
    /// Of an object volume, in bytes per second.
    #[serde(default, deserialize_with = "rate")]
    upload_limit: Option<u64>,
    /// A file with the credentials of an object volume.
    #[serde(default)]
    credentials: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cache: None,
            arena: None,
            socket_group: None,
            dirty_ratio: DIRTY_RATIO,
            dirty_expire: DIRTY_EXPIRE,
            tenant_by: TenantBy::Volume,
            metrics: None,
            web: None,
            web_token_file: None,
            tenants: BTreeMap::new(),
            volumes: BTreeMap::new(),
        }
    }
}

impl Config {
    /// The text of a configuration.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn read(path: &Path) -> Result<String, Failure> {
        std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("cannot read the configuration {}: {error}", path.printable())))
    }

    /// The configuration with this text, of the file `path`.
    ///
    /// # Errors
    /// It is not valid.
    pub(crate) fn of(text: &str, path: &Path) -> Result<Self, Failure> {
        Self::parse(text).map_err(|error| {
            Failure::usage(format!("invalid configuration {}: {}", path.printable(), error.trim_end()))
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        for (name, volume) in &config.volumes {
            let paths = [("source", &volume.source), ("mountpoint", &volume.mountpoint)];
            let credentials = volume.credentials.as_ref().map(|path| ("credentials", path));
            for (key, path) in paths.into_iter().chain(credentials) {
                let is_complete = if key == "source" { source::is_complete } else { Path::is_absolute };
                if !is_complete(path) {
                    return Err(format!("volumes.{name}.{key}: {} is not an absolute path", path.printable()));
                }
            }
        }
        Ok(config)
    }

    /// The tenants with settings.
    pub(crate) fn configured_tenants(&self) -> BTreeMap<PathBuf, TenantConfig> {
        let tables = self.tenants.iter().map(|(tenant, table)| {
            (tenant.clone(), TenantConfig { limit_bytes: table.limit, dontcache: table.dontcache })
        });
        tables.filter(|(_, config)| *config != TenantConfig::default()).collect()
    }

    /// The volumes, as mount requests.
    pub(crate) fn mounts(&self) -> impl Iterator<Item = MountRequest> {
        self.volumes.iter().map(|(name, volume)| MountRequest {
            is_repeated: false,
            name: Some(name.to_string()),
            source: volume.source.clone(),
            mountpoint: volume.mountpoint.clone(),
            options: VolumeOptions {
                read_only: volume.read_only,
                allow_other: volume.allow_other,
                nosuid: volume.nosuid,
                nodev: volume.nodev,
                noexec: volume.noexec,
                dontcache: volume.dontcache,
                transport: volume.transport,
                take_over: false,
                follow: volume.follow,
                upload_limit_bytes_per_s: volume.upload_limit,
            },
            credentials: volume.credentials.clone(),
        })
    }
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(deserializer)?;
    slackwater_host::size::parse(&text).map(Some).map_err(serde::de::Error::custom)
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse_duration(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

fn age<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    parse_follow(&String::deserialize(deserializer)?).map(Some).map_err(serde::de::Error::custom)
}

fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    parse_upload_limit(&String::deserialize(deserializer)?).map(Some).map_err(serde::de::Error::custom)
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    parse_address(&String::deserialize(deserializer)?).map(Some).map_err(serde::de::Error::custom)
}

fn percent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let percent = u32::deserialize(deserializer)?;
    let is_percentage = (1..=100).contains(&percent);
    if is_percentage { Ok(percent) } else { Err(serde::de::Error::custom("not a percentage from 1 to 100")) }
}

fn word<'de, D: Deserializer<'de>, T: FromStr<Err: std::fmt::Display>>(deserializer: D) -> Result<T, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use proptest::prelude::*;

    use super::*;
    use crate::arguments::{Arguments, Command};
    use crate::damage::{cases, damaged};

    #[test]
    fn every_key_is_parsed() {
        let config = Config::parse(
            r#"
            cache = "2GiB"
            arena = "/dev/shm/sw"
            socket-group = "adm"
            dirty-ratio = 10
            dirty-expire = "5s"
            tenant-by = "cgroup"
            metrics = "127.0.0.1:9810"
            web = "9811"
            web-token-file = "/etc/slackwater.token"

            [tenants."/containers/a"]
            limit = "64MiB"
            dontcache = true

            [volumes.web]
            source = "/srv/web"
            mountpoint = "/mnt/web"
            noexec = true

            [volumes.archive]
            source = "s3://bucket/archive"
            mountpoint = "/mnt/archive"
            read-only = true
            follow = "1s"
            upload-limit = "1MiB"
            "#,
        )
        .unwrap();
        assert_eq!((config.cache, config.dirty_ratio, config.tenant_by), (Some(2 << 30), 10, TenantBy::Cgroup));
        assert_eq!(config.dirty_expire, Duration::from_secs(5));
        assert_eq!(config.web.unwrap().to_string(), "127.0.0.1:9811");
        assert_eq!(config.web_token_file.as_deref(), Some(Path::new("/etc/slackwater.token")));
        assert_eq!(config.tenants[Path::new("/containers/a")].limit, Some(64 << 20));
        let mounts: Vec<_> = config.mounts().collect();
        let [archive, web] = &mounts[..] else { panic!("{mounts:?}") };
        assert_eq!((web.name.as_deref(), web.options.noexec), (Some("web"), true));
        assert!(!web.options.nodev && web.source == Path::new("/srv/web"));
        let settings = (archive.options.follow, archive.options.upload_limit_bytes_per_s);
        assert_eq!(settings, (Some(Duration::from_secs(1)), Some(1 << 20)));
    }

    #[test]
    fn the_example_configuration_is_valid() {
        let example = include_str!("../../../../../dist/slackwater.toml");
        assert_eq!(Config::parse(example).unwrap().cache, Some(1 << 30));
        // The commented-out part is valid too.
        let shown = example.replace("\n#", "\n");
        assert_eq!(Config::parse(&shown).unwrap().mounts().count(), 1, "{shown}");
    }

    #[test]
    fn an_empty_configuration_is_valid() {
        let config = Config::parse("").unwrap();
        assert_eq!((config.cache, config.dirty_ratio, config.volumes.len()), (None, 20, 0));
    }

    #[test]
    fn the_defaults_are_those_of_the_command_line() {
        let command = Arguments::parse_from(["slackwater", "mount", "source", "mountpoint"]).command;
        let Command::Mount(unsaid) = command else { panic!("{command:?}") };
        let config = Config::default();
        let of_cache = (config.dirty_ratio, config.dirty_expire, config.tenant_by);
        assert_eq!(of_cache, (unsaid.dirty_ratio(), unsaid.dirty_expire(), unsaid.tenant_by()));
        assert_eq!((config.cache, config.arena, config.metrics), (unsaid.cache, unsaid.arena, unsaid.metrics));
        assert!(config.tenants.is_empty() && unsaid.tenant_limit.is_empty() && unsaid.tenant_dontcache.is_empty());
    }

    #[test]
    fn errors_name_the_line_and_the_key() {
        for (text, words) in [
            ("\ncahce = \"1GiB\"", ["line 2", "cahce"]),
            ("cache = \"lots\"", ["line 1", "cache"]),
            ("\n\ndirty-ratio = 101", ["line 3", "dirty-ratio"]),
            ("dirty-expire = \"3\"", ["line 1", "dirty-expire"]),
            ("tenant-by = \"group\"", ["line 1", "group"]),
            ("metrics = \"here\"", ["line 1", "metrics"]),
            ("web = \"here\"", ["line 1", "web"]),
            ("[tenants.\"/a\"]\nlimits = \"1MiB\"", ["line 2", "limits"]),
            ("[volumes.web]\nsource = \"/a\"", ["line 1", "mountpoint"]),
            ("[volumes.web]\nsource = \"/a\"\nmountpoint = \"/b\"\nread_only = true", ["line 4", "read_only"]),
            ("[volumes.web]\nsource = \"a\"\nmountpoint = \"/b\"", ["volumes.web.source", "not an absolute path"]),
            ("[volumes.\"a/b\"]\nsource = \"/a\"\nmountpoint = \"/b\"", ["a/b", "letters"]),
            ("[volumes.a]\nsource = \"s3://b\"\nmountpoint = \"/b\"\nfollow = \"1\"", ["line 4", "follow"]),
            ("cache = \"1GiB", ["line 1", "cache"]),
        ] {
            let error = Config::parse(text).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
    }

    proptest! {
        #![proptest_config(cases())]

        #[test]
        fn a_damaged_configuration_is_parsed_or_refused(text in damaged(vec![
            include_bytes!("../../../../../dist/slackwater.toml").to_vec(),
            b"dirty-expire = \"5s\"\n[tenants.\"/a\"]\nlimit = \"1MiB\"\n[volumes.web]\nsource = \"/a\"\nmountpoint = \"/b\"\n".to_vec(),
        ])) {
            let text = String::from_utf8_lossy(&text);
            match Config::parse(&text) {
                Ok(config) => {
                    prop_assert!(config.mounts().all(|mount| source::is_complete(&mount.source) && mount.mountpoint.is_absolute()));
                    drop(config.configured_tenants());
                }
                Err(error) => prop_assert!(error.contains("line ") || error.contains("volumes."), "{error}"),
            }
        }
    }
}
