//! fsck and gc on volumes that are not mounted.

use std::fs;
use std::path::{Path, PathBuf};

use crate::rig::{Scratch, need_fuse};
use crate::store::{Store, stores};

/// All files below a directory.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}

/// A volume with a large and a small file.
fn filled(scratch: &Scratch, store: &Store, name: &str) {
    let mountpoint = scratch.dir(name, 0o755);
    store.mkfs(scratch);
    let mut mount = store.mount(scratch, &mountpoint, &[]);
    fs::write(mountpoint.join("large"), vec![7; 4 << 20]).unwrap();
    fs::write(mountpoint.join("small"), "small").unwrap();
    scratch.umount(&mountpoint);
    mount.wait().expect(0, &[]);
}

#[test]
fn fsck_statuses_tell_clean_from_damaged_volumes() {
    need_fuse();
    let scratch = Scratch::new();
    let store = Store::directory(&scratch);
    filled(&scratch, &store, "a");
    store.run(&scratch, &["fsck", &store.url]).expect(0, &["2 files", "No errors."]);
    let json = store.run(&scratch, &["fsck", &store.url, "--json"]);
    json.expect(0, &["\"files\": 2", "\"errors_left\": 0", "\"findings\": []"]);

    let segments = files_below(&store.objects.clone().unwrap().join("seg"));
    let largest = segments.iter().max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let whole = fs::read(largest).unwrap();
    let mut damaged = whole.clone();
    damaged[1000] ^= 1;
    fs::write(largest, &damaged).unwrap();
    store.run(&scratch, &["fsck", &store.url, "--data"]).expect(4, &["ERROR", "large"]);
    fs::remove_file(largest).unwrap();
    let name = largest.file_name().unwrap().to_str().unwrap();
    store.run(&scratch, &["fsck", &store.url]).expect(4, &["ERROR", name, "--repair"]);
    let json = store.run(&scratch, &["fsck", &store.url, "--json"]);
    json.expect(4, &["\"is_repaired\": false"]);
    fs::write(largest, &whole).unwrap();
    store.fsck(&scratch);
}

#[test]
fn a_writer_can_be_checked_but_not_collected() {
    need_fuse();
    let scratch = Scratch::new();
    for store in stores(&scratch) {
        let [mountpoint] = store.mountpoints(&scratch);
        store.mkfs(&scratch);
        let mut mount = store.mount(&scratch, &mountpoint, &[]);
        fs::write(mountpoint.join("large"), vec![7; 4 << 20]).unwrap();
        scratch.run(["sync", mountpoint.to_str().unwrap()]).expect(0, &[]);
        store.run(&scratch, &["fsck", &store.url]).expect(0, &["No errors."]);
        let refused = store.run(&scratch, &["fsck", &store.url, "--repair"]);
        let pid = format!("pid {}", mount.process.0.id());
        refused.expect(8, &[&pid, "a check without --repair does not"]);
        store.run(&scratch, &["gc", &store.url]).expect(3, &["is in use by", &pid, "by itself"]);
        assert!(fs::read(mountpoint.join("large")).unwrap() == vec![7; 4 << 20]);
        scratch.umount(&mountpoint);
        mount.wait().expect(0, &[]);
        store.run(&scratch, &["gc", &store.url]).expect(0, &["Deleted 0 of"]);
        store.fsck(&scratch);
    }
}

#[test]
fn a_volume_of_a_dead_writer_is_mounted_before_it_is_collected_or_repaired() {
    need_fuse();
    let scratch = Scratch::new();
    let store = Store::directory(&scratch);
    let [mountpoint] = store.mountpoints(&scratch);
    store.mkfs(&scratch);
    store.mount(&scratch, &mountpoint, &[]).kill();
    for (words, code) in [(["gc", &store.url, "--dry-run"], 3), (["fsck", &store.url, "--repair"], 8)] {
        let refused = store.run(&scratch, &words);
        refused.expect(code, &["Mount the volume and unmount it first"]);
        assert!(!refused.text.contains("doctor"), "{}", refused.text);
    }
    let mut mount = store.mount(&scratch, &mountpoint, &[]);
    scratch.umount(&mountpoint);
    mount.wait().expect(0, &[]);
    store.run(&scratch, &["gc", &store.url]).expect(0, &[]);
}

#[test]
fn gc_deletes_what_nothing_uses_and_nothing_else() {
    need_fuse();
    let scratch = Scratch::new();
    let store = Store::directory(&scratch);
    filled(&scratch, &store, "a");
    // A process that died before its commit leaves such an object.
    let objects = store.objects.clone().unwrap();
    let segments = files_below(&objects.join("seg"));
    // Its folder is named after the last digits of its name. The first ones are the time, then comes the writer: here an
    // earlier one, since objects of later writers are kept.
    let name = segments[0].file_name().unwrap().to_str().unwrap();
    let orphan = segments[0].with_file_name(format!("{}00000000{}", &name[..12], &name[20..]));
    fs::copy(&segments[0], &orphan).unwrap();
    store.run(&scratch, &["gc", &store.url]).expect(0, &["Deleted 0 of", "younger than --grace"]);
    store.run(&scratch, &["gc", &store.url, "--grace", "0s", "--dry-run"]).expect(0, &["Would delete 1 of"]);
    assert!(orphan.exists());
    store.run(&scratch, &["gc", &store.url, "--grace", "0s", "--json"]).expect(0, &["\"deleted_objects\": 1"]);
    assert!(!orphan.exists() && segments.iter().all(|path| path.exists()));
    store.fsck(&scratch);
}
