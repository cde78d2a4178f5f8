//! Tenants with limits: processes in real cgroups, users, and the volume as a whole.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use slackwater_host::Printable as _;

use crate::bytes;
use crate::cgroups::{Cgroup, memory, unified};
use crate::hung_source::Tower;
use crate::rig::{PATIENCE, Process, Scratch, need_fuse, wait_until};
use crate::sandbox::Sandbox;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 4 * MIB;
/// Number of bytes that a hog wants to write.
const HOG_BYTES: usize = 24 << 20;

/// A mount over a source that can be stopped, with space for more than the limit.
fn tower(scratch: &Scratch, by: &str, tenant: &str) -> Tower {
    let limit = format!("{tenant}={LIMIT}");
    let options = ["--cache", "64MiB", "--dirty-ratio", "50"];
    Tower::with(scratch, &[&options[..], &["--tenant-by", by, "--tenant-limit", &limit]].concat())
}

/// Creates a file on the mount while its source still answers.
fn made(tower: &Tower, name: &str) -> File {
    File::create_new(tower.top.join(name)).unwrap()
}

/// `dd` of the hog's bytes into an open file.
fn hog(scratch: &Scratch, file: &File, mut command: Command) -> Process {
    let original = scratch.path.join("original");
    fs::write(&original, bytes(7, HOG_BYTES)).unwrap();
    command.arg(format!("if={}", original.display())).arg("bs=64K");
    Process::spawn(command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(Stdio::null()))
}

/// Waits until the mount at the top of a tower holds a process back, and the process writes no more.
fn wait_until_it_waits(scratch: &Scratch, tower: &Tower, process: &Process) {
    let written = || fs::read_to_string(format!("/proc/{}/io", process.0.id())).unwrap_or_default();
    let is_in_a_write = || {
        let place = fs::read_to_string(format!("/proc/{}/wchan", process.0.id()));
        place.is_ok_and(|place| place.contains("request_wait_answer"))
    };
    // Otherwise the mount process may be short of CPU time.
    let is_held_back = || {
        let output = scratch.run(["status", "--json", tower.top.to_str().unwrap()]);
        // It may not answer in time.
        let status: serde_json::Value = serde_json::from_str(&output.text).unwrap_or_default();
        ["paused", "parked"].iter().any(|how| status["mounts"][0]["writers"][*how].as_u64() > Some(0))
    };
    let mut before = (written(), Instant::now());
    wait_until("the hog waits", || {
        let now = written();
        if now != before.0 || !is_in_a_write() || !is_held_back() {
            before = (now, Instant::now());
        }
        before.1.elapsed() > Duration::from_secs(1)
    });
}

/// The mount in `status --json`.
fn status(scratch: &Scratch, mountpoint: &Path) -> serde_json::Value {
    let output = scratch.run(["status", "--json", mountpoint.to_str().unwrap()]);
    output.expect(0, &[]);
    let status: serde_json::Value = serde_json::from_str(&output.text).unwrap();
    status["mounts"][0].clone()
}

/// Unwritten bytes of the volume.
fn unwritten_bytes(scratch: &Scratch, mountpoint: &Path) -> u64 {
    let status = status(scratch, mountpoint);
    ["dirty_bytes", "writeback_bytes", "unstable_bytes"].iter().map(|name| status[*name].as_u64().unwrap()).sum()
}

/// A hog at its limit over a source that does not answer: it holds no more than its limit, other writers continue, and
/// it can be killed. Afterwards everything is written back.
fn a_hog_is_alone(by: &str, tenant: &str, command: Command, has_others: bool) {
    let scratch = Scratch::new();
    let tower = tower(&scratch, by, tenant);
    let [file, beside] = ["hog", "beside"].map(|name| made(&tower, name));
    tower.server.stop_at_rest();
    let mut hog = hog(&scratch, &file, command);
    drop(file);
    wait_until_it_waits(&scratch, &tower, &hog);
    let held = unwritten_bytes(&scratch, &tower.top);
    println!("{tenant}: {held} bytes of {LIMIT}");
    assert!((LIMIT / 4..=LIMIT + MIB).contains(&held), "{held}");
    let others = if has_others { 6 * MIB } else { 0 };
    for at in (0..others).step_by(4096) {
        let start = Instant::now();
        beside.write_all_at(&bytes(at, 4096), at).unwrap();
        assert!(start.elapsed() < PATIENCE / 4, "a write beside it took {:?}", start.elapsed());
    }
    let both = unwritten_bytes(&scratch, &tower.top);
    assert!(both <= held + others, "{both} bytes: the hog has gone on");
    drop(beside);
    assert!(hog.0.try_wait().unwrap().is_none());
    hog.0.kill().unwrap();
    let start = Instant::now();
    hog.wait();
    assert!(start.elapsed() < PATIENCE / 4, "a killed hog ended after {:?}", start.elapsed());
    let base = tower.come_down(&scratch);
    let arrived = fs::read(base.join("hog")).unwrap();
    assert!(arrived.len() as u64 >= LIMIT / 4 && arrived == bytes(7, HOG_BYTES)[..arrived.len()]);
    let beside = fs::read(base.join("beside")).unwrap();
    assert_eq!(beside.len() as u64, others);
    assert!((0..).step_by(4096).zip(beside.chunks(4096)).all(|(at, page)| page == bytes(at, 4096)));
}

