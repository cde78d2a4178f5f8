//! Bind mounts and other namespaces, of the source and of the mount.

use crate::rig::need_fuse;
use crate::sandbox::Sandbox;

#[test]
fn a_source_is_the_same_through_a_bind_mount() {
    need_fuse();
    let script = r#"
        mkdir bound other source/inside
        mount --bind source bound
        ./slackwater mount bound mount --cache 32MiB --dirty-expire 1h --background
        ./slackwater mount source other --cache 32MiB
        ./slackwater umount other
        fails 3 ./slackwater mount source/inside other --cache 32MiB
        fails 2 ./slackwater mount bound source/inside --cache 32MiB
        head -c 3000000 slackwater > mount/file
        kill -9 $(sed 's/.*"pid":\([0-9]*\).*/\1/' /run/slackwater/*.json)
        while ls mount 2>/dev/null; do :; done
        # What is left is found by the directory, not by its name. Who is killed closes all it has a little later.
        until umount bound 2>/dev/null; do sleep 0.02; done
        $MOUNT
        head -c 3000000 slackwater | cmp - source/file
        ./slackwater umount mount
        ended
    "#;
    let words = ["one more mount point", "is inside", "is inside the source", "2.9 MiB unwritten: writing it back"];
    Sandbox::new().run_as_root(script).expect(0, &words);
}

/// Mounts at `mount`, binds that to `bound`, and unmounts `mount`.
const ELSEWHERE: &str = r#"
    mkdir bound other
    $MOUNT
    echo one > mount/file
    mount --bind mount bound
    fails 3 ./slackwater umount mount
    echo two >> bound/file
    ./slackwater status
"#;

#[test]
fn a_volume_mounted_elsewhere_too_keeps_working_until_the_last_unmount() {
    need_fuse();
    let script = r#"
        fails 3 ./slackwater umount mount
        # Another mount of the source neither fails nor waits.
        ./slackwater mount source other --cache 32MiB
        [ "$(cat other/file | wc -l)" = 2 ]
        fails 3 ./slackwater umount other
        # A file system that is mounted at the same place now stays.
        mount -t tmpfs none mount
        fails 3 ./slackwater umount mount
        umount mount
        echo three >> bound/file
        umount bound
        ended
        echo $(cat source/file)
    "#;
    let words = ["in use elsewhere: by open files", "bound where pid", "one more mount point", "one two three"];
    let output = Sandbox::new().run_as_root(&format!("{ELSEWHERE}{script}"));
    output.expect(0, &words);
    assert!(!output.text.contains("deadline"), "{}", output.text);
}

#[test]
fn force_ends_a_volume_mounted_elsewhere() {
    need_fuse();
    let script = r#"
        ./slackwater umount --force mount
        fails 2 ls bound
        umount bound
        ended
        echo $(cat source/file)
    "#;
    Sandbox::new().run_as_root(&format!("{ELSEWHERE}{script}")).expect(0, &["one two"]);
}

#[test]
fn a_signal_ends_a_volume_mounted_elsewhere() {
    need_fuse();
    let script = r#"
        kill $(sed 's/.*"pid":\([0-9]*\).*/\1/' /run/slackwater/*.json)
        ended
        umount bound
        echo $(cat source/file)
    "#;
    Sandbox::new().run_as_root(&format!("{ELSEWHERE}{script}")).expect(0, &["one two"]);
}

#[test]
fn data_that_discard_could_not_drop_is_not_lost_later() {
    need_fuse();
    let script = r#"
        mkdir bound
        $MOUNT
        echo one > mount/file
        mount --bind mount bound
        fails 3 ./slackwater umount --discard --yes mount
        echo two >> bound/file
        umount bound
        ended
        echo $(cat source/file)
    "#;
    Sandbox::new().run_as_root(script).expect(0, &["would be LOST", "one two"]);
}

#[test]
fn another_namespace_keeps_a_volume() {
    need_fuse();
    let script = r#"
        $MOUNT
        echo one > mount/file
        unshare --mount --propagation private sh -c 'until [ -e run/go ]; do sleep 0.02; done; echo two >> mount/file' &
        until [ "$(readlink /proc/$!/ns/mnt)" != "$(readlink /proc/$$/ns/mnt)" ]; do sleep 0.02; done
        fails 3 ./slackwater umount mount
        touch run/go
        wait $!
        ended
        echo $(cat source/file)
    "#;
    Sandbox::new().run_as_root(script).expect(0, &["in another namespace", "mount where pid", "one two"]);
}
