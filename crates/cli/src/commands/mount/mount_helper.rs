//! `mount.slackwater`, the helper that `mount(8)` calls, also for `/etc/fstab`: `mount.slackwater SOURCE DIR [-sfnv]
//! [-N NAMESPACE] [-o OPTIONS]`.
//!
//! `mount(8)` knows a mounted volume by the type in the kernel's list, so a remount without a line in fstab calls
//! `mount.fuse.slackwater`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use slackwater_control::exit::Failure;
use slackwater_control::mountpoint::name_of;
use slackwater_host::Printable as _;

use crate::arguments::{Arguments, Command, MountArguments};
use crate::commands::mount::remount::remount;
use crate::commands::mount::{background, options};
use crate::commands::mount_helpers::{self, STATUS_FAILED, Word};
use crate::os::{namespace, utab};

const NAME: &str = "mount.slackwater";

/// The names that make the command act as the helper.
pub(crate) const NAMES: [&str; 2] = [NAME, "mount.fuse.slackwater"];

const USAGE: &str = "usage: mount.slackwater SOURCE MOUNTPOINT [-sfnv] [-o OPTIONS]";

/// The request of `mount(8)`.
struct Call {
    arguments: MountArguments,
    /// Check everything, but mount nothing.
    fake: bool,
    /// Print the announcement. Otherwise only errors are printed, because the caller has its own output.
    verbose: bool,
    /// Change the options of a mounted volume.
    is_remount: bool,
    /// The mount namespace of the mount.
    namespace: Option<PathBuf>,
    /// Options that only other programs read, for their list; `None` if the mount is to be in no list.
    of_programs: Option<Vec<String>>,
}

/// Mounts in the background.
pub(crate) fn run(words: impl Iterator<Item = OsString>) -> ExitCode {
    let outcome = parse_call(words).and_then(|asked| {
        asked.namespace.as_deref().map_or(Ok(()), namespace::enter)?;
        match (asked.fake, asked.is_remount) {
            (true, _) => Ok(ExitCode::SUCCESS),
            (false, true) => remount(&asked.arguments).map(|()| ExitCode::SUCCESS),
            (false, false) => mount(&asked),
        }
    });
    match outcome {
        Ok(code) if code == ExitCode::SUCCESS => code,
        Ok(_) => ExitCode::from(STATUS_FAILED),
        Err(failure) => mount_helpers::report(NAME, &failure),
    }
}

fn mount(asked: &Call) -> Result<ExitCode, Failure> {
    let status = background::start(&asked.arguments, asked.verbose)?;
    if status == ExitCode::SUCCESS
        && let Some(of_programs) = &asked.of_programs
        && let Ok(mountpoint) = name_of(&asked.arguments.mountpoint)
    {
        // Without the record, umount(8) returns before everything is written back.
        let _ = utab::record(&mountpoint, of_programs);
    }
    Ok(status)
}

fn parse_call(words: impl Iterator<Item = OsString>) -> Result<Call, Failure> {
    let (mut places, mut namespace, mut is_listed) = (Vec::new(), None, true);
    let (mut fake, mut sloppy, mut verbose, mut option_lists) = (false, false, false, Vec::new());
    mount_helpers::parse(words, USAGE, &['o', 'N', 't'], |word| {
        match word {
            Word::Flag('s') => sloppy = true,
            Word::Flag('f') => fake = true,
            Word::Flag('r') => option_lists.push("ro".into()),
            Word::Flag('v') => verbose = true,
            Word::Flag('n') => is_listed = false,
            // The latter is a type with a subtype.
            Word::Flag('w') | Word::Value('t', _) => {}
            Word::Flag(_) => return false,
            Word::Value('o', list) => option_lists.push(list),
            Word::Value(_, link) => namespace = Some(PathBuf::from(link)),
            Word::Place(place) => places.push(place),
        }
        true
    })?;
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
    let (mut is_remount, mut of_programs) = (false, Vec::new());
    for list in option_lists {
        let list = list.to_str().ok_or_else(|| Failure::usage("options must be UTF-8"))?;
        let mut unknown = options::apply(&mut arguments, list)?;
        of_programs.extend(list.split(',').filter(|option| utab::is_of_programs(option)).map(str::to_owned));
        is_remount |= unknown.iter().any(|option| option == "remount");
        // A remount passes the kernel's own options back.
        unknown.retain(|option| option != "remount" && !is_of_the_kernel(option));
        if let (Some(unknown), false) = (unknown.first(), sloppy) {
            return Err(Failure::usage(format!("unknown option {}", unknown.printable()))
                .advise("slackwater mount --help lists them; with -s unknown options are ignored"));
        }
    }
    let of_programs = is_listed.then_some(of_programs);
    Ok(Call { arguments, fake, verbose, is_remount, namespace, of_programs })
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
    use slackwater_control::exit::Reason;
    use slackwater_control::spec::values::Size;
    use slackwater_testkit::damage::{cases, damaged};

    fn parse(line: &str) -> Result<Call, Failure> {
        parse_call(line.split(' ').map(OsString::from))
    }

    #[test]
    fn lines_of_mount8_are_parsed() {
        let asked =
            parse("/a /b -n -o rw,noexec,cache=1GiB,_netdev,gobbledygook -sv -t fuse.slackwater -o ro").unwrap();
        assert!(asked.arguments.background && asked.arguments.spec.volume.read_only && !asked.fake && asked.verbose);
        assert_eq!(asked.arguments.spec.server.cache, Some(Size(1 << 30)));
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
