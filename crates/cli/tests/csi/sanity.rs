//! csi-sanity, the tests of the Container Storage Interface.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use crate::killing_proxy::KillingProxy;
use crate::needs;
use crate::plugin::{Plugin, mounts_in, names_in, records_in};
use crate::process::Daemon;
use crate::rig::{Scratch, need_fuse, run_within};

const VERSION: &str = "v5.6.0";
/// The time limit of all tests of csi-sanity together.
const LIMIT: Duration = Duration::from_secs(3600);

/// The program, built once into the target directory. `None`: the test is skipped.
fn program() -> Option<PathBuf> {
    static BUILDING: Mutex<()> = Mutex::new(());
    let _building = BUILDING.lock().unwrap();
    let folder = Path::new(env!("CARGO_BIN_EXE_slackwater")).parent().unwrap().join(format!("csi-sanity-{VERSION}"));
    let program = folder.join("csi-sanity");
    if program.is_file() {
        return Some(program);
    }
    if needs::are_missing(&["go"]) {
        return None;
    }
    let package = format!("github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@{VERSION}");
    let built = Command::new("go").args(["install", &package]).env("GOBIN", &folder).output().unwrap();
    if !built.status.success() {
        needs::skip(&format!("csi-sanity cannot be built: {}", String::from_utf8_lossy(&built.stderr)));
        return None;
    }
    Some(program)
}

/// Runs all of csi-sanity, and expects it to pass.
#[track_caller]
fn check(program: &Path, scratch: &Scratch, endpoint: &Path) {
    let [mount, staging] = ["mount", "staging"].map(|name| scratch.path.join(name));
    let mut command = Command::new(program);
    command.args(["--ginkgo.no-color", "--csi.endpoint"]).arg(format!("unix://{}", endpoint.display()));
    command.arg("--csi.mountdir").arg(mount).arg("--csi.stagingdir").arg(staging);
    // With many kills of the plugin, it takes longer than a command may.
    let output = run_within(command, LIMIT);
    output.expect(0, &[" 0 Failed"]);
    println!("{}", output.text.lines().filter(|line| line.contains(" Passed |")).collect::<String>());
}

/// Checks that a daemon has no volumes, and that nothing is mounted and no record is left.
#[track_caller]
fn check_nothing_left(scratch: &Scratch, daemon: Daemon<'_>) {
    assert_eq!(mounts_in(scratch), Vec::<PathBuf>::new());
    assert_eq!(names_in(&scratch.path.join("state")), [""; 0]);
    assert_eq!(daemon.states(), []);
    daemon.end();
}

#[test]
#[ignore = "long: two minutes, and the program is built first"]
fn csi_sanity_passes_with_volumes_in_directories() {
    need_fuse();
    let Some(program) = program() else { return };
    let scratch = Scratch::new();
    let pool = scratch.dir("pool", 0o755);
    let daemon = Daemon::start(&scratch, "");
    let plugin = Plugin::start(&scratch, pool.to_str().unwrap(), &["--topology", "slackwater.csi/node=here"]);
    check(&program, &scratch, &plugin.endpoint);
    plugin.end();
    assert_eq!(names_in(&pool), [""; 0]);
    check_nothing_left(&scratch, daemon);
}

#[test]
#[ignore = "long: two minutes, and the program is built first"]
#[cfg(feature = "object")]
fn csi_sanity_passes_with_object_volumes() {
    need_fuse();
    let Some(program) = program() else { return };
    let scratch = Scratch::new();
    let daemon = Daemon::start(&scratch, "");
    let pool = format!("file://{}", scratch.path.join("store").display());
    let plugin = Plugin::start(&scratch, &pool, &[]);
    check(&program, &scratch, &plugin.endpoint);
    plugin.end();
    check_nothing_left(&scratch, daemon);
}

#[test]
#[ignore = "long: two minutes, and the program is built first"]
fn csi_sanity_passes_while_the_plugin_is_killed_after_each_call() {
    need_fuse();
    let Some(program) = program() else { return };
    let scratch = Scratch::new();
    let pool = scratch.dir("pool", 0o755);
    check_with_kills(&program, &scratch, pool.to_str().unwrap());
    assert_eq!(names_in(&pool), [""; 0]);
}

#[test]
#[ignore = "long: two minutes, and the program is built first"]
#[cfg(feature = "object")]
fn csi_sanity_passes_with_object_volumes_while_the_plugin_is_killed() {
    need_fuse();
    let Some(program) = program() else { return };
    let scratch = Scratch::new();
    check_with_kills(&program, &scratch, &format!("file://{}", scratch.path.join("store").display()));
}

#[track_caller]
fn check_with_kills(program: &Path, scratch: &Scratch, pool: &str) {
    let daemon = Daemon::start(scratch, "");
    let proxy = KillingProxy::before(Plugin::start(scratch, pool, &[]), &scratch.path.join("proxy.sock"));
    check(program, scratch, &proxy.endpoint);
    println!("the plugin was killed {} times", proxy.kills());
    assert!(proxy.kills() > 100, "{}", proxy.kills());
    // The last plugin may still remove the locks of those before it.
    assert_eq!(records_in(&scratch.path.join("state")), [""; 0]);
    proxy.end();
    check_nothing_left(scratch, daemon);
}
