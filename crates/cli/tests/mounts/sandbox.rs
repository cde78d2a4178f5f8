//! Shell scripts in their own namespaces: other processes do not see their mounts, and the processes that they start
//! end with them.
//!
//! Inside, /dev/fuse is open to every user, as on most machines. /dev/shm, /run and /sbin contain only what the script
//! puts there. The working directory has `slackwater`, and `source`, `mount` and `run` (the registry), which belong to
//! an unprivileged user.

use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::rig::{Output, Scratch, UNMOUNT_COPIES, run};

/// The ordinary user.
const NOBODY: u32 = 65534;

const STAGE: &str = r#"
mount -t tmpfs none /dev
mknod -m 666 /dev/fuse c 10 229
mknod -m 666 /dev/null c 1 3
mkdir -m 1777 /dev/shm
mount -t tmpfs none /run
mount -t tmpfs none /sbin
mount -t fusectl none /sys/fs/fuse/connections
unset SLACKWATER_RUNTIME_DIR XDG_RUNTIME_DIR
"#;

const WORDS: &str = r#"
cd "$SANDBOX"
MOUNT='./slackwater mount source mount --cache 32MiB --dirty-expire 1h --background'

# Runs a command that is to end with a status: fails STATUS COMMAND...
fails() {
    expected=$1; shift; status=0
    "$@" || status=$?
    [ $status = $expected ] || { echo "status $status, not $expected: $*"; exit 99; }
}
as_nobody() {
    env SLACKWATER_RUNTIME_DIR="$SANDBOX/run" setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
}
# Waits until no mount process is left, and sees that nothing else is.
ended() {
    while ls run /run/slackwater 2>&1 | grep -q json; do sleep 0.02; done
    [ -z "$(ls mount && find /dev/shm ! -type d)" ] || { ls -R mount /dev/shm; exit 98; }
}
"#;

pub(crate) struct Sandbox {
    pub(crate) scratch: Scratch,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        let scratch = Scratch::new();
        let _ = scratch.command_for_all();
        let sandbox = Self { scratch };
        for (name, mode) in [("source", 0o755), ("mount", 0o755)] {
            sandbox.dir_of_nobody(name, mode);
        }
        chown(sandbox.scratch.path.join("run"), Some(NOBODY), Some(NOBODY)).unwrap();
        sandbox
    }

    pub(crate) fn dir_of_nobody(&self, name: &str, mode: u32) -> PathBuf {
        let dir = self.scratch.dir(name, mode);
        chown(&dir, Some(NOBODY), Some(NOBODY)).unwrap();
        dir
    }

    /// Runs a script as root. It ends at the first command that fails.
    pub(crate) fn run_as_root(&self, script: &str) -> Output {
        self.run(&format!("{STAGE}{WORDS}{script}"))
    }

    /// Runs a script as the ordinary user. It ends at the first command that fails.
    pub(crate) fn run_as_nobody(&self, script: &str) -> Output {
        self.run_as_nobody_after("", script)
    }

    /// Runs a script as [`run_as_nobody`](Self::run_as_nobody) does, after a preparation by root.
    pub(crate) fn run_as_nobody_after(&self, preparation: &str, script: &str) -> Output {
        let script = format!("{WORDS}{script}").replace('\'', r"'\''");
        self.run(&format!("{STAGE}{WORDS}{preparation}\nas_nobody sh -e -c '{script}'"))
    }

    /// Runs a script as root that sees all processes of the machine. None of the processes that it starts may remain
    /// when everything is unmounted.
    pub(crate) fn run_among_all_processes(&self, script: &str) -> Output {
        let at_the_end = "trap 'umount -l -a -t fuse.slackwater' EXIT";
        self.run_in(&["--mount", "--propagation", "private"], &format!("{STAGE}{WORDS}{at_the_end}\n{script}"))
    }

    fn run(&self, script: &str) -> Output {
        let namespaces = ["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"];
        self.run_in(&namespaces, script)
    }

    fn run_in(&self, namespaces: &[&str], script: &str) -> Output {
        let mut command = Command::new("unshare");
        command.args(namespaces).args(["sh", "-e", "-c", &format!("{UNMOUNT_COPIES}{script}")]);
        command.env("SANDBOX", &self.scratch.path);
        command.stdin(Stdio::null()).current_dir("/");
        run(command)
    }
}