#[test]
fn p08_a_cgroup_at_its_limit_slows_only_itself() {
    need_fuse();
    for hierarchy in [unified(), memory()].into_iter().flatten() {
        let cgroup = Cgroup::top(&hierarchy);
        a_hog_is_alone("cgroup", &cgroup.path, cgroup.command("dd", &[]), true);
    }
}

#[test]
fn p08_a_user_at_its_limit_slows_only_itself() {
    need_fuse();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "dd"]);
    a_hog_is_alone("uid", "uid:65534", command, true);
}

#[test]
fn a_volume_limit_applies_to_all_writers() {
    need_fuse();
    a_hog_is_alone("volume", "volume", Command::new("dd"), false);
}

#[test]
fn the_memory_limit_of_a_cgroup_is_its_dirty_limit() {
    need_fuse();
    let Some(hierarchy) = memory() else { return };
    let cgroup = Cgroup::top(&hierarchy);
    // Enough for dd itself.
    cgroup.limit("16777216");
    let scratch = Scratch::new();
    let tower = Tower::with(&scratch, &["--cache", "64MiB", "--dirty-ratio", "80", "--tenant-by", "cgroup"]);
    let file = made(&tower, "hog");
    tower.server.stop_at_rest();
    let mut hog = hog(&scratch, &file, cgroup.command("dd", &[]));
    drop(file);
    wait_until_it_waits(&scratch, &tower, &hog);
    let held = unwritten_bytes(&scratch, &tower.top);
    assert!((4 * MIB..=17 * MIB).contains(&held), "{held}");
    tower.server.process.signal(Signal::CONT);
    assert!(hog.wait().success());
    let base = tower.come_down(&scratch);
    assert!(fs::read(base.join("hog")).unwrap() == bytes(7, HOG_BYTES));
}

#[test]
fn blocked_writers_can_be_terminated_and_the_volume_unmounted() {
    need_fuse();
    let Some(hierarchy) = unified().or_else(memory) else { return };
    let cgroup = Cgroup::top(&hierarchy);
    let scratch = Scratch::new();
    let mut tower = tower(&scratch, "cgroup", &cgroup.path);
    let top = tower.top.clone();
    let top = top.to_str().unwrap();
    let file = made(&tower, "hog");
    tower.server.stop_at_rest();
    let mut first = hog(&scratch, &file, cgroup.command("dd", &[]));
    wait_until_it_waits(&scratch, &tower, &first);
    // dd handles SIGINT, which ends no write.
    first.signal(Signal::INT);
    first.signal(Signal::TERM);
    assert!(!first.wait().success());
    let mut second = hog(&scratch, &file, cgroup.command("dd", &[]));
    drop(file);
    wait_until_it_waits(&scratch, &tower, &second);
    scratch.run(["umount", top]).expect(3, &["is in use by", "dd"]);
    // With force it is flushed first; the source answers in a moment.
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(500));
            tower.server.process.signal(Signal::CONT);
        });
        scratch.run(["umount", top, "--force", "--deadline", "2m"]).expect(0, &[]);
    });
    second.wait();
    tower.upper.wait().expect(0, &["Unmounted"]);
    let base = tower.come_down_from_the_middle(&scratch);
    let stored = fs::read(base.join("hog")).unwrap();
    assert!(stored.len() as u64 >= LIMIT / 4);
}

