//! `mount.slackwater`, the helper that `mount(8)` calls, also for `/etc/fstab`: `mount.slackwater SOURCE DIR [-sfnv]
//! [-o OPTIONS]`. For the type `fuse.slackwater`, which the mount table shows, its name is `mount.fuse.slackwater`.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use clap::Parser;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};
use slackwater_fuse::Printable as _;

use crate::arguments::{Arguments, Command, MountArguments};
use crate::commands::mount::{background, options};
use crate::exit::{Failure, Reason};
use crate::os::mount_table::{is_slackwater, mount_at};
use crate::output::terminal::errln;

/// The usual name of the helper.
const NAME: &str = "mount.slackwater";

/// Whether a program of this name acts as the helper.
pub(crate) fn is_named(program: &OsStr) -> bool {
    [NAME, "mount.fuse.slackwater"].iter().any(|name| program == *name)
}

/// The exit status that `mount(8)` documents.
const STATUS_USAGE: u8 = 1;
const STATUS_MOUNT_FAILED: u8 = 32;

const USAGE: &str = "usage: mount.slackwater SOURCE MOUNTPOINT [-sfnv] [-o OPTIONS]";

/// The request of `mount(8)`.
struct Call {
    arguments: MountArguments,
    /// Check everything, but mount nothing.
    fake: bool,
    /// Print the announcement. Otherwise only errors are printed, because the caller has its own output.
    verbose: bool,
    /// Change the options that the kernel enforces, without touching the mount process.
    is_remount: bool,
}

/// `mount -o remount`: changes read-only, nosuid, nodev and noexec. All other options stay as they are.
fn remount(arguments: &MountArguments) -> Result<(), Failure> {
    let MountArguments { mountpoint, read_only, nosuid, nodev, noexec, .. } = arguments;
    let mut flags = MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, *read_only);
    flags.set(MountFlags::NOSUID, *nosuid);
    flags.set(MountFlags::NODEV, *nodev);
    flags.set(MountFlags::NOEXEC, *noexec);
    if !mount_at(mountpoint).is_some_and(|mount| is_slackwater(&mount)) {
        return Err(Failure::usage(format!("{} is not a slackwater mount", mountpoint.printable())));
    }
    mount_remount(mountpoint, flags, c"").map_err(|errno| {
        let busy = if errno == Errno::BUSY { "; a file is open for writing" } else { "" };
        Failure::failed(format!("cannot remount {}: {errno}{busy}", mountpoint.printable()))
    })
}

/// Mounts in the background.
pub(crate) fn run(words: impl Iterator<Item = OsString>) -> ExitCode {
    let outcome = parse_call(words).and_then(|asked| match (asked.fake, asked.is_remount) {
        (true, _) => Ok(ExitCode::SUCCESS),
        (false, true) => remount(&asked.arguments).map(|()| ExitCode::SUCCESS),
        (false, false) => background::start(&asked.arguments, asked.verbose),
    });
    match outcome {
        Ok(code) if code == ExitCode::SUCCESS => code,
        Ok(_) => ExitCode::from(STATUS_MOUNT_FAILED),
        Err(failure) => {
            errln!("{NAME}: {failure}");
            ExitCode::from(if failure.reason == Reason::Usage { STATUS_USAGE } else { STATUS_MOUNT_FAILED })
        }
    }
}

