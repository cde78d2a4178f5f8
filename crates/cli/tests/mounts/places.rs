//! A volume at several mount points, in one mount namespace or in several.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::thread;
use std::time::{Duration, Instant};

use crate::bytes;
use crate::hung_source::Tower;
use crate::rig::{Scratch, need_fuse, wait_until};
use crate::sandbox::Sandbox;

/// Mounts the same source at `mount` and at `other`.
const TWICE: &str = r#"
    mkdir other third
    $MOUNT
    ./slackwater mount source other --cache 32MiB
"#;

#[test]
fn a_source_is_mounted_twice_and_each_unmount_takes_one_mount_point() {
    need_fuse();
    let script = r#"
        [ $(stat -c %d mount) = $(stat -c %d other) ]
        echo one > mount/file
        [ "$(cat other/file)" = one ]
        echo two >> other/file
        [ "$(cat mount/file)" = "one
two" ]
        ./slackwater status other | head -1
        [ "$(./slackwater status other | head -2)" = "$(./slackwater status mount | head -2)" ]
        # In use at one mount point only.
        exec 5>>other/file
        fails 3 ./slackwater umount other
        ./slackwater umount mount
        [ -z "$(ls mount)" ]
        [ "$(cat source/file | wc -l)" = 2 ]
        fails 5 ./slackwater umount mount
        exec 5>&-
        echo three >> other/file
        # In whatever order, and at the first mount point again.
        $MOUNT
        ./slackwater mount source third
        ./slackwater umount other third
        [ "$(wc -l < mount/file)" = 3 ]
        ./slackwater umount mount
        ended
        echo $(cat source/file)
    "#;
    let words = ["one more mount point of the volume", "mount, ", "is in use by", "is not mounted", "one two three"];
    Sandbox::new().run_as_root(&format!("{TWICE}{script}")).expect(0, &words);
}

#[test]
fn both_unmounted_at_once_end_the_volume() {
    need_fuse();
    let script = r#"
        echo one > mount/file
        ./slackwater umount mount other
        ended
        [ -z "$(ls other)" ]
        cat source/file
    "#;
    Sandbox::new().run_as_root(&format!("{TWICE}{script}")).expect(0, &["one"]);
}

#[test]
fn options_that_contradict_are_named_and_others_are_not_needed() {
    need_fuse();
    let script = r#"
        mkdir other
        ./slackwater mount source mount --cache 32MiB --dirty-ratio 30 --background
        fails 3 ./slackwater mount source other --cache 64MiB --read-only
        fails 3 ./slackwater mount source other --dirty-ratio 20
        fails 3 ./slackwater mount source other --tenant-limit uid:1=64MiB
        ./slackwater mount source other --dirty-ratio 30 --background
        ./slackwater umount other mount
        ended
    "#;
    let words = [
        "is already mounted at",
        "--cache is 64.0 MiB (67108864 bytes) here, and 32.0 MiB (33554432 bytes) there",
        "--read-only is on here, and off there",
        "--dirty-ratio is 20 here, and 30 there",
        "--tenant-limit uid:1 is 64.0 MiB (67108864 bytes) here, and none there",
    ];
    Sandbox::new().run_as_root(script).expect(0, &words);
}

/// A process whose own mount namespace keeps a copy of what is mounted.
const HOLDER: &str = r#"
    unshare --mount --propagation private sh -c 'echo > run/ready; exec sleep 1000' & holder=$!
    while ! [ -e run/ready ]; do sleep 0.02; done
"#;

#[test]
fn a_volume_in_a_forgotten_namespace_is_mounted_again_at_once() {
    need_fuse();
    let script = r#"
        echo one > mount/file
        fails 3 ./slackwater umount mount
        $MOUNT
        echo two >> mount/file
        echo $(cat /proc/$holder/root/$SANDBOX/mount/file)
        echo three >> /proc/$holder/root/$SANDBOX/mount/file
        [ "$(wc -l < mount/file)" = 3 ]
        # The copy is still there, and the mount works as before.
        fails 3 ./slackwater umount mount
        $MOUNT
        kill $holder
        wait $holder || true
        ./slackwater umount mount
        ended
        echo $(cat source/file)
    "#;
    let script = format!("$MOUNT\n{HOLDER}{script}");
    let words = ["in use elsewhere", "one more mount point of the volume", "one two", "one two three"];
    Sandbox::new().run_as_root(&script).expect(0, &words);
}

/// No mount of the volume is left, so no copy could be made.
#[test]
fn a_volume_that_only_open_files_keep_is_mounted_again() {
    need_fuse();
    let script = r#"
        $MOUNT
        exec 5>mount/file
        umount --lazy mount
        $MOUNT
        echo one >&5
        cat mount/file
        exec 5>&-
        ./slackwater umount mount
        ended
    "#;
    Sandbox::new().run_as_root(script).expect(0, &["one more mount point of the volume", "one"]);
}

#[test]
fn two_namespaces_see_one_volume_and_unmount_it_alone() {
    need_fuse();
    let script = r#"
        inside() { nsenter --mount=/proc/$holder/ns/mnt sh -c 'cd "$SANDBOX" && exec "$@"' inside "$@"; }
        $MOUNT
        inside ./slackwater mount source mount
        [ $(stat -c %d mount) = $(inside stat -c %d mount) ]
        echo one > mount/file
        [ "$(inside cat mount/file)" = one ]
        inside sh -c 'echo two >> mount/file'
        [ "$(wc -l < mount/file)" = 2 ]
        ./slackwater umount mount
        inside sh -c 'echo three >> mount/file'
        inside ./slackwater status mount
        $MOUNT
        [ "$(wc -l < mount/file)" = 3 ]
        inside ./slackwater umount mount
        echo four >> mount/file
        inside ./slackwater mount source mount
        ./slackwater umount mount
        # The last one is in the other namespace.
        inside ./slackwater umount mount
        ended
        kill $holder
        echo $(cat source/file)
    "#;
    Sandbox::new().run_as_root(&format!("{HOLDER}{script}")).expect(0, &["one two three four"]);
}

#[test]
fn force_and_sigterm_end_a_volume_at_all_its_mount_points() {
    need_fuse();
    for end in
        ["./slackwater umount other --force", "kill $(sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/' /run/slackwater/*.json)"]
    {
        let script = format!(
            "{TWICE}{HOLDER}
            echo one > mount/file
            exec 5>>other/file
            {end}
            ended
            [ -z \"$(ls other)\" ]
            fails 2 ls /proc/$holder/root/$SANDBOX/other
            kill $holder
            cat source/file
            exec 5>&-
            $MOUNT
            ./slackwater umount mount
            ended"
        );
        Sandbox::new().run_as_root(&script).expect(0, &["one"]);
    }
}

/// The kernel has no control file system there, which the unmount could use to abort the connection.
#[test]
fn force_ends_a_volume_that_a_namespace_of_its_user_holds() {
    need_fuse();
    let preparation = "umount /sys/fs/fuse/connections";
    for end in ["./slackwater umount mount --force", "kill $(sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/' run/*.json)"] {
        let script = format!(
            "$MOUNT
            unshare --user --map-root-user --mount sh -c 'echo > run/ready; exec sleep 1000' & holder=$!
            while ! [ -e run/ready ]; do sleep 0.02; done
            echo one > mount/file
            fails 3 ./slackwater umount mount
            {end}
            ended
            kill $holder
            cat source/file"
        );
        Sandbox::new().run_as_nobody_after(preparation, &script).expect(0, &["in use elsewhere", "one"]);
    }
}

/// A writer at one mount point and a reader at the other always agree.
#[test]
fn writers_and_readers_at_two_mount_points_agree() {
    const PAGE: usize = 4096;
    const PAGES: u64 = 64;
    need_fuse();
    let scratch = Scratch::new();
    let (source, first) = scratch.pair("a");
    let second = scratch.dir("second", 0o755);
    let mount = scratch.mount(&source, &first, &[]);
    scratch.run(["mount", source.to_str().unwrap(), second.to_str().unwrap()]).expect(0, &["one more mount point"]);
    assert_eq!(fs::metadata(&first).unwrap().dev(), fs::metadata(&second).unwrap().dev());
    let end = Instant::now() + Duration::from_secs(2);
    thread::scope(|scope| {
        for (at, (here, there)) in [(&first, &second), (&second, &first)].into_iter().enumerate() {
            let name = format!("file{at}");
            scope.spawn(move || {
                let writer = File::create(here.join(&name)).unwrap();
                let reader = File::open(there.join(&name)).unwrap();
                let mut read = vec![0; PAGE];
                for round in 0.. {
                    let (page, place) = (bytes(round, PAGE), round * 7 % PAGES * PAGE as u64);
                    writer.write_all_at(&page, place).unwrap();
                    reader.read_exact_at(&mut read, place).unwrap();
                    assert!(read == page, "round {round}");
                    if round % 16 == 0 {
                        let fresh = fs::read(there.join(&name)).unwrap();
                        assert!(fresh[place as usize..][..PAGE] == page, "round {round}, through a new descriptor");
                    }
                    if Instant::now() > end {
                        break;
                    }
                }
            });
        }
    });
    scratch.umount(&first);
    scratch.umount(&second);
    drop(mount);
}

#[test]
fn park_of_one_mount_point_leaves_the_data_to_the_volume() {
    need_fuse();
    let scratch = Scratch::new();
    let mut tower = Tower::with(&scratch, &["--cache", "32MiB"]);
    let second = scratch.dir("second", 0o755);
    let words = ["mount", tower.middle.to_str().unwrap(), second.to_str().unwrap()];
    scratch.run(words).expect(0, &["one more mount point"]);
    fs::write(second.join("file"), bytes(1, 1 << 20)).unwrap();
    tower.server.stop_at_rest();
    let umount = ["umount", second.to_str().unwrap(), "--deadline", "1s"];
    scratch.run_when_free(umount).expect(4, &["still mounted"]);
    scratch.run_when_free([&umount[..], &["--park"]].concat()).expect(0, &[]);
    assert!(fs::read_dir(&second).unwrap().next().is_none(), "the mount point is free");
    // No program uses the last one.
    let park = ["umount", tower.top.to_str().unwrap(), "--deadline", "1s", "--park"];
    scratch.run_when_free(park).expect(0, &["1.0 MiB could not be written back", "is kept in", "to write it back"]);
    tower.upper.wait().expect(7, &["by force"]);
    tower.server.process.signal(rustix::process::Signal::CONT);
    // A thread of it was in a call of the source until now, and held the arena.
    let arena = scratch.arena("top");
    wait_until("the process is gone", || {
        let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        rustix::fs::flock(fs::File::open(&arena).unwrap(), lock).is_ok()
    });
    let again = scratch.mount(&tower.middle, &tower.top, &[]);
    assert!(fs::read(tower.top.join("file")).unwrap() == bytes(1, 1 << 20));
    scratch.umount(&tower.top);
    drop(again);
    tower.come_down_from_the_middle(&scratch);
}
