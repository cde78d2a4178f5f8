//! Options as in `/etc/fstab`: words between commas, some with a value.

use std::path::PathBuf;

use crate::arguments::MountArguments;
use crate::exit::Failure;
use crate::quantity::{parse_bytes, parse_duration};

/// What `mount(8)`, `systemd` and the kernel's own file systems know, and what changes nothing here.
const GENERIC: [&str; 31] = [
    "defaults",
    "rw",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "exec",
    "noexec",
    "suid",
    "dev",
    "sync",
    "async",
    "dirsync",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "silent",
    "loud",
    "mand",
];

/// Applies options to what the command line says. Those that nobody knows come back.
///
/// # Errors
/// A value that cannot be read.
pub(crate) fn apply(arguments: &mut MountArguments, options: &str) -> Result<Vec<String>, Failure> {
    let mut unknown = Vec::new();
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let refused = |why: &dyn std::fmt::Display| Failure::usage(format!("option {option}: {why}"));
        let needed = || value.ok_or_else(|| refused(&format!("write {name}=VALUE")));
        match name.replace('_', "-").as_str() {
            "ro" | "read-only" if value.is_none() => arguments.read_only = true,
            "allow-other" if value.is_none() => arguments.allow_other = true,
            "nosuid" => arguments.nosuid = true,
            "nodev" => arguments.nodev = true,
            "wait" if value.is_none() => arguments.wait = true,
            "cache" => arguments.cache = Some(parse_bytes(needed()?).map_err(|error| refused(&error))?),
            "dirty-expire" => arguments.dirty_expire = parse_duration(needed()?).map_err(|error| refused(&error))?,
            "dirty-ratio" => {
                let percent = needed()?.parse().ok().filter(|percent| (1..=100).contains(percent));
                arguments.dirty_ratio = percent.ok_or_else(|| refused(&"write a percentage from 1 to 100"))?;
            }
            "arena" => arguments.arena = Some(PathBuf::from(needed()?)),
            _ if GENERIC.contains(&name) || name.starts_with("x-") || name == "comment" => {}
            _ => unknown.push(option.to_owned()),
        }
    }
    Ok(unknown)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::apply;
    use crate::arguments::{Arguments, Command, MountArguments};

    fn arguments() -> MountArguments {
        let Command::Mount(arguments) = Arguments::parse_from(["slackwater", "mount", "/a", "/b"]).command else {
            panic!("the line says mount")
        };
        *arguments
    }

    #[test]
    fn options_of_fstab_are_those_of_the_command_line() {
        let mut arguments = arguments();
        let options =
            "defaults,ro,cache=1GiB,dirty_ratio=7,dirty-expire=5s,arena=/dev/shm/x,x-systemd.automount,_netdev";
        assert!(apply(&mut arguments, options).unwrap().is_empty());
        assert!(arguments.read_only && !arguments.allow_other);
        assert_eq!((arguments.cache, arguments.dirty_ratio), (Some(1 << 30), 7));
        assert_eq!(arguments.dirty_expire, Duration::from_secs(5));
        assert_eq!(arguments.arena.unwrap(), std::path::Path::new("/dev/shm/x"));
    }

    #[test]
    fn unknown_options_come_back_and_bad_values_are_refused() {
        assert_eq!(apply(&mut arguments(), "cach=1GiB,,ro=1").unwrap(), ["cach=1GiB", "ro=1"]);
        for options in ["cache", "cache=lots", "dirty-ratio=0", "dirty-ratio=101", "dirty-expire=3"] {
            assert!(apply(&mut arguments(), options).unwrap_err().what.contains(options), "{options}");
        }
    }
}
