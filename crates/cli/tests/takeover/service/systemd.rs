//! The same with systemd: a user manager of its own, in cgroups of its own. The rest of the system need not run systemd.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::needs;
use crate::rig::{Output, Scratch, need_fuse, slackwater};

const MANAGER: &str = "/lib/systemd/systemd";
/// A manager that cannot run here ends with this status.
const CANNOT_RUN: i32 = 77;

/// The drop-in for the system's unit, with the paths of the test.
fn unit(scratch: &Path) -> String {
    let drop_in = include_str!("../../../../../dist/slackwater-keep.conf");
    let command = format!("{} daemon --keep", slackwater());
    let own = scratch.file_name().unwrap().to_string_lossy().into_owned();
    let options =
        format!("--cache 64MiB --arena /dev/shm/{own}-daemon.arena --config {}/daemon.toml", scratch.display());
    let line = "/usr/local/bin/slackwater daemon --keep --config /etc/slackwater.toml";
    assert!(drop_in.contains(line), "{drop_in}");
    let service = drop_in.replace("ExecStart=\n", "").replace(line, &format!("{command} {options}"));
    let run = scratch.join("run");
    format!(
        "{service}Type=notify\nRestart=on-failure\nKillMode=mixed\nEnvironment=SLACKWATER_RUNTIME_DIR={}\n",
        run.display()
    )
}

/// Starts a manager, in a mount namespace of its own, which the manager shares.
const START: &str = r#"
cd "$1"
mount --make-rprivate /
# Copies of the mounts of other tests would keep their volumes in use.
grep fuse.slackwater /proc/self/mounts | cut -d' ' -f2 | xargs --no-run-if-empty --max-args 1 umount --lazy
for root in /sys/fs/cgroup /sys/fs/cgroup/unified /sys/fs/cgroup/systemd; do
    if [ -e $root/cgroup.procs ]; then
        mkdir $root/$(basename "$1") && echo $$ > $root/$(basename "$1")/cgroup.procs || exit 77
    fi
done
# The manager runs only where this directory says that the system runs systemd.
mkdir -p /run/systemd && mount -t tmpfs none /run/systemd && mkdir -p /run/systemd/system || exit 77
export HOME="$1/home" XDG_RUNTIME_DIR="$1/user" XDG_CONFIG_HOME="$1/home/.config"
unset DBUS_SESSION_BUS_ADDRESS NOTIFY_SOCKET
/lib/systemd/systemd --user > manager.log 2>&1 &
manager=$!
trap 'kill -9 $manager' EXIT
for _ in $(seq 100); do systemctl --user is-system-running --wait > state 2> /dev/null && break; sleep 0.1; done
grep -q running state || exit 77
"#;

/// Prints the state after each step.
const SCRIPT: &str = r#"
show() { timeout 20 systemctl --user show slackwater -p "$1" --value; }
timeout 60 systemctl --user start slackwater || { cat manager.log; exit 1; }
echo "started: $(show ActiveState)"
echo one > mnt/file
exec 3>> mnt/file
for nth in 1 2 3; do
    kill -9 "$(show MainPID)"
    echo "write $nth: $(timeout 60 sh -c "echo more $nth >> mnt/file" && echo done)"
    echo "through the descriptor $nth" >&3
    for _ in $(seq 200); do [ "$(show NRestarts)" = $nth ] && break; sleep 0.05; done
    echo "restarts: $(show NRestarts)"
done
exec 3>&-
timeout 60 systemctl --user stop slackwater
echo "stopped: $(show ActiveState), $(show NFileDescriptorStore) stored"
grep -q "$1/mnt" /proc/self/mounts && echo "still mounted"
"#;

/// Ends the manager.
const END: &str = r#"
systemctl --user exit
wait $manager
trap - EXIT
"#;

/// Cgroups with the name of the test, which end with it. So do the processes in them.
struct Cgroups(String);

impl Drop for Cgroups {
    fn drop(&mut self) {
        for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"] {
            end(&Path::new(root).join(&self.0));
        }
    }
}

/// Removes a cgroup with those below.
fn end(cgroup: &Path) {
    let Ok(below) = fs::read_dir(cgroup) else { return };
    below
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .for_each(|entry| end(&entry.path()));
    let deadline = Instant::now() + Duration::from_secs(5);
    while fs::remove_dir(cgroup).is_err() && Instant::now() < deadline {
        let processes = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
        for pid in processes.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A user's directory, in which a manager can run.
pub(super) struct Home {
    /// The cgroups, dropped first.
    _cgroups: Cgroups,
    pub(super) scratch: Scratch,
    pub(super) units: PathBuf,
}

impl Home {
    /// `None` if a manager cannot run here.
    pub(super) fn new() -> Option<Self> {
        need_fuse();
        if needs::are_missing(&["systemctl", "unshare"]) || !Path::new(MANAGER).exists() {
            return None;
        }
        let scratch = Scratch::new();
        let units = scratch.path.join("home/.config/systemd/user");
        let folders = ["source", "mnt", "user"].map(|name| scratch.path.join(name));
        folders.iter().chain([&units]).for_each(|folder| fs::create_dir_all(folder).unwrap());
        fs::set_permissions(scratch.path.join("user"), PermissionsExt::from_mode(0o700)).unwrap();
        let cgroups = Cgroups(scratch.path.file_name().unwrap().to_string_lossy().into_owned());
        Some(Self { _cgroups: cgroups, scratch, units })
    }

    /// Runs a script with a manager. `None` if it cannot run here.
    pub(super) fn run(&self, script: &str) -> Option<Output> {
        let script = format!("{START}{script}{END}");
        let mut command = Command::new("unshare");
        command.args(["--mount", "bash", "-c", &script, "script"]).arg(&self.scratch.path);
        let output = crate::rig::run(command);
        if output.code == Some(CANNOT_RUN) {
            needs::skip("a user manager of systemd cannot run here");
            return None;
        }
        Some(output)
    }
}

#[test]
fn systemd_restarts_a_killed_service_and_programs_notice_nothing() {
    let Some(home) = Home::new() else { return };
    let scratch = &home.scratch;
    fs::write(home.units.join("slackwater.service"), unit(&scratch.path)).unwrap();
    let (source, mountpoint) = (scratch.path.join("source"), scratch.path.join("mnt"));
    let config = format!("dirty-expire = \"1h\"\n{}", crate::process::table("a", &source, &mountpoint));
    fs::write(scratch.path.join("daemon.toml"), config).unwrap();
    let Some(output) = home.run(SCRIPT) else { return };
    output.expect(0, &["started: active", "write 3: done", "restarts: 3", "stopped: inactive, 0 stored"]);
    assert!(!output.text.contains("still mounted"), "{}", output.text);
    let content = fs::read_to_string(source.join("file")).unwrap();
    let lines = (1..=3).flat_map(|nth| [format!("more {nth}"), format!("through the descriptor {nth}")]);
    assert!(content.lines().eq(std::iter::once("one".to_owned()).chain(lines)), "{content}");
}
