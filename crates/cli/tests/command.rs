//! Invalid uses of the command: exit statuses and messages.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod rig;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rig::{Process, Scratch, UNMOUNT_COPIES, need_fuse, run, slackwater, wait_until};
use rustix::fs::{FlockOperation, flock};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn wrong_arguments_are_a_usage_error() {
    let scratch = Scratch::new();
    scratch.run([] as [&str; 0]).expect(2, &["Usage"]);
    scratch.run(["mount", "/a"]).expect(2, &["MOUNTPOINT"]);
    scratch.run(["frobnicate"]).expect(2, &["frobnicate"]);
    scratch.run(["umount", "/a", "--yes"]).expect(2, &["--discard"]);
    scratch.run(["mount", "/a", "/b", "--foreground", "--background"]).expect(2, &["--background"]);
}

#[test]
fn bad_quantities_are_refused_with_an_example() {
    let scratch = Scratch::new();
    for cache in ["lots", "", "-1", "1.2.3GiB", "5XB"] {
        scratch.run(["mount", "/a", "/b", &format!("--cache={cache}")]).expect(2, &["256MiB"]);
    }
    scratch.run(["mount", "/a", "/b", "--cache=99999999999TiB"]).expect(2, &["64 bits"]);
    for expire in ["30", "soon", "-1s"] {
        scratch.run(["mount", "/a", "/b", &format!("--dirty-expire={expire}")]).expect(2, &["30s"]);
    }
    for ratio in ["0", "101", "x", "-1"] {
        scratch.run(["mount", "/a", "/b", &format!("--dirty-ratio={ratio}")]).expect(2, &["--dirty-ratio"]);
    }
    for (option, words) in [
        ("--tenant-by=group", "not one of cgroup, uid and volume"),
        ("--tenant-limit=64MiB", "/containers/a=64MiB"),
        ("--tenant-limit==64MiB", "no tenant before the limit"),
        ("--tenant-limit=/a=lots", "256MiB"),
        ("-otenant-by=group", "not one of cgroup, uid and volume"),
        ("-otenant-limit=/a", "tenant-limit=/a: not a limit"),
    ] {
        scratch.run(["mount", "/a", "/b", option]).expect(2, &[words]);
    }
    scratch.run(["mount", "/a", "/b", "-o", "cache=lots"]).expect(2, &["cache=lots", "256MiB"]);
    scratch.run(["mount", "/a", "/b", "-o", "cach=1GiB"]).expect(2, &["unknown option cach=1GiB"]);
    scratch.run(["umount", "/a", "--deadline", "60"]).expect(2, &["30s"]);
}

#[test]
fn help_manual_and_completions_are_there() {
    let scratch = Scratch::new();
    scratch.run(["--help"]).expect(0, &["Examples:", "slackwater umount", "4  the deadline passed"]);
    scratch.run(["mount", "--help"]).expect(0, &["--dirty-expire", "5  not mounted"]);
    scratch.run(["man"]).expect(0, &[".TH slackwater", "SLACKWATER UMOUNT"]);
    for shell in ["bash", "zsh", "fish"] {
        scratch.run(["completions", shell]).expect(0, &["slackwater", "umount"]);
    }
}

#[test]
fn commands_report_what_is_not_mounted() {
    let scratch = Scratch::new();
    let dir = scratch.dir("nothing", 0o755);
    scratch.run(["umount", text(&dir)]).expect(5, &["is not mounted", "slackwater status"]);
    scratch.run(["sync", text(&dir)]).expect(5, &["is not mounted"]);
    scratch.run(["status", text(&dir)]).expect(5, &["is not mounted"]);
    scratch.run(["umount", "/nonexistent/x"]).expect(5, &["is not mounted"]);
    scratch.run(["umount", "/proc"]).expect(5, &["not a slackwater mount (proc)", "umount /proc"]);
    scratch.run(["status"]).expect(0, &["Nothing is mounted"]);
    scratch.run(["status", "--json"]).expect(0, &["\"mounts\": []", "\"version\": 1"]);
}

#[test]
fn top_without_a_terminal_says_what_to_do() {
    let scratch = Scratch::new();
    scratch.run(["top"]).expect(2, &["standard output is not one", "top --once"]);
    scratch.run(["top", "--json"]).expect(2, &["--once"]);
    scratch.run(["top", "--once", "--interval", "0s"]).expect(2, &["between 100ms and 1h"]);
    scratch.run(["top", "--once", "--interval", "100ms"]).expect(0, &["Nothing is mounted"]);
    scratch.run(["top", "--once", "--json", "--interval", "100ms"]).expect(0, &["\"volumes\": []", "\"version\": 1"]);
    scratch.run(["top", "--help"]).expect(0, &["--interval", "written_bytes_per_s", "r reverses"]);
}

