//! Restrictions on a mount, as the kernel applies them, however it was mounted.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::rig::{Scratch, need_fuse, run, slackwater};

/// The restrictions of the mount at `mountpoint`, in the kernel's order.
fn restrictions(mountpoint: &Path) -> Vec<String> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point = mountpoint.to_str().unwrap();
    let mut fields = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = fields.rfind(|fields| fields[4] == point).unwrap();
    let known = ["ro", "nosuid", "nodev", "noexec"];
    mount[5].split(',').filter(|option| known.contains(option)).map(str::to_owned).collect()
}

#[test]
fn restrictions_reach_the_kernel_from_the_foreground_the_background_and_the_helper() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let (from, to) = (source.to_str().unwrap(), mountpoint.to_str().unwrap());
    let arena = scratch.arena("a");
    let arena = arena.to_str().unwrap();
    let all = ["ro", "nosuid", "nodev", "noexec"];
    let cases: [(&[&str], &[&str]); 6] = [
        (&[], &[]),
        (&["--nosuid"], &["nosuid"]),
        (&["--read-only", "--nosuid", "--nodev", "--noexec"], &all),
        (&["-o", "ro,noexec"], &["ro", "noexec"]),
        (&["-o", "user,ro"], &all),
        (&["-o", "users,exec"], &["nosuid", "nodev"]),
    ];
    for (words, expected) in cases {
        let foreground = scratch.mount(&source, &mountpoint, words);
        assert_eq!(restrictions(&mountpoint), expected, "{words:?} in the foreground");
        scratch.umount(&mountpoint);
        drop(foreground);
        let line = ["mount", "--background", "--cache", "32MiB", "--arena", arena, from, to];
        scratch.run(line.iter().chain(words)).expect(0, &["Mounted"]);
        assert_eq!(restrictions(&mountpoint), expected, "{words:?} in the background");
        scratch.umount(&mountpoint);
    }
    let helper = scratch.path.join("mount.slackwater");
    std::os::unix::fs::symlink(slackwater(), &helper).unwrap();
    let cases: [(&str, &[&str]); 4] = [
        ("defaults", &[]),
        ("nosuid,nodev", &["nosuid", "nodev"]),
        ("ro,noexec,nodev,nosuid", &all),
        ("noauto,user", &["nosuid", "nodev", "noexec"]),
    ];
    for (options, expected) in cases {
        let mut command = Command::new(&helper);
        command.args([from, to, "-o", &format!("{options},cache=32MiB,arena={arena}")]).stdin(Stdio::null());
        command.env("SLACKWATER_RUNTIME_DIR", scratch.path.join("run"));
        run(command).expect(0, &[]);
        assert_eq!(restrictions(&mountpoint), expected, "{options} by the helper");
        scratch.umount(&mountpoint);
    }
}
