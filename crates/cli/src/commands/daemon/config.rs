//! The configuration file of a daemon, in TOML. Keys that are missing have the defaults of `slackwater mount`.
//!
//! Errors name the line and the key. Unknown keys are errors: a user may rely on a misspelt one.

use std::path::Path;

use slackwater_control::exit::Failure;
use slackwater_control::name;
use slackwater_control::protocol::MountRequest;
use slackwater_control::spec::ServerSpec;
use slackwater_host::Printable as _;

/// The text of a configuration.
///
/// # Errors
/// The file cannot be read.
pub(super) fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read the configuration {}: {error}", path.printable())))
}

/// The configuration with this text, of the file `path`.
///
/// # Errors
/// The text is not a valid configuration.
pub(super) fn of(text: &str, path: &Path) -> Result<ServerSpec, Failure> {
    parse(text)
        .map_err(|error| Failure::usage(format!("invalid configuration {}: {}", path.printable(), error.trim_end())))
}

fn parse(text: &str) -> Result<ServerSpec, String> {
    let config: ServerSpec = toml::from_str(text).map_err(|error| error.to_string())?;
    for (name, volume) in &config.volumes {
        let paths = [("source", &volume.source), ("mountpoint", &volume.mountpoint)];
        let credentials = volume.credentials.as_ref().map(|path| ("credentials", path));
        for (key, path) in paths.into_iter().chain(credentials) {
            let is_complete = if key == "source" { name::is_complete } else { Path::is_absolute };
            if !is_complete(path) {
                return Err(format!("volumes.{name}.{key}: {} is not an absolute path", path.printable()));
            }
        }
    }
    Ok(config)
}

/// The volumes of a configuration, as mount requests.
pub(super) fn mounts(config: &ServerSpec) -> impl Iterator<Item = MountRequest> {
    config.volumes.iter().map(|(name, volume)| MountRequest {
        is_repeated: false,
        name: Some(name.to_string()),
        source: volume.source.clone(),
        mountpoint: volume.mountpoint.clone(),
        options: volume.options.clone(),
        credentials: volume.credentials.clone(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use slackwater_mount::tenants::{TenantBy, TenantConfig};

    use super::*;
    use slackwater_control::spec::values::{Follow, Rate, Size};
    use slackwater_testkit::damage::{cases, damaged};

    #[test]
    fn every_key_is_parsed() {
        let config = parse(
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
        assert_eq!((config.cache, config.dirty_ratio()), (Some(Size(2 << 30)), 10));
        assert_eq!((config.dirty_expire(), config.tenant_by()), (Duration::from_secs(5), TenantBy::Cgroup));
        assert_eq!(config.web.unwrap().to_string(), "127.0.0.1:9811");
        assert_eq!(config.web_token_file.as_deref(), Some(Path::new("/etc/slackwater.token")));
        let tenant = TenantConfig { limit_bytes: Some(64 << 20), dontcache: Some(true) };
        assert_eq!(config.tenants(), [("/containers/a".into(), tenant)].into());
        let mounts: Vec<_> = mounts(&config).collect();
        let [archive, web] = &mounts[..] else { panic!("{mounts:?}") };
        assert_eq!((web.name.as_deref(), web.options.noexec), (Some("web"), true));
        assert!(!web.options.nodev && web.source == Path::new("/srv/web"));
        let settings = (archive.options.follow, archive.options.upload_limit);
        assert_eq!(settings, (Some(Follow(Duration::from_secs(1))), Some(Rate(1 << 20))));
    }

    #[test]
    fn the_example_configuration_is_valid() {
        let example = include_str!("../../../../../dist/slackwater.toml");
        assert_eq!(parse(example).unwrap().cache, Some(Size(1 << 30)));
        // The commented-out part is valid too.
        let shown = example.replace("\n#", "\n");
        assert_eq!(mounts(&parse(&shown).unwrap()).count(), 2, "{shown}");
    }

    #[test]
    fn an_empty_configuration_is_valid() {
        let config = parse("").unwrap();
        assert_eq!((config.cache, config.dirty_ratio(), config.volumes.len()), (None, 20, 0));
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
            let error = parse(text).unwrap_err();
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
            match parse(&text) {
                Ok(config) => {
                    prop_assert!(mounts(&config).all(|mount| name::is_complete(&mount.source) && mount.mountpoint.is_absolute()));
                    drop(config.tenants());
                }
                Err(error) => prop_assert!(error.contains("line ") || error.contains("volumes."), "{error}"),
            }
        }
    }
}
