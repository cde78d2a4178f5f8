//! Options as in `/etc/fstab`: separated by commas, some with a value.

use slackwater_control::exit::Failure;
use slackwater_control::spec::fields::{self, Refused};
use slackwater_host::Printable as _;

use crate::arguments::MountArguments;

/// Options of `mount(8)`, `systemd` and the kernel's own file systems that change nothing here: the first ones are
/// meant for others, and the rest state what is so anyway. Access times are never kept: every mount is `noatime`.
const GENERIC: [&str; 21] = [
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "nouser",
    "silent",
    "loud",
    "async",
    "nomand",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "comment",
    "uhelper",
];

/// Such options that a cache cannot support.
const IMPOSSIBLE: [&str; 4] = ["sync", "dirsync", "strictatime", "mand"];

/// The arguments with the `-o` lists applied.
///
/// # Errors
/// An option is unknown or not possible.
pub(crate) fn with_option_lists(arguments: &MountArguments) -> Result<MountArguments, Failure> {
    let mut arguments = arguments.clone();
    for list in std::mem::take(&mut arguments.options) {
        if let Some(unknown) = apply(&mut arguments, &list)?.first() {
            return Err(
                Failure::usage(format!("unknown option {unknown}")).advise("slackwater mount --help lists them")
            );
        }
    }
    Ok(arguments)
}

