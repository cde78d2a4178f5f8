//! Options as in `/etc/fstab`: separated by commas, some with a value.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::ValueEnum as _;
use slackwater_host::Printable as _;
use slackwater_mount::tenants::TenantConfig;

use crate::arguments::MountArguments;
use crate::control::protocol::{Transport, VolumeOptions};
use crate::exit::Failure;
use crate::option_values::{
    parse_address, parse_duration, parse_follow, parse_tenant_dontcache, parse_tenant_limit, parse_upload_limit,
};

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

/// The options of the volume, without those of its process.
pub(crate) fn of_volume(arguments: &MountArguments) -> VolumeOptions {
    let MountArguments { read_only, allow_other, nosuid, nodev, noexec, dontcache, .. } = *arguments;
    let MountArguments { transport, take_over, follow, upload_limit, .. } = *arguments;
    VolumeOptions {
        read_only,
        allow_other,
        nosuid,
        nodev,
        noexec,
        dontcache,
        transport,
        take_over,
        follow,
        upload_limit_bytes_per_s: upload_limit,
    }
}

/// The settings of tenants. The last one for a tenant counts.
pub(crate) fn of_tenants(arguments: &MountArguments) -> BTreeMap<PathBuf, TenantConfig> {
    let mut tenants = BTreeMap::<_, TenantConfig>::new();
    for (tenant, bytes) in arguments.tenant_limit.iter().cloned() {
        tenants.entry(tenant).or_default().limit_bytes = Some(bytes);
    }
    for (tenant, dontcache) in arguments.tenant_dontcache.iter().cloned() {
        tenants.entry(tenant).or_default().dontcache = Some(dontcache);
    }
    tenants
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
        let needed = || value.ok_or_else(|| refused(&format!("it needs a value, as {name}=VALUE")));
        match name.replace('_', "-").as_str() {
            "ro" | "read-only" if value.is_none() => arguments.read_only = true,
            "allow-other" if value.is_none() => arguments.allow_other = true,
            "rw" if value.is_none() => arguments.read_only = false,
            "nosuid" | "suid" if value.is_none() => arguments.nosuid = name == "nosuid",
            "nodev" | "dev" if value.is_none() => arguments.nodev = name == "nodev",
            "noexec" | "exec" if value.is_none() => arguments.noexec = name == "noexec",
            // `mount(8)`: these imply others, and may name the user who mounted.
            "user" | "users" => (arguments.nosuid, arguments.nodev, arguments.noexec) = (true, true, true),
            "owner" | "group" => (arguments.nosuid, arguments.nodev) = (true, true),
            "wait" if value.is_none() => arguments.wait = true,
            "keep" if value.is_none() => arguments.keep = true,
            "take-over" if value.is_none() => arguments.take_over = true,
            "transport" => {
                arguments.transport = Transport::from_str(needed()?, false).map_err(|error| refused(&error))?
            }
            "follow" => arguments.follow = Some(parse_follow(needed()?).map_err(|error| refused(&error))?),
            "upload-limit" => {
                arguments.upload_limit = Some(parse_upload_limit(needed()?).map_err(|error| refused(&error))?)
            }
            "credentials" => arguments.credentials = Some(PathBuf::from(needed()?)),
            "cache" => {
                arguments.cache = Some(slackwater_host::size::parse(needed()?).map_err(|error| refused(&error))?)
            }
            "tenant-by" => arguments.tenant_by = Some(needed()?.parse().map_err(|error| refused(&error))?),
            "tenant-limit" => {
                arguments.tenant_limit.push(parse_tenant_limit(needed()?).map_err(|error| refused(&error))?);
            }
            "dontcache" if value.is_none() => arguments.dontcache = true,
            "tenant-dontcache" => {
                arguments.tenant_dontcache.push(parse_tenant_dontcache(needed()?).map_err(|error| refused(&error))?);
            }
            "dirty-expire" => {
                arguments.dirty_expire = Some(parse_duration(needed()?).map_err(|error| refused(&error))?);
            }
            "dirty-ratio" => {
                let percent = needed()?.parse().ok().filter(|percent| (1..=100).contains(percent));
                arguments.dirty_ratio = Some(percent.ok_or_else(|| refused(&"write a percentage from 1 to 100"))?);
            }
            "metrics" => arguments.metrics = Some(parse_address(needed()?).map_err(|error| refused(&error))?),
            "arena" => arguments.arena = Some(PathBuf::from(needed()?)),
            _ if IMPOSSIBLE.contains(&name) => {
                return Err(refused(&"a mount through a cache cannot support it").advise("mount without it"));
            }
            _ if GENERIC.contains(&name) || name.starts_with("x-") || name.starts_with("X-") => {}
            _ => unknown.push(option.to_owned()),
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
    use crate::arguments::{Arguments, Command, MountArguments};
    use crate::damage::{cases, damaged};
    use crate::exit::Reason;
    use crate::volume::front_end::TenantBy;

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
        assert_eq!(arguments.metrics.unwrap().to_string(), "127.0.0.1:9810");
        assert!(arguments.read_only && !arguments.allow_other);
        assert_eq!((arguments.cache, arguments.dirty_ratio), (Some(1 << 30), Some(7)));
        assert_eq!(arguments.dirty_expire, Some(Duration::from_secs(5)));
        assert_eq!(arguments.arena.unwrap(), std::path::Path::new("/dev/shm/x"));
    }

    #[test]
    fn tenants_and_their_limits_are_options_too() {
        let mut arguments = arguments();
        let options = "tenant-by=cgroup,tenant-limit=/a=64MiB,tenant_limit=/b/c=1GiB,dontcache,tenant-dontcache=/a=off";
        assert!(apply(&mut arguments, options).unwrap().is_empty());
        assert_eq!(arguments.tenant_by, Some(TenantBy::Cgroup));
        assert_eq!(arguments.tenant_limit, [("/a".into(), 64 << 20), ("/b/c".into(), 1 << 30)]);
        assert!(arguments.dontcache && arguments.tenant_dontcache == [("/a".into(), false)]);
    }

    #[test]
    fn settings_of_object_volumes_are_options_too() {
        let mut arguments = arguments();
        assert!(apply(&mut arguments, "ro,follow=1s,take_over,upload-limit=1MiB").unwrap().is_empty());
        let options = super::of_volume(&arguments);
        assert_eq!(options.follow, Some(Duration::from_secs(1)));
        assert_eq!(options.upload_limit_bytes_per_s, Some(1 << 20));
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
            assert_eq!([arguments.nosuid, arguments.nodev, arguments.noexec], expected, "{options}");
        }
        let mut arguments = arguments();
        apply(&mut arguments, "rw,ro").unwrap();
        assert!(arguments.read_only);
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
