//! `umount.slackwater`, the helper that `umount(8)` calls: `umount.slackwater TARGET [-flnrv] [-N NAMESPACE] [-t TYPE]`.
//! It returns when everything is written back, as `umount` of a disk does.
//!
//! # Steps of an unmount by root
//! 1. Fail at once if the mount is in use.
//! 2. Write everything back while it stays mounted. A failure leaves it mounted.
//! 3. umount2(2) in the mount namespace of the caller, which need not be that of the mount process.
//! 4. If the volume ends with it, wait until the data that was written since step 2 is written back too.
//!
//! Other users cannot unmount by themselves: the process of the mount does it for them.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::geteuid;
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::mountpoint::name_of;
use slackwater_control::os::detach::detach;
use slackwater_control::os::mount_table::mount_at;
use slackwater_control::output::shell;
use slackwater_control::protocol::Request;
use slackwater_control::{errln, outln};
use slackwater_host::Printable as _;

use crate::arguments::DaemonSocket;
use crate::commands::long_requests::converse;
use crate::commands::mount::remount;
use crate::commands::mount_helpers::{self, Word, slackwater_at};
use crate::commands::target::Target;
use crate::commands::umount::free_mountpoint;
use crate::os::namespace;

const NAME: &str = "umount.slackwater";

/// The names that make the command act as the helper. `umount(8)` takes one from the type of the mount, or from the
/// option `uhelper`.
pub(crate) const NAMES: [&str; 2] = [NAME, "umount.fuse.slackwater"];

const USAGE: &str = "usage: umount.slackwater MOUNTPOINT [-flnrv] [-N NAMESPACE] [-t TYPE]";

/// A deadline longer than any flush, and still a time that the clock has.
const NO_DEADLINE_MS: u64 = 10 * 365 * 24 * 60 * 60 * 1000;
/// The deadline of `-f`: that of `slackwater umount --force` without `--deadline`.
const FORCE_WITHIN_MS: u64 = 60_000;

/// The request of `umount(8)`.
#[derive(Debug, Default)]
struct Call {
    target: PathBuf,
    /// `-f`: unmount even if the mount is in use.
    force: bool,
    /// `-l`: detach the mount at once.
    lazy: bool,
    /// `-r`: make the mount read-only if it is in use.
    or_read_only: bool,
    verbose: bool,
    /// The mount namespace of the mount.
    namespace: Option<PathBuf>,
}

/// Unmounts.
pub(crate) fn run(words: impl Iterator<Item = OsString>) -> ExitCode {
    match parse_call(words).and_then(|call| umount(&call)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => mount_helpers::report(NAME, &failure),
    }
}

fn parse_call(words: impl Iterator<Item = OsString>) -> Result<Call, Failure> {
    let (mut call, mut targets) = (Call::default(), Vec::new());
    mount_helpers::parse(words, USAGE, &['N', 't'], |word| {
        match word {
            Word::Flag('f') => call.force = true,
            Word::Flag('l') => call.lazy = true,
            Word::Flag('r') => call.or_read_only = true,
            Word::Flag('v') => call.verbose = true,
            // umount(8) has the list of mounts, and knows the type.
            Word::Flag('n') | Word::Value('t', _) => {}
            Word::Flag(_) => return false,
            Word::Value(_, namespace) => call.namespace = Some(namespace.into()),
            Word::Place(target) => targets.push(target),
        }
        true
    })?;
    let [target] = &targets[..] else { return Err(Failure::usage("one mount point is needed").advise(USAGE)) };
    call.target = target.into();
    Ok(call)
}

fn umount(call: &Call) -> Result<(), Failure> {
    call.namespace.as_deref().map_or(Ok(()), namespace::enter)?;
    let mountpoint = name_of(&call.target).unwrap_or_else(|_| call.target.clone());
    let mount = slackwater_at(&mountpoint)?;
    let target = match Target::find(&mountpoint, &DaemonSocket { socket: None }) {
        // Of another user: nothing can be asked, and the process writes everything back behind the unmount.
        Err(failure) if failure.reason == Reason::NotMounted && geteuid().is_root() => None,
        found => Some(found?),
    };
    let is_root = geteuid().is_root();
    match &target {
        Some(Target { found: Some(found), .. }) if !found.is_alive && !found.is_left_to_daemon() => {
            return Err(free_mountpoint(found));
        }
        _ if call.lazy => detach(&mountpoint).map_err(|error| refused(&mountpoint, &error))?,
        Some(target) if call.force => by_process(target, true)?,
        Some(target) if !is_root => by_process(target, false)?,
        target => match by_kernel(call, &mountpoint, target.as_ref())? {
            Outcome::Unmounted => {}
            Outcome::ReadOnly => return Ok(()),
        },
    }
    if call.verbose {
        outln!("{NAME}: {} ({}) unmounted", mountpoint.printable(), mount.source.printable());
    }
    Ok(())
}

