//! Containers of real Podman and real Docker with volumes of the plugin.

use std::process::Command;
use std::sync::PoisonError;

use crate::needs;
use crate::plugin::MOUNTS;
use crate::rig::{Scratch, need_fuse, run, slackwater};

/// Runs `engine.sh` in namespaces of its own, so that nothing of it outlives the test.
fn containers_of(engine: &str, programs: &[&str]) {
    need_fuse();
    if needs::are_missing(programs) || needs::are_missing(&["busybox"]) {
        return;
    }
    let _alone = MOUNTS.write().unwrap_or_else(PoisonError::into_inner);
    let scratch = Scratch::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/docker_plugin/engine.sh");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", script, engine]);
    let output = run({
        command.arg(slackwater()).arg(&scratch.path);
        command
    });
    output.expect(0, &["STEP done", "slackwater.dirty-limit=64MiB"]);
}

#[test]
#[ignore = "long: needs Podman"]
fn containers_of_podman_have_volumes() {
    containers_of("podman", &["podman", "crun"]);
}

#[test]
#[ignore = "long: needs Docker"]
fn containers_of_docker_have_volumes() {
    containers_of("docker", &["docker", "dockerd", "runc"]);
}
