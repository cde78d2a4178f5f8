//! Runs the pages for users. All `sh` blocks of a page run in order as one bash script, which ends at the first command
//! that fails.
//!
//! These tests need root and /dev/fuse. A script has its own mount namespace, with empty /tmp, /run and /dev/shm, so
//! that other processes do not see its mounts. It also has its own network, so that its ports are free. `slackwater` is
//! the command under test. `cargo` builds nothing, and `cargo run ... -- ...` runs that command too.
//!
//! A `text` block directly after an `sh` block shows the output of its commands. Its lines must appear in the output in
//! the same order, possibly with other lines between them. A word that contains a digit, or a unit of bytes, matches
//! any word; `...` matches the rest of a line. Other blocks are ignored.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

#[allow(dead_code, reason = "a part of what other test programs use")]
#[path = "../../../mount/tests/needs/mod.rs"]
mod needs;
mod page;
#[path = "../rig/mod.rs"]
mod rig;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::page::{Block, blocks, missing};
use crate::rig::{Process, Scratch, need_fuse, run, slackwater, wait_until};

const STAGE: &str = r#"
# Copies of what other tests have mounted would keep their volumes.
umount -l -a -t fuse.slackwater
mount -t tmpfs none /run
install -D "$BINARY" /run/bin/slackwater
if [ -e "$SERVER" ]; then install "$SERVER" /run/bin/slackwater-s3-server; fi
mount -t tmpfs none /dev/shm
mount -t tmpfs none /tmp
unset SLACKWATER_RUNTIME_DIR SLACKWATER_SOCKET XDG_RUNTIME_DIR
export PATH=/run/bin:$PATH
cd /tmp
ip link set lo up
cargo() {
    if [ "$1" = run ]; then
        while [ "$1" != -- ]; do shift; done
        shift
        slackwater "$@"
    fi
}
set -eu
"#;

/// All processes that a script has started. They are killed at its end.
struct Started<'s> {
    mark: &'s str,
}

impl Started<'_> {
    fn pids(&self) -> Vec<Pid> {
        let names = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name());
        let pids = names.filter_map(|name| name.to_str()?.parse().ok());
        let is_ours = |pid: &i32| fs::read(format!("/proc/{pid}/environ")).is_ok_and(|all| self.is_in(&all));
        pids.filter(is_ours).filter_map(Pid::from_raw).collect()
    }

    fn is_in(&self, environment: &[u8]) -> bool {
        environment.split(|byte| *byte == 0).any(|variable| variable == self.mark.as_bytes())
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        wait_until("the processes of the page have ended", || {
            let left = self.pids();
            for pid in &left {
                let _ = kill_process(*pid, Signal::KILL);
            }
            left.is_empty()
        });
    }
}

/// Runs the blocks of a page. Returns the output of each, or an error that says how far the page came.
fn run_blocks(blocks: &[Block]) -> Result<Vec<String>, String> {
    let scratch = Scratch::new();
    let (name, value) = ("SLACKWATER_PAGE", scratch.path.to_str().unwrap());
    let mark = format!("{name}={value}");
    let _started = Started { mark: &mark };
    let ends = |block: &Block| format!("{}printf '\\n{mark}\\n'\n", block.commands);
    let script = STAGE.to_owned() + &blocks.iter().map(ends).collect::<String>();

    // The output goes to a file: background processes would keep a pipe open.
    let said = scratch.path.join("said");
    let output = File::create(&said).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--propagation", "private", "bash", "-c", &script]);
    command.env("BINARY", slackwater()).env("SERVER", s3_server());
    command.env(name, value).current_dir("/");
    command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
    let status = Process::spawn(&mut command).wait();

    let said = fs::read_to_string(&said).unwrap();
    let mut said: Vec<_> = said.split(&format!("\n{mark}\n")).map(str::to_owned).collect();
    let after_the_last = said.pop().unwrap_or_default();
    match blocks.get(said.len()) {
        Some(block) => Err(format!("line {}: {status}\n{after_the_last}", block.line)),
        None if !status.success() => Err(format!("after the last block: {status}")),
        None => Ok(said),
    }
}

/// The local S3 server, if the whole workspace was built.
fn s3_server() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_slackwater")).with_file_name("slackwater-s3-server")
}

#[track_caller]
fn check(page: &str) {
    need_fuse();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let blocks = blocks(&fs::read_to_string(path).unwrap());
    assert!(!blocks.is_empty(), "nothing to run in {page}");
    let said = run_blocks(&blocks).unwrap_or_else(|failure| panic!("{page}, {failure}"));
    for (block, said) in blocks.iter().zip(&said) {
        if let Some(line) = missing(&block.output, said) {
            panic!("{page}, line {}: it does not print {line:?} but:\n{said}", block.line);
        }
    }
}

#[test]
fn the_readme() {
    check("README.md");
}

#[test]
fn try_it() {
    check("docs/TRY.md");
}

#[cfg(feature = "object")]
#[test]
fn object_volumes() {
    if !s3_server().is_file() {
        return needs::skip("the local S3 server is not built: cargo build -p slackwater-s3-server");
    }
    check("docs/OBJECT.md");
}

#[test]
fn containers() {
    check("docs/CONTAINERS.md");
}

#[test]
fn tuning() {
    if needs::are_missing(&["setfattr"]) {
        return;
    }
    check("docs/TUNING.md");
}

#[test]
fn a_page_fails_where_a_command_fails() {
    need_fuse();
    let page = blocks("```sh\necho one\n```\n\n```sh\nslackwater umount /nowhere\necho two\n```\n");
    let failure = run_blocks(&page).unwrap_err();
    assert!(failure.starts_with("line 5: exit status: 5"), "{failure}");
    assert!(failure.contains("not mounted") && !failure.contains("two"), "{failure}");
}

/// Checks the unit where systemd is installed; it is not run here.
#[test]
fn the_unit_is_valid_for_systemd() {
    if needs::are_missing(&["systemd-analyze"]) {
        return;
    }
    let scratch = Scratch::new();
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist");
    let binary = scratch.command_for_all();
    let install = |name: &str, path: &Path| {
        let text = fs::read_to_string(dist.join(name)).unwrap();
        fs::write(path, text.replace("/usr/local/bin/slackwater", binary.to_str().unwrap())).unwrap();
    };
    let dropins = scratch.dir("slackwater.service.d", 0o755);
    install("slackwater-hardened.conf", &dropins.join("hardened.conf"));
    install("slackwater-keep.conf", &dropins.join("keep.conf"));
    let path = scratch.path.join("slackwater.service");
    install("slackwater.service", &path);
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--man=no"]).arg(&path);
    run(command).expect(0, &[]);
}
