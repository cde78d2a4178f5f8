//! The set-user-id program that mounts for users other than root.
//!
//! It opens the device, mounts, and sends the descriptor back over a socket whose number is in `_FUSE_COMMFD`. The
//! socket is its standard input, which it does not use otherwise.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};

use super::{MountError, MountOptions, UnmountError};

pub(super) const PROGRAM: &str = "fusermount3";

pub(super) fn mount(program: &str, mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(MountError::Kernel)?;
    let mut command = Command::new(program);
    command.arg("-o").arg(option_words(options)).arg("--").arg(mountpoint);
    command.env("_FUSE_COMMFD", "0").stdin(Stdio::from(theirs));
    let output = run(command).map_err(|error| if error { MountError::NoFusermount } else { fusermount_lost() })?;
    if !output.status.success() {
        return Err(refusal(complaint(&output)));
    }
    receive_fd(ours.as_fd()).map_err(MountError::Kernel)?.ok_or_else(fusermount_lost)
}

pub(super) fn unmount(program: &str, mountpoint: &Path, is_lazy: bool) -> Result<(), UnmountError> {
    let mut command = Command::new(program);
    command.arg("-u").args(is_lazy.then_some("-z")).arg("--").arg(mountpoint).stdin(Stdio::null());
    let lost = || UnmountError::Fusermount("the program could not be run".to_owned());
    let output = run(command).map_err(|error| if error { UnmountError::NoFusermount } else { lost() })?;
    if output.status.success() {
        return Ok(());
    }
    let complaint = complaint(&output);
    let path = mountpoint.to_owned();
    Err(if complaint.contains("busy") {
        UnmountError::Busy(path)
    } else if complaint.contains("not found in") || complaint.contains("Invalid argument") {
        UnmountError::NotMounted(path)
    } else {
        UnmountError::Fusermount(complaint)
    })
}

/// Translates its error message.
fn refusal(complaint: String) -> MountError {
    match complaint.as_str() {
        text if text.contains("device not found") => MountError::NoDevice,
        "failed to open /dev/fuse: Permission denied" => MountError::NoPermission("open /dev/fuse"),
        text if text.ends_with("Operation not permitted") => MountError::NoPermission("mount"),
        _ => MountError::Fusermount(complaint),
    }
}

fn fusermount_lost() -> MountError {
    MountError::Fusermount("the program sent no descriptor".to_owned())
}

/// Runs the program to its end. The error is true if there is no such program.
fn run(mut command: Command) -> Result<Output, bool> {
    // The messages are parsed, so they must be in English.
    command.env("LC_ALL", "C").stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn();
    // The command holds one end of the socket, which would delay the end of the stream.
    drop(command);
    let child = child.map_err(|error| error.kind() == std::io::ErrorKind::NotFound)?;
    child.wait_with_output().map_err(|_| false)
}

fn complaint(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let text = text.trim().trim_start_matches("fusermount3: ");
    if text.is_empty() { output.status.to_string() } else { text.to_owned() }
}

fn option_words(options: &MountOptions) -> String {
    let escape = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
    let mut words = format!("fsname={},subtype={},noatime", escape(&options.source), escape(&options.subtype));
    for (is_on, word) in [
        (options.default_permissions, ",default_permissions"),
        (options.allow_other, ",allow_other"),
        (options.read_only, ",ro"),
        // It sets the first two itself, and rejects their opposites.
        (options.nosuid, ",nosuid"),
        (options.nodev, ",nodev"),
        (options.noexec, ",noexec"),
    ] {
        words += if is_on { word } else { "" };
    }
    options.max_read.map_or(words.clone(), |max_read| format!("{words},max_read={max_read}"))
}

/// Receives the descriptor over `socket`; `None` if the other end is closed.
fn receive_fd(socket: std::os::fd::BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    let mut messages = control.drain();
    Ok(messages.find_map(|message| {
        let RecvAncillaryMessage::ScmRights(mut fds) = message else { return None };
        fds.next()
    }))
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    #[test]
    fn a_missing_program_is_distinguished_from_one_that_fails() {
        let options = MountOptions::default();
        let missing = mount("no such fusermount3", Path::new("/"), &options);
        assert!(matches!(missing, Err(MountError::NoFusermount)), "{missing:?}");
        let refused = mount("false", Path::new("/"), &options);
        assert!(matches!(&refused, Err(MountError::Fusermount(why)) if why.contains('1')), "{refused:?}");
        let silent = mount("true", Path::new("/"), &options);
        assert!(matches!(&silent, Err(MountError::Fusermount(why)) if why.contains("no descriptor")), "{silent:?}");
        assert!(matches!(unmount("no such", Path::new("/"), true), Err(UnmountError::NoFusermount)));
        assert!(matches!(unmount("false", Path::new("/"), true), Err(UnmountError::Fusermount(_))));
    }

    #[test]
    fn its_error_messages_are_translated() {
        let refusal = |text: &str| refusal(text.to_owned());
        assert!(matches!(refusal("fuse device not found, try 'modprobe fuse' first"), MountError::NoDevice));
        let denied = refusal("failed to open /dev/fuse: Permission denied");
        assert!(matches!(denied, MountError::NoPermission("open /dev/fuse")));
        assert!(matches!(refusal("mount failed: Operation not permitted"), MountError::NoPermission("mount")));
        let other = refusal("user has no write access to mountpoint /");
        assert!(matches!(other, MountError::Fusermount(_)));
    }

    #[test]
    fn a_descriptor_is_received_over_the_socket() {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let fds = [file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&theirs, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
        assert!(receive_fd(ours.as_fd()).unwrap().is_some());
        drop(theirs);
        assert!(receive_fd(ours.as_fd()).unwrap().is_none(), "the other end is closed");
    }

    #[test]
    fn commas_in_the_source_are_escaped() {
        let options = MountOptions {
            noexec: true,
            source: "slackwater#/a,b\\c".to_owned(),
            subtype: "slackwater".to_owned(),
            allow_other: false,
            max_read: Some(131_072),
            ..MountOptions::default()
        };
        let words = option_words(&options);
        assert_eq!(
            words,
            "fsname=slackwater#/a\\,b\\\\c,subtype=slackwater,noatime,default_permissions,noexec,max_read=131072"
        );
    }
}
