//! A mount namespace for one thread, and memory in huge pages.
#![allow(unsafe_code, reason = "a thread leaves what it shares with others, and madvise takes an address")]

use std::thread;

use anyhow::{Context, Result};
use rustix::mm::{Advice, madvise};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::harness::threads::join;

/// Does `work` on a new thread with a mount namespace of its own. Threads that it starts share the namespace; no other
/// process sees what they mount, and it is unmounted when they end.
///
/// # Errors
/// That of `work`, or the process is not root.
pub(crate) fn in_own_mounts<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        join(scope.spawn(|| {
            // SAFETY: only mounts, root and working directory are left; descriptors stay shared.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.context("cannot create a mount namespace")?;
            let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            mount_change("/", flags).context("cannot make the mounts private")?;
            #[cfg(test)]
            detach_copies()?;
            work()
        }))
    })
}

/// Removes the copies of volumes that other tests have mounted: they would keep these in use.
#[cfg(test)]
fn detach_copies() -> Result<()> {
    let mounts = std::fs::read("/proc/thread-self/mountinfo").context("cannot read the mounts")?;
    for copy in slackwater_host::MountInfo::all(&mounts).filter(|mount| mount.kind == "fuse.slackwater") {
        let _ = rustix::mount::unmount(&copy.point, rustix::mount::UnmountFlags::DETACH); // it may be gone, with its directory
    }
    Ok(())
}

/// Memory that has been written, in huge pages where the kernel has them.
pub(crate) fn huge_buffer(bytes: usize) -> Vec<u8> {
    // On x86-64, and on arm64 with pages of 4 KiB.
    const HUGE_BYTES: usize = 2 << 20;
    let mut buffer = vec![0; bytes];
    let skipped = buffer.as_ptr().align_offset(HUGE_BYTES).min(bytes);
    let whole = (bytes - skipped) / HUGE_BYTES * HUGE_BYTES;
    let start = buffer[skipped..].as_mut_ptr().cast();
    // SAFETY: the range is inside the buffer, and the advice leaves the bytes as they are.
    let _ = unsafe { madvise(start, whole, Advice::LinuxHugepage) };
    buffer.fill(1); // to the kernel, untouched memory is one page of zeroes
    buffer
}