#[test]
fn p04_data_of_a_removed_cgroup_is_written_back_and_delays_no_unmount() {
    need_fuse();
    for hierarchy in [unified(), memory()].into_iter().flatten() {
        let cgroup = Cgroup::top(&hierarchy);
        let scratch = Scratch::new();
        let (source, mountpoint) = scratch.pair("a");
        let limit = format!("{}=16MiB", cgroup.path);
        let more = ["--dirty-expire", "1h", "--tenant-by", "cgroup", "--tenant-limit", &limit];
        let mut mount = scratch.mount(&source, &mountpoint, &more);
        let mut command = cgroup.command("dd", &["if=/dev/zero", "bs=64K", "count=32"]);
        let status = Process::spawn(command.arg(format!("of={}", mountpoint.join("a").display()))).wait();
        assert!(status.success());
        cgroup.remove();
        // A later writer uses the same file.
        File::options().write(true).open(mountpoint.join("a")).unwrap().write_all_at(&bytes(1, 100_000), 0).unwrap();
        scratch.umount(&mountpoint);
        mount.wait().expect(0, &["everything is written back"]);
        let found = fs::read(source.join("a")).unwrap();
        assert_eq!(found.len(), 2 << 20);
        assert!(found[..100_000] == bytes(1, 100_000) && found[100_000..].iter().all(|byte| *byte == 0));
    }
}

/// The tenant with this name in `status --json`.
fn status_of(scratch: &Scratch, mountpoint: &Path, name: &str) -> Option<serde_json::Value> {
    let status = status(scratch, mountpoint);
    status["tenants"].as_array().unwrap().iter().find(|tenant| tenant["name"] == name).cloned()
}

#[test]
fn status_has_the_figures_of_each_tenant_and_prints_any_name() {
    need_fuse();
    let Some(hierarchy) = unified().or_else(memory) else { return };
    // Without escaping it would clear the screen. A newline is the only byte that the kernel refuses in the name of a
    // cgroup.
    let path = hierarchy.root.join(format!("slackwater-\"\u{1b}[2J '-{}", std::process::id()));
    let directory = hierarchy.directory(&path).unwrap();
    fs::create_dir(&directory).unwrap();
    let cgroup = Cgroup { directory, path: path.into_os_string().into_string().unwrap() };

    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let limit = format!("{}=16MiB", cgroup.path);
    let more = ["--dirty-expire", "1h", "--tenant-by", "cgroup", "--tenant-limit", &limit];
    let mut mount = scratch.mount(&source, &mountpoint, &more);
    let mut dd = cgroup.command("dd", &["if=/dev/zero", "bs=64K", "count=32"]);
    assert!(Process::spawn(dd.arg(format!("of={}", mountpoint.join("a").display()))).wait().success());
    fs::write(mountpoint.join("b"), bytes(1, 100_000)).unwrap();

    let tenant = status_of(&scratch, &mountpoint, &cgroup.path).unwrap();
    assert_eq!((&tenant["limit_bytes"], &tenant["charged_bytes"]), (&(16 << 20).into(), &(2 << 20).into()), "{tenant}");
    assert_eq!((&tenant["state"], &tenant["wants_room"]), (&"online".into(), &false.into()), "{tenant}");
    let text = scratch.run(["status", mountpoint.to_str().unwrap()]);
    text.expect(0, &["tenants: ", &format!("  {}: 2.0 MiB of 16.0 MiB", cgroup.path.printable())]);
    assert!(!text.text.contains('\u{1b}'), "{:?}", text.text);

    cgroup.remove();
    wait_until("its removal is noticed", || {
        status_of(&scratch, &mountpoint, &cgroup.path).is_some_and(|tenant| tenant["state"] == "offline")
    });
    scratch.run(["status", mountpoint.to_str().unwrap()]).expect(0, &["; removed"]);
    scratch.run(["sync", mountpoint.to_str().unwrap()]).expect(0, &[]);
    wait_until("nothing of it is left", || status_of(&scratch, &mountpoint, &cgroup.path).is_none());
    scratch.umount(&mountpoint);
    mount.wait().expect(0, &["everything is written back"]);
    assert_eq!(fs::metadata(source.join("a")).unwrap().len(), 2 << 20);
}

#[test]
fn a_limit_may_name_a_cgroup_directory_or_a_future_cgroup_but_no_impossible_one() {
    need_fuse();
    for hierarchy in [unified(), memory()].into_iter().flatten() {
        let cgroup = Cgroup::top(&hierarchy);
        let scratch = Scratch::new();
        let (source, mountpoint) = scratch.pair("a");
        let words = ["mount", source.to_str().unwrap(), mountpoint.to_str().unwrap(), "--tenant-by", "cgroup"];
        let nobody = scratch.run([&words[..], &["--tenant-limit", "/a/../b=1MiB"]].concat());
        nobody.expect(2, &["is not a usable cgroup", "without `..`"]);

        let limits = [format!("{}=16MiB", cgroup.directory.display()), format!("{}-to-come=1MiB", cgroup.path)];
        let more = ["--tenant-by", "cgroup", "--tenant-limit", &limits[0], "--tenant-limit", &limits[1]];
        let mut mount = scratch.mount(&source, &mountpoint, &more);
        wait_until("it warns", || mount.said("this cgroup does not exist yet") == 1 && mount.said("-to-come") == 1);
        let mut dd = cgroup.command("dd", &["if=/dev/zero", "bs=64K", "count=1"]);
        assert!(Process::spawn(dd.arg(format!("of={}", mountpoint.join("a").display()))).wait().success());
        let tenant = status_of(&scratch, &mountpoint, &cgroup.path).unwrap();
        assert_eq!(tenant["limit_bytes"], 16 << 20, "{tenant}");
        scratch.umount(&mountpoint);
        mount.wait().expect(0, &["everything is written back"]);
    }
}