enum Outcome {
    Unmounted,
    /// The mount is in use, and read-only now.
    ReadOnly,
}

/// The process of the mount unmounts it, and answers when everything is written back.
fn by_process(target: &Target, force: bool) -> Result<(), Failure> {
    let deadline_ms = if force { FORCE_WITHIN_MS } else { NO_DEADLINE_MS };
    match ask(target, &Request::Umount { deadline_ms, force, discard: false, park: false }) {
        Err(failure) if force && failure.reason == Reason::Left => {
            errln!("{NAME}: {failure}");
            Ok(())
        }
        outcome => without_conflicts(outcome),
    }
}

/// Unmounts by umount(2) in this process.
fn by_kernel(call: &Call, mountpoint: &Path, target: Option<&Target>) -> Result<Outcome, Failure> {
    let busy = || match (target, call.or_read_only) {
        (Some(target), true) => remount::make_read_only(target, mountpoint).map(|()| Outcome::ReadOnly),
        _ => Err(in_use(mountpoint)),
    };
    let flags = if call.force { UnmountFlags::FORCE } else { UnmountFlags::empty() };
    let unmount_with = |flags| unmount(mountpoint, flags | UnmountFlags::NOFOLLOW);
    // Step 1. The first such call only marks a mount that is not in use.
    let is_unmounted = match unmount_with(if call.force { flags } else { UnmountFlags::EXPIRE }) {
        Ok(()) => true,
        Err(Errno::BUSY) => return busy(),
        // The latter for the root directory of this process.
        Err(Errno::AGAIN | Errno::INVAL) => false,
        Err(errno) => return Err(refused(mountpoint, &errno.into())),
    };
    let device = mount_at(mountpoint).map(|mount| mount.device);
    if !is_unmounted {
        if let Some(target) = target {
            let advice = format!("{} is still mounted; umount -l detaches it at once", mountpoint.printable());
            ask(target, &Request::Sync).map_err(|failure| failure.advise(advice))?;
        }
        match unmount_with(flags) {
            Ok(()) => {}
            Err(Errno::BUSY) => return busy(),
            Err(errno) => return Err(refused(mountpoint, &errno.into())),
        }
    }
    // The same volume may be mounted there twice.
    let is_there = || device.is_some() && mount_at(mountpoint).map(|mount| mount.device) == device;
    match target.filter(|_| is_unmounted || !is_there()) {
        Some(target) => wait_for_end(target).map(|()| Outcome::Unmounted),
        None => Ok(Outcome::Unmounted),
    }
}

/// Step 4.
fn wait_for_end(target: &Target) -> Result<(), Failure> {
    let request = Request::Umount { deadline_ms: NO_DEADLINE_MS, force: false, discard: false, park: false };
    match ask(target, &request) {
        // It is mounted elsewhere, or has already ended.
        Err(failure) if matches!(failure.reason, Reason::Busy | Reason::NotMounted) => Ok(()),
        outcome => without_conflicts(outcome),
    }
}

/// Turns the report of conflicting versions into success: they are in the source, so the unmount has not failed.
fn without_conflicts(outcome: Result<(), Failure>) -> Result<(), Failure> {
    match outcome {
        Err(failure) if failure.reason == Reason::Rescued => {
            errln!("{NAME}: {failure}");
            Ok(())
        }
        outcome => outcome,
    }
}

fn ask(target: &Target, request: &Request) -> Result<(), Failure> {
    converse(target, request, "flushing", io::stderr().is_terminal())
}

fn in_use(mountpoint: &Path) -> Failure {
    let word = shell::word(mountpoint);
    Failure::busy(format!("{}: target is busy", mountpoint.printable()))
        .advise(format!("fuser -vm {word} lists the programs that use it"))
}

fn refused(mountpoint: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!("cannot unmount {}: {error}", mountpoint.printable()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Call, Failure> {
        parse_call(line.split(' ').map(OsString::from))
    }

    #[test]
    fn lines_of_umount8_are_parsed() {
        let call = parse("/b -n -f -v -r -t fuse.slackwater -N /proc/7/fd/4").unwrap();
        assert!(call.force && call.verbose && call.or_read_only && !call.lazy);
        assert_eq!((call.target, call.namespace), ("/b".into(), Some("/proc/7/fd/4".into())));
        assert!(parse("-ln /b").unwrap().lazy);
    }

    #[test]
    fn other_lines_are_refused() {
        for line in ["-l", "/a /b", "/a -x", "/a -N", "/a -t"] {
            assert_eq!(parse(line).map(drop).unwrap_err().reason, Reason::Usage, "{line}");
        }
    }
}
