//! A mount by somebody who is not root: through fusermount3, and without handles that lead to files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::need_fuse;
use crate::rig::{Scratch, run};

/// In a mount namespace of its own, where /dev/fuse is for everybody as on most machines. Nobody mounts, is killed with
/// data that only the arena has, and mounts again.
const SCRIPT: &str = r#"
set -e
mount -t tmpfs none /dev
mknod -m 666 /dev/fuse c 10 229
mknod -m 666 /dev/null c 1 3
mkdir -m 1777 /dev/shm
exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -e -c '
cd "$0"
export SLACKWATER_RUNTIME_DIR="$0/user-run"
mount="./slackwater mount user-source user-mount --cache 32MiB --dirty-expire 1h --background"
$mount
mkdir -p user-mount/deep/er
echo precious > user-mount/deep/er/file
kill -9 $(sed "s/.*\"pid\":\([0-9]*\).*/\1/" user-run/*.json)
while ls user-mount 2>/dev/null; do :; done
$mount
echo "found: $(cat user-source/deep/er/file)"
echo more > user-mount/more
./slackwater umount user-mount
echo "and $(cat user-source/more)"
' "$1"
"#;

#[test]
fn a_user_loses_nothing_when_the_mount_process_is_killed() {
    need_fuse!();
    let has = |program: &str| Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !["fusermount3", "setpriv", "unshare"].into_iter().all(has) {
        println!("SKIPPED: fusermount3, setpriv or unshare is missing");
        return;
    }
    let scratch = Scratch::new();
    scratch.dir("user-source", 0o777);
    // fusermount3 wants the mount point to be the user's.
    for name in ["user-mount", "user-run"] {
        let dir = scratch.dir(name, 0o700);
        std::os::unix::fs::chown(&dir, Some(65534), Some(65534)).unwrap();
    }
    let binary = scratch.path.join("slackwater");
    fs::copy(env!("CARGO_BIN_EXE_slackwater"), &binary).unwrap();
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "timeout", "60", "sh", "-c", SCRIPT, "sh"]).arg(&scratch.path);
    command.stdin(Stdio::null()).current_dir("/");
    run(command).expect(0, &["found: precious", "and more"]);
}
