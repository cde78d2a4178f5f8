//! mount(8) and umount(8), by hand and through fstab, with this command as their helper.

use crate::needs;
use crate::rig::need_fuse;
use crate::sandbox::Sandbox;

/// Installs the helper as the documentation says.
const INSTALL: &str = r#"
    ln -s "$SANDBOX/slackwater" /sbin/mount.slackwater
    OPTIONS=cache=32MiB,dirty-expire=1h
"#;

fn run(sandbox: &Sandbox, script: &str, words: &[&str]) {
    sandbox.run_as_root(&format!("{INSTALL}{script}")).expect(0, words);
}

#[test]
fn mount_mounts_and_umount_loses_nothing() {
    need_fuse();
    let script = r#"
        head -c 5000000 slackwater > run/large
        for way in umount './slackwater umount' 'umount -l'; do
            rm -f source/large
            mount -t slackwater source mount -o "$OPTIONS"
            cp run/large mount/large
            mv mount/large mount/moved
            $way mount
            ended
            cmp run/large source/moved
        done
        # A second mount waits for the flush of the first.
        mount -t slackwater source mount -o "$OPTIONS"
        cp run/large mount/again
        umount mount
        mount -t slackwater source mount -o "$OPTIONS"
        cmp run/large mount/again
        umount mount
        ended
    "#;
    run(&Sandbox::new(), script, &[]);
}

#[test]
fn options_of_mount_reach_the_kernel() {
    need_fuse();
    let script = r#"
        cp /bin/true source/program
        mknod -m 666 source/device c 1 3
        mount -t slackwater source mount -o "$OPTIONS,noexec,nosuid,nodev,noatime,_netdev,x-any=thing"
        grep " $SANDBOX/mount fuse.slackwater rw,nosuid,nodev,noexec," /proc/self/mounts
        fails 126 mount/program
        fails 2 sh -c 'cat < mount/device'
        umount mount
        ended
        mount -t slackwater -r source mount -o "$OPTIONS"
        mount/program
        cat < mount/device
        fails 2 sh -c 'echo x > mount/file'
        umount mount
        ended
        # A misspelt option is none: nothing is mounted with what it did not mean.
        fails 1 mount -t slackwater source mount -o "$OPTIONS,gobbledygook"
        mount -s -t slackwater source mount -o "$OPTIONS,gobbledygook"
        umount mount
        ended
        fails 1 mount -t slackwater source mount -o "$OPTIONS,sync"
    "#;
    run(&Sandbox::new(), script, &["sync", "unknown option gobbledygook"]);
}

#[test]
fn mount_is_silent_without_v_and_remounts() {
    need_fuse();
    let script = r#"
        [ -z "$(mount -t slackwater source mount -o "$OPTIONS" 2>&1)" ]
        echo one > mount/file
        mount -o remount,ro mount
        grep " $SANDBOX/mount fuse.slackwater ro," /proc/self/mounts
        fails 2 sh -c 'echo two > mount/file'
        mount -o remount,rw,nosuid mount
        grep " $SANDBOX/mount fuse.slackwater rw,nosuid," /proc/self/mounts
        echo three > mount/file
        umount mount
        ended
        mount -v -t slackwater source mount -o "$OPTIONS"
        umount mount
        ended
        cat source/file
        fails 1 mount.slackwater source mount -o remount,ro
    "#;
    run(&Sandbox::new(), script, &["Mounted", "three", "is not a slackwater mount"]);
}

#[test]
fn a_failed_mount_gives_a_status_and_a_message() {
    need_fuse();
    let script = r#"
        fails 32 mount -t slackwater nowhere mount -o "$OPTIONS"
        fails 1 mount -t slackwater source mount -o cache=much
        mount -f -t slackwater source mount -o "$OPTIONS"
        ended
        mount -t slackwater source mount -o "$OPTIONS"
        mkdir other
        mount -t slackwater source other -o "$OPTIONS"
        umount other
        fails 32 mount -t slackwater source other -o "$OPTIONS,dirty-ratio=33"
        umount mount
        ended
    "#;
    run(&Sandbox::new(), script, &["does not exist", "cache=much", "is already mounted at"]);
}

#[test]
fn lines_of_fstab_mount_once_and_umount_loses_nothing() {
    need_fuse();
    let script = r#"
        mkdir "a source" "a mount"
        cat > run/fstab <<END
            $SANDBOX/source $SANDBOX/mount slackwater $OPTIONS,nofail,x-systemd.automount 0 0
            $SANDBOX/a\\040source $SANDBOX/a\\040mount slackwater $OPTIONS,nosuid 0 0
            $SANDBOX/nowhere $SANDBOX/other slackwater noauto 0 0
END
        mount --fstab run/fstab "$SANDBOX/a mount"
        echo spaced > "a mount/file"
        grep "a.040mount fuse.slackwater rw,nosuid,noatime" /proc/self/mounts
        mount -a --fstab run/fstab
        echo plain > mount/file
        # What is mounted is not mounted again.
        mount -a --fstab run/fstab
        [ "$(grep -c fuse.slackwater /proc/self/mounts)" = 2 ]
        umount "$SANDBOX/a mount"
        umount mount
        ended
        cat source/file "a source/file"
    "#;
    run(&Sandbox::new(), script, &["plain", "spaced"]);
}

#[test]
fn a_user_can_mount_a_user_line_of_fstab() {
    need_fuse();
    if needs::are_missing(&["fusermount3"]) {
        return;
    }
    let script = r#"
        echo "$SANDBOX/source $SANDBOX/mount slackwater $OPTIONS,noauto,user 0 0" > run/fstab
        mount --bind run/fstab /etc/fstab
        as_nobody mount mount
        grep " $SANDBOX/mount fuse.slackwater rw,nosuid,nodev,noexec,.*user_id=65534" /proc/self/mounts
        echo users | as_nobody tee mount/file
        as_nobody umount mount
        ended
        [ "$(stat -c %u source/file)" = 65534 ]
        cat source/file
    "#;
    run(&Sandbox::new(), script, &["users"]);
}
