//! `slackwater top` on real mounts: figures of tenants, rates during writes, and a mount that does not answer.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::Signal;
use serde_json::Value;

use crate::rig::{Process, Scratch, need_fuse, wait_until};

const NOBODY: &str = "uid:65534";

/// The output of `top --once --json`.
fn top(scratch: &Scratch) -> Value {
    let output = scratch.run(["top", "--once", "--json", "--interval", "200ms"]);
    output.expect(0, &[]);
    let document: Value = serde_json::from_str(&output.text).unwrap();
    assert_eq!(document["version"], 1);
    assert!(document["interval_ms"].as_u64().unwrap() >= 200, "{document}");
    document
}

/// The volume at `mountpoint`, and its tenant `nobody`.
fn nobody_on<'a>(document: &'a Value, mountpoint: &Path) -> (&'a Value, &'a Value) {
    let volumes = document["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|volume| volume["mountpoint"] == mountpoint.to_str().unwrap()).unwrap();
    let tenants = volume["tenants"].as_array().unwrap();
    (volume, tenants.iter().find(|tenant| tenant["name"] == NOBODY).unwrap())
}

fn write_as_nobody(file: &Path, mib: u32) {
    dd_as_nobody(&[
        format!("count={mib}"),
        "if=/dev/zero".into(),
        format!("of={}", file.display()),
        "conv=notrunc".into(),
    ]);
}

/// Bypasses the kernel's cache.
fn read_as_nobody(file: &Path) {
    dd_as_nobody(&[format!("if={}", file.display()), "iflag=direct".into(), "of=/dev/null".into()]);
}

fn dd_as_nobody(arguments: &[String]) {
    let mut dd = Command::new("setpriv");
    dd.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "dd", "bs=1M", "status=none"]).args(arguments);
    assert!(Process::spawn(&mut dd).wait().success());
}

#[test]
fn top_has_the_figures_of_tenants_and_their_rates() {
    need_fuse();
    let scratch = Scratch::new();
    let source = scratch.dir("a-source", 0o777);
    let mountpoint = scratch.dir("a-mount", 0o755);
    let limit = format!("{NOBODY}=16MiB");
    let more = ["--dirty-expire", "1h", "--dirty-ratio", "50", "--tenant-by", "uid", "--tenant-limit", &limit];
    let mut mount = scratch.mount(&source, &mountpoint, &more);
    let file = mountpoint.join("a");
    write_as_nobody(&file, 2);

    let document = top(&scratch);
    let (volume, nobody) = nobody_on(&document, &mountpoint);
    assert_eq!((&volume["phase"], &volume["failing"]), (&"mounted".into(), &Value::Null), "{volume}");
    assert_eq!((&volume["limit_bytes"], &volume["eta_ms"]), (&(32 << 20).into(), &Value::Null), "{volume}");
    assert_eq!((&nobody["limit_bytes"], &nobody["held_bytes"]), (&(16 << 20).into(), &(2 << 20).into()), "{nobody}");
    assert_eq!((&nobody["dirty_bytes"], &nobody["wants_room"]), (&(2 << 20).into(), &false.into()), "{nobody}");
    for figure in ["written_bytes_per_s", "paused_ms_per_s"] {
        assert_eq!((&nobody[figure], &volume[figure]), (&0.into(), &0.into()), "{figure}");
    }
    assert_eq!((&nobody["hit_percent"], &volume["hit_percent"]), (&Value::Null, &Value::Null), "nothing was read");
    assert!(nobody["oldest_ms"].is_u64(), "{nobody}");
    scratch.run(["top", "--once", "--interval", "100ms"]).expect(0, &[NOBODY, "mounted", "2.0M  16.0M"]);

    let is_seen = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_seen.load(Ordering::Relaxed) {
                write_as_nobody(&file, 1);
                read_as_nobody(&file);
                scratch.run(["sync", mountpoint.to_str().unwrap()]).expect(0, &[]);
            }
        });
        // The writer ends however the test ends.
        let looked = std::panic::catch_unwind(|| {
            wait_until("its writes are seen", || {
                let document = top(&scratch);
                let (volume, nobody) = nobody_on(&document, &mountpoint);
                let reads = [volume, nobody].map(|it| it["hit_percent"].as_f64());
                assert!(reads.iter().flatten().all(|percent| *percent == 100.0), "all of it is cached: {document}");
                let is_written = |it: &&Value| it["written_bytes_per_s"].as_u64().unwrap() > 0;
                [volume, nobody].iter().all(is_written) && reads.iter().all(Option::is_some)
            });
        });
        is_seen.store(true, Ordering::Relaxed);
        looked.unwrap();
    });
    scratch.umount(&mountpoint);
    mount.wait().expect(0, &["everything is written back"]);
    assert_eq!(fs::metadata(source.join("a")).unwrap().len(), 2 << 20);
}

#[test]
fn a_mount_that_is_stopped_or_dead_is_shown_beside_the_others() {
    need_fuse();
    let scratch = Scratch::new();
    let [stopped, mut dead, works] = ["stopped", "dead", "works"].map(|name| {
        let (source, mountpoint) = scratch.pair(name);
        scratch.mount(&source, &mountpoint, &["--cache", "16MiB"])
    });
    dead.kill();
    scratch.status_after_death();
    stopped.process.stop();
    let document = top(&scratch);
    assert_eq!(document["silent"][0]["pid"], stopped.process.0.id(), "{document}");
    assert_eq!(document["dead"][0]["pid"], dead.process.0.id(), "{document}");
    assert_eq!(document["volumes"].as_array().unwrap().len(), 1, "{document}");
    assert_eq!(document["volumes"][0]["pid"], works.process.0.id(), "{document}");
    stopped.process.signal(Signal::CONT);
    wait_until("it answers again", || top(&scratch)["silent"].as_array().unwrap().is_empty());
}
