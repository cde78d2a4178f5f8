//! The common parts of the helpers of mount(8) and umount(8): the words of their lines, and their exit statuses.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use slackwater_control::errln;
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::os::mount_table::{is_slackwater, mount_at};
use slackwater_host::MountInfo;
use slackwater_host::Printable as _;

/// The exit statuses that mount(8) and umount(8) document.
const STATUS_USAGE: u8 = 1;
pub(super) const STATUS_FAILED: u8 = 32;

/// A part of a line.
pub(super) enum Word {
    /// A letter of a word such as `-nv`.
    Flag(char),
    /// A letter with the word after it.
    Value(char, OsString),
    /// A word that is no option, such as a mount point.
    Place(OsString),
}

/// Gives all parts of a line to `see`, which says whether it knows the part. A word that is one of `valued` behind a
/// dash has a value.
///
/// # Errors
/// A flag is unknown, or a value is missing.
pub(super) fn parse(
    mut words: impl Iterator<Item = OsString>,
    usage: &str,
    valued: &[char],
    mut see: impl FnMut(Word) -> bool,
) -> Result<(), Failure> {
    while let Some(word) = words.next() {
        let flags: Vec<char> = match word.to_str().and_then(|text| text.strip_prefix('-')) {
            Some(flags) if !flags.is_empty() => flags.chars().collect(),
            _ => {
                see(Word::Place(word));
                continue;
            }
        };
        if let [flag] = flags[..]
            && valued.contains(&flag)
        {
            let value = words.next();
            let value = value.ok_or_else(|| Failure::usage(format!("-{flag} needs a value")).advise(usage))?;
            see(Word::Value(flag, value));
            continue;
        }
        for flag in flags {
            if !see(Word::Flag(flag)) {
                return Err(Failure::usage(format!("unknown option -{}", flag.escape_default())).advise(usage));
            }
        }
    }
    Ok(())
}

/// Prints a failure of the helper `name`. Returns its exit status.
pub(super) fn report(name: &str, failure: &Failure) -> ExitCode {
    errln!("{name}: {failure}");
    ExitCode::from(if failure.reason == Reason::Usage { STATUS_USAGE } else { STATUS_FAILED })
}

/// The volume that is mounted at `mountpoint`.
///
/// # Errors
/// No volume is mounted there.
pub(super) fn slackwater_at(mountpoint: &Path) -> Result<MountInfo, Failure> {
    mount_at(mountpoint).filter(is_slackwater).ok_or_else(|| {
        Failure::new(Reason::NotMounted, format!("{} is not a slackwater mount", mountpoint.printable()))
    })
}
