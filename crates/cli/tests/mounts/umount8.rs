//! umount(8), with this command as its helper: it returns when everything is written back.

use crate::mount8::run;
use crate::needs;
use crate::rig::need_fuse;
use crate::sandbox::Sandbox;

/// More unwritten data than is written back in the time in which umount(8) ends.
const MUCH: &str = r#"
    MUCH=cache=256MiB,dirty-ratio=90,dirty-expire=1h
    head -c 100M /dev/zero | tr '\0' x > run/much
"#;

#[test]
fn umount_returns_when_everything_is_written_back() {
    need_fuse();
    let script = r#"
        for way in 'umount mount' "umount $SANDBOX/mount" 'umount -a -t fuse.slackwater' 'umount -n -R mount'; do
            mount -t slackwater source mount -o "$MUCH"
            cp run/much mount/much
            [ "$(stat -c %b source/much 2> run/absent || echo 0)" -lt 100000 ]
            $way
            cmp run/much source/much
            not ls /run/slackwater/*.json
            rm source/much
        done
        mount -t slackwater source mount -o "$MUCH"
        cp run/much mount/much
        umount -v mount
        over
        # Without the helper, it is flushed behind the unmount.
        mount -t slackwater source mount -o "$MUCH"
        cp run/much mount/again
        umount -i mount
        ended
        cmp run/much source/again
    "#;
    run(&Sandbox::new(), &format!("{MUCH}{script}"), &["mount (", "unmounted"]);
}

#[test]
fn a_mount_in_use_is_busy_until_it_is_detached() {
    need_fuse();
    let script = r#"
        mount -t slackwater source mount -o "$OPTIONS"
        echo one > mount/file
        exec 3< mount/file
        fails 32 umount mount
        fails 32 umount.slackwater mount
        echo two >> mount/file
        # Read-only instead, because the file is open for reading only.
        umount -r mount
        cat source/file
        fails 2 sh -c 'echo three > mount/file'
        umount -l mount
        not grep fuse.slackwater /proc/self/mounts
        ls /run/slackwater/*.json
        cat <&3
        exec 3<&-
        ended
        # A program that has a file open for writing keeps it writable.
        mount -t slackwater source mount -o "$OPTIONS"
        exec 3> mount/file
        fails 32 umount -r mount
        echo four >&3
        exec 3>&-
        umount mount
        over
        cat source/file
    "#;
    run(&Sandbox::new(), script, &["target is busy", "one", "two", "cannot remount", "four"]);
}

#[test]
fn force_unmounts_a_mount_in_use() {
    need_fuse();
    let script = r#"
        mount -t slackwater source mount -o "$OPTIONS"
        exec 3> mount/file
        echo one >&3
        umount -f mount
        over
        fails 1 sh -c 'echo two >&3'
        cat source/file
    "#;
    run(&Sandbox::new(), script, &["one"]);
}

#[test]
fn an_unmount_in_one_namespace_or_of_one_copy_leaves_the_others() {
    need_fuse();
    let script = r#"
        mkdir bound other
        mount -t slackwater source mount -o "$OPTIONS"
        echo one > mount/file
        unshare --mount --propagation private sh -ec 'umount mount; if ls mount/file; then exit 97; fi'
        cat mount/file
        mount --bind mount bound
        umount bound
        echo two >> mount/file
        mount --bind mount bound
        umount mount
        echo three >> bound/file
        mount -t slackwater source other -o "$OPTIONS"
        umount bound
        echo four >> other/file
        # A helper is told the namespace.
        unshare --mount --propagation private sh -c 'until [ -e run/go ]; do sleep 0.02; done; if ls other/file; then exit 97; fi' &
        until [ "$(readlink /proc/$!/ns/mnt)" != "$(readlink /proc/$$/ns/mnt)" ]; do sleep 0.02; done
        umount -N $! "$SANDBOX/other"
        ls other/file
        touch run/go
        wait $!
        umount other
        over
        echo $(cat source/file)
    "#;
    run(&Sandbox::new(), script, &["one two three four"]);
}

#[test]
fn a_mount_whose_process_died_is_freed_and_reported() {
    need_fuse();
    let script = r#"
        mount -t slackwater source mount -o "$OPTIONS"
        echo one > mount/file
        kill -9 $(sed 's/.*"pid":\([0-9]*\).*/\1/' /run/slackwater/*.json)
        while ls mount 2>/dev/null; do :; done
        fails 32 umount mount
        not grep fuse.slackwater /proc/self/mounts
        mount -t slackwater source mount -o "$OPTIONS"
        umount mount
        over
        cat source/file
    "#;
    run(&Sandbox::new(), script, &["died", "its unwritten data is in", "is free again", "one"]);
}

#[test]
fn a_source_that_accepts_nothing_keeps_the_mount() {
    need_fuse();
    if needs::are_missing(&["bindfs"]) {
        return;
    }
    let script = r#"
        mkdir base
        bindfs -f base source &
        bindfs=$!
        until mountpoint -q source; do sleep 0.02; done
        mount -t slackwater source mount -o "$OPTIONS"
        echo one > mount/file
        kill -STOP $bindfs
        while grep -L '^State:[[:space:]]*T' /proc/$bindfs/task/*/status | grep -q .; do sleep 0.02; done
        # As Ctrl-C does, this only ends the waiting.
        fails 124 timeout 1 umount mount
        grep " $SANDBOX/mount fuse.slackwater rw," /proc/self/mounts
        kill -CONT $bindfs
        umount mount
        over
        cat base/file
        umount source
        wait $bindfs
    "#;
    run(&Sandbox::new(), script, &["one"]);
}

#[test]
fn volumes_of_a_daemon_and_kept_mounts_are_waited_for() {
    need_fuse();
    let script = r#"
        mount -t slackwater source mount -o "$MUCH,keep"
        cp run/much mount/much
        umount mount
        over
        cmp run/much source/much
        rm source/much
        ./slackwater daemon --cache 256MiB &
        daemon=$!
        until ./slackwater ls 2> run/absent; do sleep 0.02; done
        ./slackwater mount --daemon source mount
        head -c 30M run/much > mount/much
        umount mount
        head -c 30M run/much | cmp - source/much
        ./slackwater ls
        kill $daemon
        wait $daemon
        over
    "#;
    run(&Sandbox::new(), &format!("{MUCH}{script}"), &["Mounted"]);
}
