//! Whether thread ids in requests can be looked up.
//!
//! The kernel translates a caller's id to the pid namespace in which the mount was made, and to 0 if the caller is not
//! in it. The initial namespace contains all processes. In any other one, callers on the host and in neighbouring
//! containers have id 0, and a process cannot tell whether its mount is visible there.

use std::fs;
use std::io;
use std::path::Path;

use rustix::process::getpid;

use crate::tenants::error::TenantsError;

/// Inode number of the initial pid namespace: `PID_NS_INIT_INO`, the same on every kernel since 3.8.
const INITIAL: u64 = 0xEFFF_FFFC;

/// Rejects a namespace other than the initial one, and a `/proc` that does not show all of it.
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
    // A process of another user, which exists while the machine runs.
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
    fn only_the_initial_namespace_is_accepted_and_the_error_names_the_alternatives() {
        assert!(check_inode(4_026_531_836).is_ok());
        let refusal = check_inode(4_026_532_198).unwrap_err().to_string();
        for hint in ["pid:[4026532198]", "--pid=host", "--tenant-by uid or volume"] {
            assert!(refusal.contains(hint), "{refusal}");
        }
    }
}
