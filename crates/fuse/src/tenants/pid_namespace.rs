//! Whether thread ids in requests can be looked up at all.
//!
//! The kernel translates the id of a caller to the pid namespace that the mount was made in, and to 0 where the caller
//! is not in it. In the initial namespace everybody is. In any other one, callers on the host and in containers beside us
//! are 0, and nothing tells whether a mount is seen from there.

use std::fs;
use std::io;
use std::path::Path;

use rustix::process::getpid;

use crate::tenants::error::TenantsError;

/// Number of the initial pid namespace: `PID_NS_INIT_INO`, the same on every kernel since 3.8.
const INITIAL: u64 = 0xEFFF_FFFC;

/// Refuses a foreign namespace, and a `/proc` that does not show all of this one.
pub(super) fn check() -> Result<(), TenantsError> {
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        |source| TenantsError::Proc { path, source }
    };
    let namespace = Path::new("/proc/self/ns/pid");
    let inode = fs::metadata(namespace).map_err(unreadable(namespace))?;
    check_inode(std::os::unix::fs::MetadataExt::ino(&inode))?;
    let own = Path::new("/proc/self");
    let shown = fs::read_link(own).map_err(unreadable(own))?;
    if shown.as_os_str() != getpid().as_raw_nonzero().to_string().as_str() {
        return Err(unreadable(own)(io::Error::other("it shows another pid namespace")));
    }
    // Somebody else's process, which is there while the machine runs.
    let init = Path::new("/proc/1/cgroup");
    fs::read(init).map_err(unreadable(init))?;
    Ok(())
}

fn check_inode(inode: u64) -> Result<(), TenantsError> {
    if inode == INITIAL { Ok(()) } else { Err(TenantsError::ForeignPidNamespace { inode }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_initial_namespace_will_do_and_the_refusal_says_what_would() {
        assert!(check_inode(4_026_531_836).is_ok());
        let refusal = check_inode(4_026_532_198).unwrap_err().to_string();
        for hint in ["pid:[4026532198]", "--pid=host", "--tenant-by uid or volume"] {
            assert!(refusal.contains(hint), "{refusal}");
        }
    }
}
