//! Make, mount, write, unmount, and mount again.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use crate::rig::{Scratch, need_fuse, run};
use crate::store::stores;

/// Makes a tree with one of everything.
fn write_tree(root: &Path) {
    fs::create_dir_all(root.join("dir/deeper")).unwrap();
    fs::write(root.join("dir/small"), "small\n").unwrap();
    fs::write(root.join("large"), large()).unwrap();
    fs::hard_link(root.join("dir/small"), root.join("dir/link")).unwrap();
    symlink("dir/small", root.join("symlink")).unwrap();
    fs::set_permissions(root.join("large"), fs::Permissions::from_mode(0o640)).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"end", 100 << 20).unwrap();
    fs::write(root.join("gone"), "x").unwrap();
    fs::rename(root.join("gone"), root.join("dir/renamed")).unwrap();
    fs::write(root.join("removed"), "x").unwrap();
    fs::remove_file(root.join("removed")).unwrap();
}

fn large() -> Vec<u8> {
    (0..20_u32 << 18).flat_map(u32::to_le_bytes).collect()
}

#[track_caller]
fn check_tree(root: &Path) {
    let mut names: Vec<_> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["dir", "large", "sparse", "symlink"]);
    assert_eq!(fs::read(root.join("symlink")).unwrap(), b"small\n");
    assert_eq!(fs::read(root.join("dir/renamed")).unwrap(), b"x");
    let [small, link] = ["small", "link"].map(|name| fs::metadata(root.join("dir").join(name)).unwrap());
    assert!(small.ino() == link.ino() && small.nlink() == 2);
    assert!(fs::read(root.join("large")).unwrap() == large());
    assert_eq!(fs::metadata(root.join("large")).unwrap().mode() & 0o7777, 0o640);
    let mut sparse = File::open(root.join("sparse")).unwrap();
    assert!(sparse.metadata().unwrap().blocks() * 512 < 1 << 20, "the hole takes no space");
    sparse.seek(SeekFrom::Start((100 << 20) - 2)).unwrap();
    let mut end = String::new();
    sparse.read_to_string(&mut end).unwrap();
    assert_eq!(end, "\0\0end");
}

#[test]
fn a_volume_keeps_a_tree_from_mount_to_mount() {
    need_fuse();
    let scratch = Scratch::new();
    for store in stores(&scratch) {
        let [mountpoint] = store.mountpoints(&scratch);
        store.mkfs(&scratch);
        let mut mount = store.mount(&scratch, &mountpoint, &[]);
        assert!(mount.announcement.contains(&format!("Mounted {} at", store.url)), "{}", mount.announcement);
        write_tree(&mountpoint);
        check_tree(&mountpoint);
        scratch.umount(&mountpoint);
        mount.wait().expect(0, &["everything is written back to", &store.url]);
        assert_eq!(store.left(), Vec::<String>::new(), "arena and local log are removed");
        store.fsck(&scratch);

        let mut mount = store.mount(&scratch, &mountpoint, &[]);
        check_tree(&mountpoint);
        scratch.umount(&mountpoint);
        mount.wait().expect(0, &[]);
    }
}

#[test]
fn a_volume_can_be_mounted_in_the_background_and_by_mount8() {
    need_fuse();
    let scratch = Scratch::new();
    for store in stores(&scratch) {
        let [mountpoint] = store.mountpoints(&scratch);
        store.mkfs(&scratch);
        let background = store.mount_command(&scratch, &mountpoint, &["--background", "--upload-limit", "50MiB"]);
        run(background).expect(0, &["Unmount with:"]);
        fs::write(mountpoint.join("file"), "1").unwrap();
        scratch.umount(&mountpoint);

        let arena = store.arena("helper");
        let options = format!("cache=64MiB,arena={},nodev", arena.display());
        let mut helper = store.command(&scratch, &[]);
        // The command acts as the helper of mount(8) by its name.
        std::os::unix::process::CommandExt::arg0(&mut helper, "mount.slackwater");
        helper.args([&store.url, mountpoint.to_str().unwrap(), "-o", &options]);
        crate::rig::run(helper).expect(0, &[]);
        assert_eq!(fs::read(mountpoint.join("file")).unwrap(), b"1");
        scratch.umount(&mountpoint);
    }
}

#[test]
fn the_mount_table_and_status_show_the_url_and_no_secret() {
    need_fuse();
    let scratch = Scratch::new();
    for store in stores(&scratch) {
        let [mountpoint] = store.mountpoints(&scratch);
        let shown = |place: &str, text: &str| {
            assert!(text.contains(&store.url), "{place}: {text}");
            if let Some(secret) = store.variable("AWS_SECRET_ACCESS_KEY") {
                assert!(!text.contains(secret), "{place}: {text}");
            }
        };
        store.mkfs(&scratch);
        let mut mount = store.mount(&scratch, &mountpoint, &[]);
        let mut file = File::create(mountpoint.join("file")).unwrap();
        file.write_all(b"x").unwrap();
        file.sync_all().unwrap();
        drop(file);
        shown("announcement", &mount.announcement);
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = mounts.lines().find(|line| line.contains(mountpoint.to_str().unwrap())).unwrap();
        assert!(line.starts_with(&format!("{} ", store.url)), "{line}");
        shown("command line", &fs::read_to_string(format!("/proc/{}/cmdline", mount.process.0.id())).unwrap());
        let status = scratch.run(["status", mountpoint.to_str().unwrap()]);
        status.expect(0, &["object store: last commit", "requests:", "uploads in flight"]);
        shown("status", &status.text);
        let json = scratch.run(["status", "--json", mountpoint.to_str().unwrap()]);
        json.expect(0, &["\"role\": \"writer\"", "\"puts\":", "\"last_commit_ms\":"]);
        shown("JSON", &json.text);
        shown("top", &scratch.run(["top", "--once", "--json", "--interval", "100ms"]).text);
        let registry = fs::read_dir(scratch.path.join("run")).unwrap().map(|entry| entry.unwrap().path());
        let entry = registry.into_iter().find(|path| path.extension().is_some_and(|end| end == "json")).unwrap();
        shown("registry", &fs::read_to_string(entry).unwrap());
        scratch.umount(&mountpoint);
        shown("the end", &mount.wait().text);
    }
}

#[test]
fn a_store_in_memory_needs_no_mkfs() {
    need_fuse();
    let scratch = Scratch::new();
    let mountpoint = scratch.dir("a", 0o755);
    let mut mount = scratch.mount(Path::new("memory:try"), &mountpoint, &[]);
    write_tree(&mountpoint);
    check_tree(&mountpoint);
    scratch.umount(&mountpoint);
    mount.wait().expect(0, &[]);
}