/// script(1) provides the terminal.
#[test]
fn top_leaves_the_terminal_as_it_was() {
    const ENTERED: &str = "\u{1b}[?1049h";
    const LEFT: &str = "\u{1b}[?1049l";
    for leave in ["q", "\u{3}"] {
        let scratch = Scratch::new();
        let log = scratch.path.join("log");
        let top = format!("stty cols 80 rows 24; {} top; echo left with $?; stty", slackwater());
        let mut script = Command::new("script");
        script.args(["--quiet", "--flush", "--command", &top, text(&log)]);
        script.env("SLACKWATER_RUNTIME_DIR", scratch.path.join("run")).env("TERM", "xterm");
        let mut script = Process::spawn(script.stdin(Stdio::piped()).stdout(Stdio::null()));
        let said = || fs::read(&log).map(|said| String::from_utf8_lossy(&said).into_owned()).unwrap_or_default();
        // Later output contains only what changes on the screen.
        wait_until("the keys are drawn", || said().contains("[q]uit"));
        script.0.stdin.as_mut().unwrap().write_all(leave.as_bytes()).unwrap();
        wait_until("top has ended", || said().contains("left with 0"));
        script.wait();
        let said = said();
        assert!(said.find(ENTERED).unwrap() < said.find(LEFT).unwrap(), "{said:?}");
        assert!(!said.contains("-icanon") && !said.contains("-echo "), "the terminal was not restored: {said}");
    }
}

#[test]
fn doctor_checks_everything() {
    need_fuse();
    let scratch = Scratch::new();
    let mut doctor = scratch.command(["doctor"]);
    let temporary = scratch.dir("tmp", 0o700);
    doctor.env("TMPDIR", &temporary);
    let output = run(doctor);
    assert_eq!(output.code, Some(0), "{}", output.text);
    assert!(fs::read_dir(temporary).unwrap().next().is_none(), "the trial mount is gone");
    let looks = ["kernel", "/dev/fuse", "fusermount3", "/dev/shm", "memory", "I/O flusher", "openat2"];
    for look in looks.into_iter().chain(["RWF_DONTCACHE", "cgroups", "sync", "FUSE"]) {
        assert!(output.text.contains(look), "{look}: {}", output.text);
    }
}

#[test]
fn a_kernel_that_is_too_old_is_refused() {
    let old = |program: &std::ffi::OsStr| {
        let mut command = Command::new("setarch");
        command.arg("--uname-2.6").arg(program).stdin(Stdio::null());
        command
    };
    let release = old("uname".as_ref()).arg("-r").output().expect("setarch of util-linux");
    assert!(release.stdout.starts_with(b"2.6"), "setarch makes the kernel report an old version: {release:?}");
    let scratch = Scratch::new();
    let (source, mountpoint) = (scratch.dir("source", 0o755), scratch.dir("mount", 0o755));
    let mount = scratch.command(["mount", text(&source), text(&mountpoint)]);
    let mut command = old(mount.get_program());
    command.args(mount.get_args()).env("SLACKWATER_RUNTIME_DIR", scratch.path.join("run"));
    run(command).expect(1, &["Linux 2.6 is too old", "6.9"]);
    let mut command = old(mount.get_program());
    command.arg("doctor");
    run(command).expect(1, &["FATAL    kernel: ", "Linux 2.6 is too old"]);
}

#[test]
fn a_runtime_directory_open_to_others_is_refused() {
    let scratch = Scratch::new();
    let open = scratch.dir("open", 0o777);
    let mut command = scratch.command(["status"]);
    command.env("SLACKWATER_RUNTIME_DIR", &open);
    run(command).expect(1, &["mode 0700", "SLACKWATER_RUNTIME_DIR"]);
    // As a kubelet makes it for a volume of a pod: no other user can have made anything in it.
    let readable = scratch.dir("readable", 0o755);
    let mut command = scratch.command(["status"]);
    command.env("SLACKWATER_RUNTIME_DIR", &readable);
    run(command).expect(0, &[]);
    assert_eq!(fs::metadata(&readable).unwrap().permissions().mode() & 0o777, 0o700);
    let mut command = scratch.command(["status"]);
    command.env("SLACKWATER_RUNTIME_DIR", "/proc/nonexistent");
    run(command).expect(1, &["cannot make the runtime directory"]);
}

#[test]
fn source_and_mount_point_must_be_separate_directories() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let (source, mountpoint) = (text(&source), text(&mountpoint));
    let file = scratch.path.join("file");
    fs::write(&file, "x").unwrap();
    let missing = scratch.path.join("missing");
    scratch.run(["mount", text(&missing), mountpoint]).expect(1, &["source", "does not exist", "mkdir -p"]);
    scratch.run(["mount", text(&file), mountpoint]).expect(1, &["source", "not a directory"]);
    scratch.run(["mount", source, text(&missing)]).expect(1, &["mount point", "does not exist", "mkdir -p"]);
    scratch.run(["mount", source, text(&file)]).expect(1, &["mount point", "not a directory"]);
    scratch.run(["mount", source, source]).expect(2, &["is the source itself"]);

    let inside = format!("{source}/inside");
    fs::create_dir(&inside).unwrap();
    scratch.run(["mount", source, &inside]).expect(2, &["is inside the source", "elsewhere"]);
    let above = text(&scratch.path);
    scratch.run(["mount", source, above]).expect(2, &["is inside the mount point", "hide it"]);
    // The overlap is found even if the path does not show it.
    let link = scratch.path.join("link");
    std::os::unix::fs::symlink(&inside, &link).unwrap();
    scratch.run(["mount", source, text(&link)]).expect(2, &["is inside the source"]);
    scratch.run(["mount", source, "/proc"]).expect(3, &["is already a mount point", "proc"]);
}