/// The sandbox is a pid namespace of its own.
#[test]
fn unidentifiable_tenants_and_invalid_limits_are_refused() {
    need_fuse();
    let script = r#"
        fails 2 $MOUNT --tenant-by cgroup
        fails 2 $MOUNT --tenant-limit uid:1000=1MiB
        fails 2 $MOUNT --tenant-by uid --tenant-limit /containers/a=1MiB
        ended
        $MOUNT --tenant-by uid --tenant-limit uid:1000=1MiB
        echo works > mount/file
        ./slackwater umount mount
        cat source/file
    "#;
    let words = [
        "pid namespace",
        "--pid=host",
        "--tenant-by uid or volume",
        "written as volume",
        "written as uid:1000",
        "works",
    ];
    Sandbox::new().run_as_root(script).expect(0, &words);
}

#[test]
fn tenants_and_limits_reach_a_mount_in_the_background_and_of_fstab() {
    need_fuse();
    let script = r#"
        ln -s "$SANDBOX/slackwater" /sbin/mount.slackwater
        mkdir other
        # The refusal of a further mount names the options of the process.
        $MOUNT --tenant-by uid --tenant-limit uid:1=1MiB -o tenant-limit=uid:2=8192
        fails 3 ./slackwater mount source other --tenant-by cgroup --tenant-limit uid:1=2MiB --tenant-limit uid:2=2MiB
        ./slackwater umount mount
        ended
        mount -t slackwater source mount -o cache=32MiB,tenant-by=volume,tenant-limit=volume=3MiB
        fails 3 ./slackwater mount source other --tenant-by uid --tenant-limit volume=2MiB
        umount mount
        ended
    "#;
    let words = [
        "--tenant-by is cgroup here, and uid there",
        "--tenant-limit uid:1 is 2.0 MiB (2097152 bytes) here, and 1.0 MiB (1048576 bytes) there",
        "--tenant-limit uid:2 is 2.0 MiB (2097152 bytes) here, and 8.0 KiB (8192 bytes) there",
        "--tenant-by is uid here, and volume there",
        "--tenant-limit volume is 2.0 MiB (2097152 bytes) here, and 3.0 MiB (3145728 bytes) there",
    ];
    Sandbox::new().run_as_root(script).expect(0, &words);
}

/// Nothing else would write the data back within an hour.
#[test]
fn dontcache_writes_are_written_back_at_once() {
    need_fuse();
    let tenant = ["--tenant-by", "uid", "--tenant-dontcache", "uid:0=on"];
    for words in [&["--dontcache"][..], &["-o", "dontcache"], &tenant, &["-o", "tenant-dontcache=volume=on"]] {
        let scratch = Scratch::new();
        let (source, mountpoint) = scratch.pair("a");
        let mut mount = scratch.mount(&source, &mountpoint, &[&["--dirty-expire", "1h"], words].concat());
        fs::write(mountpoint.join("a"), bytes(3, 100_000)).unwrap();
        wait_until("it is in the source", || fs::read(source.join("a")).is_ok_and(|read| read == bytes(3, 100_000)));
        scratch.umount(&mountpoint);
        mount.wait().expect(0, &["everything is written back"]);
    }
}

#[test]
fn dontcache_tenants_must_be_valid() {
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let line = ["mount", source.to_str().unwrap(), mountpoint.to_str().unwrap()];
    for (by, word, why) in [
        ("uid", "nobody=on", "uid:1000"),
        ("volume", "uid:0=on", "written as volume"),
        ("uid", "uid:0=1", "neither on nor off"),
        ("uid", "uid:0", "/containers/backup=on"),
    ] {
        scratch.run([&line[..], &["--tenant-by", by, "--tenant-dontcache", word]].concat()).expect(2, &[why]);
    }
}
