//! A source that is itself a FUSE file system: another mount of ours. It forgets files that no process has open.

use std::fs::{self, File};
use std::io::Write;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::bytes;
use crate::rig::{Scratch, need_fuse};

#[test]
fn a_killed_mount_process_loses_nothing() {
    need_fuse();
    let scratch = Scratch::new();
    let (base, middle) = scratch.pair("base");
    let top = scratch.dir("top", 0o755);
    let server = scratch.mount(&base, &middle, &[]);
    let mut upper = scratch.mount(&middle, &top, &["--dirty-expire", "1h"]);
    fs::create_dir_all(top.join("dir/below")).unwrap();
    let names: Vec<_> = (0..20).map(|nth| format!("dir/below/{nth}")).chain(["at the root".to_owned()]).collect();
    for (seed, name) in names.iter().enumerate() {
        fs::write(top.join(name), bytes(seed as u64, 50_000)).unwrap();
    }
    // A removed file, whose data is of no use to any program.
    let mut removed = File::create(top.join("removed")).unwrap();
    removed.write_all(&bytes(1, 8192)).unwrap();
    fs::remove_file(top.join("removed")).unwrap();
    upper.kill();
    drop((removed, upper));
    // Makes the kernel forget all of them, and so the server.
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();

    let again = scratch.mount(&middle, &top, &[]);
    assert_eq!(again.said("slackwater-conflict"), 0, "no file was changed in the source");
    let check = |dir: &std::path::Path| {
        for (seed, name) in names.iter().enumerate() {
            assert!(fs::read(dir.join(name)).unwrap() == bytes(seed as u64, 50_000), "{name} in {}", dir.display());
        }
    };
    check(&top);
    check(&middle);
    scratch.umount(&top);
    drop(again);
    scratch.umount(&middle);
    drop(server);
    check(&base);
}

/// The lower mount comes first: its data is written back, and then that of the upper one.
#[test]
fn p09_stacked_mounts_that_both_died_are_recovered_from_the_bottom() {
    need_fuse();
    let scratch = Scratch::new();
    let (base, middle) = scratch.pair("base");
    let top = scratch.dir("top", 0o755);
    fs::create_dir(base.join("dir")).unwrap();
    let mut server = scratch.mount(&base, &middle, &["--dirty-expire", "1h"]);
    let mut upper = scratch.mount(&middle, &top, &["--dirty-expire", "1h"]);
    fs::write(middle.join("lower"), bytes(1, 50_000)).unwrap();
    fs::write(top.join("dir/upper"), bytes(2, 50_000)).unwrap();
    server.process.0.kill().unwrap();
    upper.process.0.kill().unwrap();
    server.process.wait();
    upper.process.wait();
    let (base_name, middle_name) = (base.to_str().unwrap(), middle.to_str().unwrap());
    let refused = scratch.run(["mount", middle_name, top.to_str().unwrap(), "--cache", "32MiB"]);
    refused.expect(1, &["is on a mount whose process died", &format!("slackwater mount {base_name} {middle_name}")]);
    drop((server, upper));

    // Another mount comes in between, which may get the device number of the first.
    let (apart, apart_point) = scratch.pair("apart");
    let between = scratch.mount(&apart, &apart_point, &["--cache", "16MiB"]);
    let server = scratch.mount(&base, &middle, &[]);
    assert!(fs::read(middle.join("lower")).unwrap() == bytes(1, 50_000));
    let again = scratch.mount(&middle, &top, &[]);
    assert_eq!(again.said("slackwater-conflict"), 0, "no file was changed in the source");
    assert!(fs::read(top.join("dir/upper")).unwrap() == bytes(2, 50_000));
    assert!(fs::read(top.join("lower")).unwrap() == bytes(1, 50_000));
    for point in [&top, &middle, &apart_point] {
        scratch.umount(point);
    }
    drop((again, server, between));
    assert!(fs::read(base.join("dir/upper")).unwrap() == bytes(2, 50_000));
}

/// The kernel gives the device number of a removed FUSE mount to the next one, and the inode numbers of our roots and
/// first files may be the same.
#[test]
fn another_source_at_the_same_path_gets_no_data_of_the_first() {
    need_fuse();
    let scratch = Scratch::new();
    let (first, middle) = scratch.pair("base");
    let (second, top) = scratch.pair("other");
    for base in [&first, &second] {
        mount("tmpfs", base, "tmpfs", MountFlags::empty(), None).unwrap();
        fs::write(base.join("file"), "as it was").unwrap();
    }
    let server = scratch.mount(&first, &middle, &[]);
    let mut upper = scratch.mount(&middle, &top, &["--dirty-expire", "1h"]);
    fs::write(top.join("file"), bytes(1, 100_000)).unwrap();
    upper.kill();
    drop(upper);
    // Removes what the crash left there, unless the fixture has done so.
    let _ = unmount(&top, UnmountFlags::DETACH);
    scratch.umount(&middle);
    drop(server);

    let server = scratch.mount(&second, &middle, &[]);
    let refused = scratch.run(["mount", middle.to_str().unwrap(), top.to_str().unwrap(), "--cache", "32MiB"]);
    refused.expect(1, &["unwritten", "remounted", "mv "]);
    scratch.umount(&middle);
    drop(server);
    assert_eq!(fs::read(second.join("file")).unwrap(), b"as it was");
}