#[test]
fn impossible_caches_are_refused() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let (source, mountpoint) = (text(&source), text(&mountpoint));
    for absurd in ["1TiB", "100TiB", "18446744073709551615"] {
        let refused = scratch.run(["mount", source, mountpoint, "--cache", absurd]);
        refused.expect(2, &["more than the", "smaller --cache"]);
    }
    scratch.run(["mount", source, mountpoint, "--cache", "1MiB"]).expect(2, &["too small", "16.0 MiB"]);
    let on_disk = format!("{source}/arena");
    scratch.run(["mount", source, mountpoint, "--arena", &on_disk]).expect(2, &["tmpfs"]);
    let nowhere = "/dev/shm/nonexistent/x.arena";
    scratch.run(["mount", source, mountpoint, "--arena", nowhere]).expect(1, &["--arena FILE"]);
    // A refused mount leaves nothing.
    scratch.run(["status"]).expect(0, &["Nothing is mounted"]);
    assert_eq!(
        fs::read_dir(scratch.path.join("run")).unwrap().filter(|e| e.as_ref().unwrap().file_name() != "lock").count(),
        0
    );
}

#[test]
fn a_damaged_arena_is_named_and_left_alone() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let arena = scratch.arena("bad");
    fs::write(&arena, [0xa5; 8192]).unwrap();
    fs::set_permissions(&arena, fs::Permissions::from_mode(0o600)).unwrap();
    let mount = ["mount", text(&source), text(&mountpoint), "--arena", text(&arena)];
    scratch.run(mount).expect(1, &["not an arena of this machine", "expected", "nothing was changed", "mv "]);
    assert_eq!(fs::read(&arena).unwrap(), [0xa5; 8192]);
    fs::set_permissions(&arena, fs::Permissions::from_mode(0o644)).unwrap();
    scratch.run(mount).expect(1, &["mode 0600"]);
    fs::remove_file(&arena).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &arena).unwrap();
    scratch.run(mount).expect(1, &["regular file of yours"]);
}

#[test]
fn a_locked_source_is_refused_naming_the_holder() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let lock = fs::File::open(&source).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let own = format!("pid {}", std::process::id());
    scratch.run(["mount", text(&source), text(&mountpoint)]).expect(3, &["is locked by", &own, "--wait"]);
}

#[test]
fn without_the_device_nothing_is_mounted() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let binary = slackwater();
    let mut command = Command::new("unshare");
    let script = format!("{UNMOUNT_COPIES}mount -t tmpfs none /dev && exec \"$0\" mount \"$1\" \"$2\"");
    command.args(["-m", "--propagation", "private", "sh", "-c", &script, binary, text(&source), text(&mountpoint)]);
    run(command).expect(1, &["/dev/fuse does not exist", "modprobe fuse"]);
}

#[test]
fn without_permission_nothing_is_mounted() {
    need_fuse();
    let scratch = Scratch::new();
    let binary = scratch.command_for_all();
    let (source, mountpoint) = scratch.pair("a");
    let as_nobody = |source: &Path| {
        let mut command = Command::new(&binary);
        command.arg("mount").args([source, &mountpoint]).uid(65534).gid(65534).stdin(Stdio::null()).current_dir("/");
        command.env("SLACKWATER_RUNTIME_DIR", "/tmp/slackwater-of-nobody");
        run(command)
    };
    // Which error comes first depends on the mode of /dev/fuse and on whether fuse3 is installed.
    let output = as_nobody(&source);
    assert_eq!(output.code, Some(1), "{}", output.text);
    let private = scratch.dir("private", 0o700);
    let output = as_nobody(&private);
    assert_eq!(output.code, Some(1), "{}", output.text);
    assert!(
        ["permission", "Permission", "fusermount3"].iter().any(|word| output.text.contains(word)),
        "{}",
        output.text
    );
    let _ = fs::remove_dir_all("/tmp/slackwater-of-nobody");
}

#[test]
fn the_mount_helper_has_the_options_and_statuses_of_mount8() {
    need_fuse();
    let scratch = Scratch::new();
    let helper = scratch.path.join("mount.slackwater");
    std::os::unix::fs::symlink(slackwater(), &helper).unwrap();
    let helper = |arguments: &[&str]| {
        let mut command = Command::new(&helper);
        command.args(arguments).env("SLACKWATER_RUNTIME_DIR", scratch.path.join("run")).stdin(Stdio::null());
        run(command)
    };
    helper(&["/a"]).expect(1, &["two directories"]);
    helper(&["/a", "/b", "-o", "cache=much"]).expect(1, &["cache=much"]);
    helper(&["/nonexistent", "/b", "-o", "rw,nofail"]).expect(32, &["does not exist"]);
    helper(&["/nonexistent", "/b", "-f"]).expect(0, &[]);
}