/// Applies options to the arguments; a later one overrides an earlier one. Returns the unknown options.
///
/// # Errors
/// A value is invalid, or the option is not possible.
pub(crate) fn apply(arguments: &mut MountArguments, options: &str) -> Result<Vec<String>, Failure> {
    let mut unknown = Vec::new();
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let refused = |why: &dyn std::fmt::Display| Failure::usage(format!("option {}: {why}", option.printable()));
        let volume = &mut arguments.spec.volume;
        match (name.replace('_', "-").as_str(), value) {
            ("ro", None) => volume.read_only = true,
            ("rw", None) => volume.read_only = false,
            ("suid", None) => volume.nosuid = false,
            ("dev", None) => volume.nodev = false,
            ("exec", None) => volume.noexec = false,
            // `mount(8)`: these imply others, and may name the user who mounted.
            ("user" | "users", _) => (volume.nosuid, volume.nodev, volume.noexec) = (true, true, true),
            ("owner" | "group", _) => (volume.nosuid, volume.nodev) = (true, true),
            ("wait", None) => arguments.wait = true,
            ("keep", None) => arguments.keep = true,
            ("credentials", Some(path)) => arguments.credentials = Some(path.into()),
            ("credentials", None) => return Err(refused(&"it needs a value, as credentials=VALUE")),
            (key, Some(_)) if fields::is_switch(volume, key) => unknown.push(option.to_owned()),
            (key, value) => match arguments.spec.set(key, value) {
                Ok(()) => {}
                Err(Refused::Invalid(why)) => return Err(refused(&why)),
                Err(Refused::Unknown) if IMPOSSIBLE.contains(&name) => {
                    return Err(refused(&"a mount through a cache cannot support it").advise("mount without it"));
                }
                Err(Refused::Unknown)
                    if GENERIC.contains(&name) || name.starts_with("x-") || name.starts_with("X-") => {}
                Err(Refused::Unknown) => unknown.push(option.to_owned()),
            },
        }
    }
    Ok(unknown)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;
    use proptest::prelude::*;

    use super::apply;
    use slackwater_mount::tenants::{TenantBy, TenantConfig};

    use crate::arguments::{Arguments, Command, MountArguments};
    use slackwater_control::exit::Reason;
    use slackwater_control::spec::MountSpec;
    use slackwater_control::spec::values::{Follow, Rate, Size};
    use slackwater_testkit::damage::{cases, damaged};

    fn arguments() -> MountArguments {
        let Command::Mount(arguments) = Arguments::parse_from(["slackwater", "mount", "/a", "/b"]).command else {
            panic!("the line says mount")
        };
        *arguments
    }

    #[test]
    fn options_of_fstab_are_those_of_the_command_line() {
        let mut arguments = arguments();
        let options = "defaults,ro,cache=1GiB,dirty_ratio=7,dirty-expire=5s,arena=/dev/shm/x,x-systemd.automount,_netdev,metrics=9810";
        assert!(apply(&mut arguments, options).unwrap().is_empty());
        let MountSpec { server, volume } = arguments.spec;
        assert_eq!(server.metrics.unwrap().to_string(), "127.0.0.1:9810");
        assert!(volume.read_only && !volume.allow_other);
        assert_eq!((server.cache, server.dirty_ratio), (Some(Size(1 << 30)), Some(7)));
        assert_eq!(volume.dirty_expire(), Duration::from_secs(5));
        assert_eq!(server.arena.unwrap(), std::path::Path::new("/dev/shm/x"));
    }

    #[test]
    fn tenants_and_their_limits_are_options_too() {
        let mut arguments = arguments();
        let options = "tenant-by=cgroup,tenant-limit=/a=64MiB,tenant_limit=/b/c=1GiB,dontcache,tenant-dontcache=/a=off";
        assert!(apply(&mut arguments, options).unwrap().is_empty());
        let MountSpec { server, volume } = arguments.spec;
        assert_eq!(server.tenant_by(), TenantBy::Cgroup);
        let first = TenantConfig { limit_bytes: Some(64 << 20), dontcache: Some(false) };
        assert_eq!(server.tenants(), [("/a".into(), first), ("/b/c".into(), TenantConfig::limit(1 << 30))].into());
        assert!(volume.dontcache);
    }

    #[test]
    fn settings_of_object_volumes_are_options_too() {
        let mut arguments = arguments();
        assert!(apply(&mut arguments, "ro,follow=1s,take_over,upload-limit=1MiB").unwrap().is_empty());
        let options = arguments.spec.volume.clone();
        assert_eq!(options.follow, Some(Follow(Duration::from_secs(1))));
        assert_eq!(options.upload_limit, Some(Rate(1 << 20)));
        assert!(options.read_only && options.take_over);
        for options in ["follow", "follow=5", "upload-limit=1"] {
            assert!(apply(&mut arguments, options).unwrap_err().what.contains(options), "{options}");
        }
    }

    #[test]
    fn unknown_options_come_back_and_bad_values_are_refused() {
        assert_eq!(apply(&mut arguments(), "cach=1GiB,,ro=1").unwrap(), ["cach=1GiB", "ro=1"]);
        let tenants = ["tenant-by", "tenant-by=group", "tenant-limit", "tenant-limit=64MiB", "tenant-limit=/a=lots"];
        let dontcache = ["tenant-dontcache", "tenant-dontcache=on", "tenant-dontcache=/a=1"];
        let others =
            ["metrics", "metrics=x", "cache", "cache=lots", "dirty-ratio=0", "dirty-ratio=101", "dirty-expire=3"];
        for options in tenants.into_iter().chain(dontcache).chain(others) {
            assert!(apply(&mut arguments(), options).unwrap_err().what.contains(options), "{options}");
        }
    }

    #[test]
    fn later_options_override_earlier_and_implied_ones() {
        for (options, expected) in [
            ("nosuid,nodev,noexec", [true, true, true]),
            ("defaults,noexec", [false, false, true]),
            ("noexec,exec,nosuid,suid,nodev,dev", [false, false, false]),
            ("user", [true, true, true]),
            ("rw,users,exec", [true, true, false]),
            ("user=somebody,dev", [true, false, true]),
            ("owner", [true, true, false]),
            ("group", [true, true, false]),
        ] {
            let mut arguments = arguments();
            assert!(apply(&mut arguments, options).unwrap().is_empty(), "{options}");
            let volume = arguments.spec.volume;
            assert_eq!([volume.nosuid, volume.nodev, volume.noexec], expected, "{options}");
        }
        let mut arguments = arguments();
        apply(&mut arguments, "rw,ro").unwrap();
        assert!(arguments.spec.volume.read_only);
    }

    #[test]
    fn impossible_options_are_refused_and_generic_ones_accepted() {
        for options in ["sync", "defaults,dirsync", "strictatime", "mand"] {
            assert!(apply(&mut arguments(), options).unwrap_err().what.contains("cannot"), "{options}");
        }
        let harmless =
            "defaults,rw,auto,noauto,nofail,_netdev,async,noatime,relatime,x-systemd.automount,comment=hello";
        let before = arguments();
        let mut after = before.clone();
        assert!(apply(&mut after, harmless).unwrap().is_empty());
        assert_eq!(format!("{before:?}"), format!("{after:?}"));
    }

    proptest! {
        #![proptest_config(cases())]

        #[test]
        fn damaged_options_are_applied_or_refused_by_name(list in damaged(vec![
            b"ro,noexec,cache=1GiB,tenant-by=uid,tenant-limit=/a=64MiB,tenant-dontcache=/b=1,x-systemd.automount,nobody=0".to_vec(),
            b"dirty-expire=5s,dirty_ratio=10,metrics=127.0.0.1:9810,arena=/dev/shm/a,users,dontcache,allow_other,wait".to_vec(),
        ])) {
            let list = String::from_utf8_lossy(&list);
            match apply(&mut arguments(), &list) {
                Ok(unknown) => prop_assert!(unknown.iter().all(|option| list.contains(option.as_str()))),
                Err(failure) => {
                    prop_assert_eq!(failure.reason, Reason::Usage);
                    prop_assert!(failure.what.starts_with("option "), "{}", failure);
                }
            }
        }
    }
}
