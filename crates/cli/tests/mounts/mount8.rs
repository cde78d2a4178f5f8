//! mount(8), by hand and through fstab, with this command as its helper.

use crate::needs;
use crate::rig::need_fuse;
use crate::sandbox::Sandbox;

/// Installs the helpers as the documentation says.
const INSTALL: &str = r#"
    for name in mount.slackwater mount.fuse.slackwater umount.slackwater umount.fuse.slackwater; do
        ln -s "$SANDBOX/slackwater" /sbin/$name
    done
    OPTIONS=cache=32MiB,dirty-expire=1h
    # Runs a command that is to fail.
    not() {
        if "$@"; then echo "it succeeds: $*"; exit 97; fi
    }
    # Sees that umount has waited: no process is left, and no record.
    over() {
        not ls /run/slackwater/*.json
        not grep "$SANDBOX/mount" /run/mount/utab
        ended
    }
"#;

/// Runs a script as root, with the helpers installed.
pub(crate) fn run(sandbox: &Sandbox, script: &str, words: &[&str]) {
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
fn mount_is_silent_without_v() {
    need_fuse();
    let script = r#"
        [ -z "$(mount -t slackwater source mount -o "$OPTIONS" 2>&1)" ]
        # What mount(8) does not tell the kernel is in its list, for umount(8).
        grep "TARGET=$SANDBOX/mount ROOT=/ OPTS=uhelper=slackwater$" /run/mount/utab
        echo one > mount/file
        [ -z "$(umount mount 2>&1)" ]
        over
        mount -v -t fuse.slackwater source mount -o "$OPTIONS,_netdev"
        grep "OPTS=_netdev,uhelper=slackwater$" /run/mount/utab
        umount -a -t fuse.slackwater -O no_netdev
        cat mount/file
        umount -a -t fuse.slackwater -O _netdev
        over
    "#;
    run(&Sandbox::new(), script, &["Mounted", "one"]);
}

#[test]
fn programs_that_list_mounts_show_it() {
    need_fuse();
    if needs::are_missing(&["fuser"]) {
        return;
    }
    let script = r#"
        mount -t slackwater source mount -o "$OPTIONS,nosuid"
        findmnt --target mount -n -o SOURCE,FSTYPE,OPTIONS
        findmnt -n -t fuse.slackwater -o TARGET
        echo "available $(df --output=avail mount | tail -1)"
        lsblk -f > run/blocks
        exec 3> mount/file
        echo "used by $(fuser -m mount 2> run/users)"
        fuser -vm mount 2>&1 | grep 'F\.\.\.\. sh'
        exec 3>&-
        umount mount
        over
    "#;
    run(&Sandbox::new(), script, &["fuse.slackwater rw,nosuid,noatime", "available ", "used by"]);
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
fn mount_mounts_in_another_namespace() {
    need_fuse();
    let script = r#"
        unshare --mount --propagation private sh -ec '
            until [ -e run/go ]; do sleep 0.02; done
            echo one > mount/file
            umount mount' &
        until [ "$(readlink /proc/$!/ns/mnt)" != "$(readlink /proc/$$/ns/mnt)" ]; do sleep 0.02; done
        mount -N $! -t slackwater "$SANDBOX/source" "$SANDBOX/mount" -o "$OPTIONS"
        not grep fuse.slackwater /proc/self/mounts
        touch run/go
        wait $!
        over
        cat source/file
    "#;
    run(&Sandbox::new(), script, &["one"]);
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
        not ls run/*.json
        ended
        [ "$(stat -c %u source/file)" = 65534 ]
        cat source/file
    "#;
    run(&Sandbox::new(), script, &["users"]);
}
