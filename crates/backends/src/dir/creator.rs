//! Creation of nodes in the name of the user that asks for them, so that they belong to that user from their first moment.
//!
//! The calling thread acts as that user on file systems for one system call, and keeps its capabilities. So a directory that
//! only a supplementary group of the user may write to is open to it, as the kernel has found at the mount.
//!
//! # Invariants
//! U1. When [`OwnUser::act_as`] returns, also by a panic, the thread acts as before. A thread for which that fails would serve
//!     other users with the rights of this one: the process ends.
//! U2. The process can be dumped and traced as before. The kernel forbids both when a thread changes its user. A keeper
//!     without CAP_SYS_PTRACE must still see the calls of a dead process.
//!
//! # Kernel counterpart
//! `setfsuid(2)`, and `commit_creds` for U2.

use rustix::process::{DumpableBehavior, dumpable_behavior, getegid, geteuid, set_dumpable_behavior};
use rustix::thread::{capabilities, set_capabilities};
use slackwater::backend::Creator;
use slackwater_sync::shim::OnceLock;

use super::sys::{set_fs_group, set_fs_user};

/// No user and no group: asks for the present one.
const NONE: u32 = u32::MAX;

/// The process as it was when a volume was opened.
#[derive(Copy, Clone, Debug)]
pub(super) struct OwnUser {
    uid: u32,
    gid: u32,
    is_dumpable: bool,
}

impl OwnUser {
    pub(super) fn learn() -> Self {
        /// From before any thread changed its user.
        static DUMPABLE: OnceLock<bool> = OnceLock::new();
        let is_dumpable = || dumpable_behavior().is_ok_and(|behavior| behavior == DumpableBehavior::Dumpable);
        let is_dumpable = *DUMPABLE.get_or_init(is_dumpable);
        Self { uid: geteuid().as_raw(), gid: getegid().as_raw(), is_dumpable }
    }

    /// Runs `make` in the name of `creator`. `None` if the thread may not act as that user, or acts as it anyway.
    pub(super) fn act_as<T>(self, creator: Creator, make: impl FnOnce() -> T) -> Option<T> {
        if self.uid != 0 || (self.uid, self.gid) == (creator.uid, creator.gid) {
            return None;
        }
        let capabilities = capabilities(None).ok()?;
        let (gid, uid) = (set_fs_group(creator.gid), set_fs_user(creator.uid));
        let _acting = Acting(Self { uid, gid, ..self });
        let is_begun = (set_fs_user(NONE), set_fs_group(NONE)) == (creator.uid, creator.gid)
            // The change of the user took those for file systems away.
            && set_capabilities(None, capabilities).is_ok();
        is_begun.then(make)
    }
}

/// A thread that acts as another user, until this is dropped. It has the user before.
struct Acting(OwnUser);

impl Drop for Acting {
    fn drop(&mut self) {
        let before = self.0;
        set_fs_user(before.uid);
        set_fs_group(before.gid);
        if (set_fs_user(NONE), set_fs_group(NONE)) != (before.uid, before.gid) {
            std::process::abort(); // U1
        }
        if before.is_dumpable {
            let _ = set_dumpable_behavior(DumpableBehavior::Dumpable); // U2
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// The user and group as which this thread acts, and whether the process can be dumped.
    fn acting() -> (u32, u32, bool) {
        let is_dumpable = dumpable_behavior().expect("a process may ask") == DumpableBehavior::Dumpable;
        (set_fs_user(NONE), set_fs_group(NONE), is_dumpable)
    }

    #[test]
    fn a_thread_acts_as_itself_again_also_after_a_panic() {
        if !geteuid().is_root() {
            return println!("skipped: only root can act as another user");
        }
        let own = OwnUser::learn();
        let creator = Creator { uid: 12, gid: 34, umask: 0 };
        let before = (acting(), capabilities(None).expect("a thread may ask"));
        let during = own.act_as(creator, || (acting(), capabilities(None).expect("a thread may ask")));
        let ((uid, gid, _), capabilities_during) = during.expect("root may");
        assert_eq!(((uid, gid), capabilities_during), ((12, 34), before.1));
        let panicked = catch_unwind(AssertUnwindSafe(|| own.act_as(creator, || panic!("of a test"))));
        assert!(panicked.is_err());
        assert_eq!((acting(), capabilities(None).expect("a thread may ask")), before);
        let same = Creator { uid: before.0.0, gid: before.0.1, umask: 0 };
        assert_eq!(own.act_as(same, || ()), None, "nothing to change");
    }
}