fn parse_call(mut words: impl Iterator<Item = OsString>) -> Result<Call, Failure> {
    let mut places = Vec::new();
    let (mut fake, mut sloppy, mut verbose, mut option_lists) = (false, false, false, Vec::new());
    while let Some(word) = words.next() {
        let missing = || Failure::usage(format!("{} needs a value", word.printable())).advise(USAGE);
        match word.to_str() {
            Some("-o") => option_lists.push(words.next().ok_or_else(missing)?),
            // A mount namespace, and a type with a subtype: mount(8) has already handled them.
            Some("-N" | "-t") => drop(words.next().ok_or_else(missing)?),
            Some(flags) if flags.len() > 1 && flags.starts_with('-') => {
                for flag in flags[1..].chars() {
                    match flag {
                        's' => sloppy = true,
                        'f' => fake = true,
                        'r' => option_lists.push("ro".into()),
                        'v' => verbose = true,
                        'n' | 'w' => {}
                        _ => {
                            return Err(
                                Failure::usage(format!("unknown option -{}", flag.escape_default())).advise(USAGE)
                            );
                        }
                    }
                }
            }
            _ => places.push(word),
        }
    }
    let [source, mountpoint] = &places[..] else {
        return Err(Failure::usage("two directories are needed").advise(USAGE));
    };
    let line =
        ["slackwater".into(), "mount".into(), "--background".into(), "--".into(), source.clone(), mountpoint.clone()];
    // For example a directory with an empty name.
    let parsed = Arguments::try_parse_from(line).map_err(|error| {
        let text = error.to_string();
        let what = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        Failure::usage(what).advise(USAGE)
    })?;
    let Command::Mount(arguments) = parsed.command else { unreachable!("the line says mount") };
    let mut arguments = *arguments;
    let mut is_remount = false;
    for list in option_lists {
        let list = list.to_str().ok_or_else(|| Failure::usage("options must be UTF-8"))?;
        let mut unknown = options::apply(&mut arguments, list)?;
        is_remount |= unknown.iter().any(|option| option == "remount");
        // A remount passes the kernel's own options back.
        unknown.retain(|option| option != "remount" && !is_of_the_kernel(option));
        if let (Some(unknown), false) = (unknown.first(), sloppy) {
            return Err(Failure::usage(format!("unknown option {}", unknown.printable()))
                .advise("slackwater mount --help lists them; with -s unknown options are ignored"));
        }
    }
    Ok(Call { arguments, fake, verbose, is_remount })
}

/// Options that /proc/mounts shows for FUSE and that the command ignores.
fn is_of_the_kernel(option: &str) -> bool {
    let name = option.split('=').next().unwrap_or(option);
    ["fd", "rootmode", "user_id", "group_id", "default_permissions", "blksize", "max_read"].contains(&name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::damage::{cases, damaged};

    fn parse(line: &str) -> Result<Call, Failure> {
        parse_call(line.split(' ').map(OsString::from))
    }

    #[test]
    fn the_helper_has_a_name_for_each_type() {
        let named = ["mount.slackwater", "mount.fuse.slackwater", "slackwater", "mount.fuse"];
        assert_eq!(named.map(|name| is_named(OsStr::new(name))), [true, true, false, false]);
    }

    #[test]
    fn lines_of_mount8_are_parsed() {
        let asked =
            parse("/a /b -n -o rw,noexec,cache=1GiB,_netdev,gobbledygook -sv -t fuse.slackwater -o ro").unwrap();
        assert!(asked.arguments.background && asked.arguments.read_only && !asked.fake && asked.verbose);
        assert_eq!(asked.arguments.cache, Some(1 << 30));
        assert_eq!(asked.arguments.source, std::path::Path::new("/a"));
        assert!(parse("/a /b -f").unwrap().fake);
    }

    #[test]
    fn other_lines_are_refused() {
        for line in ["/a", "/a /b /c", "/a /b -x", "/a /b -o", "/a /b -o cache=much", "/a /b -o cach=1GiB"] {
            assert_eq!(parse(line).map(drop).unwrap_err().reason, Reason::Usage, "{line}");
        }
    }

    proptest! {
        #![proptest_config(cases())]

        #[test]
        fn any_words_are_parsed_or_refused(words in prop::collection::vec(prop_oneof![
            select(vec!["", "-", "--", "-o", "-t", "-N", "-sfnv", "-r", "-x", "--help", "-V", "/a", "/b", "ro", "-oro"])
                .prop_map(|word| word.as_bytes().to_vec()),
            damaged(vec![b"-o".to_vec(), b"/srv/a".to_vec(), b"ro,cache=1GiB".to_vec(), b"-sv".to_vec()]),
        ], 0..6)) {
            if let Err(failure) = parse_call(words.into_iter().map(OsString::from_vec)) {
                prop_assert_eq!(failure.reason, Reason::Usage);
                prop_assert!(!failure.what.is_empty());
            }
        }
    }
}
