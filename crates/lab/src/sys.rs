//! A mount namespace for one thread.
#![allow(unsafe_code, reason = "a thread leaves what it shares with others")]

use anyhow::{Context, Result};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// What this thread mounts from now on, and those that it starts, nobody else sees, and it goes when they end.
///
/// # Errors
/// Only root may do this.
pub(crate) fn enter_own_mounts() -> Result<()> {
    // SAFETY: only mounts, root and working directory are left; descriptors stay shared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.context("cannot make a mount namespace")?;
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", flags).context("cannot make the mounts private")
}
