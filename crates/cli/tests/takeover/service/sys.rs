//! Starting a program with descriptors at given numbers, for which there is no safe call.
#![allow(unsafe_code, reason = "dup2 in the child")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The first number that a service supervisor passes.
const FIRST: i32 = 3;
/// A number above all descriptors of a test.
const ABOVE: i32 = 4096;

/// Gives the program of `command` these descriptors, from number 3 on.
pub(super) fn pass(command: &mut Command, descriptors: Vec<OwnedFd>) {
    let place = move || {
        // Away first: one may have the number at which another belongs.
        for (number, descriptor) in (ABOVE..).zip(&descriptors) {
            // SAFETY: the child has no other threads, and nothing owns that number.
            let result = unsafe { libc::dup2(descriptor.as_raw_fd(), number) };
            if result < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        for nth in 0..i32::try_from(descriptors.len()).unwrap_or_default() {
            // SAFETY: as above; what has that number in the child is a duplicate.
            let result = unsafe { libc::dup2(ABOVE + nth, FIRST + nth) };
            // SAFETY: it was made above.
            unsafe { libc::close(ABOVE + nth) };
            if result < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure calls nothing but dup2 and close.
    unsafe { command.pre_exec(place) };
}
