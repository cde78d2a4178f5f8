//! How requests reach the process of a mount: over io_uring where that is possible, or over /dev/fuse.

use std::fs;
use std::path::Path;

use crate::rig::{Mount, Scratch, need_fuse};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Whether the kernel has io_uring for FUSE, and its administrator has switched it on.
fn is_on() -> bool {
    fs::read_to_string(SWITCH).is_ok_and(|value| value.trim() == "Y")
}

/// The transport of the only mount, and why it is not io_uring.
fn transport(scratch: &Scratch) -> (String, String) {
    let status = scratch.run(["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status.text).unwrap();
    let mount = &status["mounts"][0];
    let text = |key: &str| mount[key].as_str().unwrap_or_default().to_owned();
    (text("transport"), text("no_uring"))
}

/// Writes and reads through the mount.
fn use_it(mount: Mount, scratch: &Scratch, mountpoint: &Path) {
    fs::write(mountpoint.join("file"), vec![7; 3 << 20]).unwrap();
    assert_eq!(fs::read(mountpoint.join("file")).unwrap(), vec![7; 3 << 20]);
    fs::remove_file(mountpoint.join("file")).unwrap();
    scratch.umount(mountpoint);
    drop(mount);
}

#[test]
fn io_uring_is_used_where_it_is_possible() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mount = scratch.mount(&source, &mountpoint, &[]);
    let shown = scratch.run(["status"]).text;
    match transport(&scratch) {
        (transport, _) if is_on() => {
            assert_eq!(transport, "uring");
            assert!(shown.contains("requests come over io_uring"), "{shown}");
        }
        (transport, why) => {
            assert!(transport == "dev" && why.contains(SWITCH), "{transport}: {why}");
            assert!(shown.contains(&format!("requests come over /dev/fuse; io_uring: {why}")), "{shown}");
        }
    }
    use_it(mount, &scratch, &mountpoint);
}

#[test]
fn the_device_can_be_chosen() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mount = scratch.mount(&source, &mountpoint, &["--transport", "dev"]);
    assert_eq!(transport(&scratch).0, "dev");
    assert!(!scratch.run(["status"]).text.contains("requests come over io_uring"));
    use_it(mount, &scratch, &mountpoint);
}

#[test]
fn a_mount_that_must_use_io_uring_does_or_fails() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    if is_on() {
        let mount = scratch.mount(&source, &mountpoint, &["-o", "transport=uring"]);
        assert_eq!(transport(&scratch), ("uring".to_owned(), String::new()));
        return use_it(mount, &scratch, &mountpoint);
    }
    let [source, target] = [&source, &mountpoint].map(|path| path.to_str().unwrap());
    let arena = scratch.arena("a");
    let refused = scratch.run([
        "mount",
        source,
        target,
        "--cache",
        "16MiB",
        "--arena",
        arena.to_str().unwrap(),
        "--transport",
        "uring",
    ]);
    refused.expect(1, &["echo Y >", SWITCH, "without --transport uring"]);
    assert!(!fs::read_to_string("/proc/self/mounts").unwrap().contains(target) && !arena.exists());
}
