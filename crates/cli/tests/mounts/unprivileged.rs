//! Mounts by users other than root: through fusermount3, and without handles that lead to files.

use crate::needs;
use crate::rig::need_fuse;
use crate::sandbox::Sandbox;

#[test]
fn a_user_loses_nothing_when_the_mount_process_is_killed() {
    need_fuse();
    if needs::are_missing(&["fusermount3"]) {
        return;
    }
    let script = r#"
        $MOUNT
        mkdir -p mount/deep/er
        echo precious > mount/deep/er/file
        kill -9 $(sed 's/.*"pid":\([0-9]*\).*/\1/' run/*.json)
        while ls mount 2>/dev/null; do :; done
        $MOUNT
        echo "found: $(cat source/deep/er/file)"
        echo more > mount/more
        ./slackwater umount mount
        echo "and $(cat source/more)"
    "#;
    Sandbox::new().run_as_nobody(script).expect(0, &["found: precious", "and more"]);
}

#[test]
fn every_way_to_unmount_writes_a_users_data_back() {
    need_fuse();
    if needs::are_missing(&["fusermount3"]) {
        return;
    }
    let sandbox = Sandbox::new();
    let script = r#"
        for way in './slackwater umount' 'fusermount3 -u' 'umount'; do
            $MOUNT
            mkdir -p mount/deep
            echo "by $way" > "mount/deep/$way"
            head -c 3000000 slackwater > run/large
            cp run/large mount/large
            grep " $SANDBOX/mount fuse.slackwater rw,nosuid,nodev,.*user_id=65534" /proc/self/mounts
            $way mount
            ended
            [ "$(cat "source/deep/$way")" = "by $way" ]
            cmp source/large run/large
        done
        [ "$(stat -c %u source/deep)" = 65534 ]
        ./slackwater status
    "#;
    sandbox.run_as_nobody(&script.replace("/$way\"", "/${way%% *}\"")).expect(0, &["Nothing is mounted"]);
}

#[test]
fn without_fusermount3_a_user_gets_advice_and_loses_nothing() {
    need_fuse();
    if needs::are_missing(&["fusermount3"]) {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.dir_of_nobody("bin", 0o755);
    let script = r#"
        fails 1 env PATH="$SANDBOX/bin" $MOUNT
        ended
        ln -s "$(command -v fusermount3)" bin
        env PATH="$SANDBOX/bin" $MOUNT
        echo one > mount/file
        # Gone while it is mounted.
        rm bin/fusermount3
        fails 1 ./slackwater umount mount
        echo two >> mount/file
        ln -s "$(command -v fusermount3)" bin
        ./slackwater umount mount
        ended
        echo $(cat source/file)
    "#;
    let words = ["cannot find fusermount3", "install fuse3, or become root", "fusermount3 is missing", "one two"];
    sandbox.run_as_nobody(script).expect(0, &words);
}

#[test]
fn a_forbidden_mount_is_refused_with_the_reason_and_leaves_nothing() {
    need_fuse();
    if needs::are_missing(&["fusermount3"]) {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.scratch.dir("others", 0o755);
    sandbox.scratch.dir("closed", 0o700);
    let script = r#"
        fails 1 $MOUNT --allow-other
        fails 1 ./slackwater mount source others --cache 32MiB
        fails 1 ./slackwater mount closed mount --cache 32MiB
        fails 1 ./slackwater mount source closed/mount --cache 32MiB
        ended
        ./slackwater status
    "#;
    let words = [
        "user_allow_other",
        "you must own the mount point",
        "no permission to open the source closed",
        "no permission to open the mount point closed/mount",
        "Nothing is mounted",
    ];
    sandbox.run_as_nobody(script).expect(0, &words);
    let script = r#"
        chmod 600 /dev/fuse
        fails 1 as_nobody $MOUNT
        ended
    "#;
    sandbox.run_as_root(script).expect(0, &["cannot open /dev/fuse", "chmod 666 /dev/fuse"]);
}

#[test]
fn a_user_cannot_unmount_another_users_mount() {
    need_fuse();
    if needs::are_missing(&["fusermount3"]) {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.scratch.dir("other", 0o755);
    let script = r#"
        as_nobody $MOUNT
        echo nobodys | as_nobody tee mount/file
        fails 5 ./slackwater umount mount
        fails 3 ./slackwater mount source other --cache 32MiB
        umount -l mount
        ended
        cat source/file

        $MOUNT
        echo roots > mount/file
        fails 5 as_nobody ./slackwater umount mount
        [ "$(as_nobody cat mount/file)" = roots ]
        ./slackwater umount mount
        ended
        cat source/file
    "#;
    let words = ["of another user", "with the same SLACKWATER_RUNTIME_DIR", "is locked by", "nobodys", "roots"];
    sandbox.run_as_root(script).expect(0, &words);
}
#[test]
fn a_busy_unmount_names_the_holders_and_force_works_for_a_user() {
    need_fuse();
    if needs::are_missing(&["fusermount3"]) {
        return;
    }
    for more in ["", "--discard --yes"] {
        let script = r#"
            $MOUNT
            echo synced > mount/file
            ./slackwater sync mount
            exec 3>> mount/file
            echo late >&3
            fails 3 ./slackwater umount mount MORE
            echo later >&3
            ./slackwater umount --force mount MORE
            ended
            if (echo too late >&3) 2>/dev/null; then echo "it is still there"; exit 1; fi
            echo $(cat source/file)
        "#;
        let output = Sandbox::new().run_as_nobody(&script.replace("MORE", more));
        output.expect(0, &["is in use by", "(sh): ", "mount/file"]);
        let end = if more.is_empty() { "synced late later" } else { "synced" };
        assert!(output.text.lines().any(|line| line == end), "{}", output.text);
    }
}

/// Where the connection cannot be aborted, it is closed.
#[test]
fn force_without_fusectl_ends_the_volume() {
    need_fuse();
    if needs::are_missing(&["fusermount3"]) {
        return;
    }
    let script = r#"
        $MOUNT
        exec 3> mount/file
        echo one >&3
        fails 3 ./slackwater umount mount
        ./slackwater umount --force mount
        ended
        fails 1 sh -c 'echo two >&3'
        exec 3>&-
        echo $(cat source/file)
    "#;
    let output = Sandbox::new().run_as_nobody_after("umount /sys/fs/fuse/connections", script);
    output.expect(0, &["(sh): ", "one"]);
    assert!(!output.text.contains("one two"), "{}", output.text);
}
