//! `mount -o remount`: read-only, and writable again.

use crate::mount8::run;
use crate::rig::need_fuse;
use crate::sandbox::Sandbox;

#[test]
fn a_remount_makes_it_read_only_with_everything_written_back() {
    need_fuse();
    let script = r#"
        mount -t slackwater source mount -o "$OPTIONS"
        head -c 5000000 slackwater > mount/file
        [ -z "$(mount -o remount,ro mount 2>&1)" ]
        cmp mount/file source/file
        grep " $SANDBOX/mount fuse.slackwater ro," /proc/self/mounts
        fails 2 sh -c 'echo two > mount/file'
        # A further mount point is alike, and one that contradicts is refused.
        mkdir other
        mount -t slackwater source other -o "$OPTIONS,ro"
        umount other
        mount -o remount,rw,nosuid mount
        grep " $SANDBOX/mount fuse.slackwater rw,nosuid," /proc/self/mounts
        echo three > mount/file
        mount -t slackwater source other -o "$OPTIONS"
        echo four >> other/file
        umount other
        # The kernel refuses while a file is open for writing, and nothing changes.
        exec 3>> mount/file
        fails 32 mount -o remount,ro mount
        echo five >&3
        exec 3>&-
        umount mount
        over
        echo $(cat source/file)
        fails 32 mount.slackwater source mount -o remount,ro
    "#;
    let words = ["three four five", "files are open for writing", "is not a slackwater mount"];
    run(&Sandbox::new(), script, &words);
}

#[test]
fn a_mount_that_was_read_only_becomes_writable() {
    need_fuse();
    let script = r#"
        echo one > source/file
        mount -t slackwater source mount -o "$OPTIONS,ro"
        cat mount/file
        exec 3< mount/file
        mount -o remount,rw mount
        echo two > mount/file
        cat <&3
        exec 3<&-
        mount -o remount,ro mount
        mount -o remount,rw mount
        mkdir other
        mount -t slackwater source other -o "$OPTIONS"
        echo three >> other/file
        umount other mount
        over
        echo $(cat source/file)
    "#;
    run(&Sandbox::new(), script, &["one", "two", "two three"]);
}

#[test]
fn options_that_cannot_change_may_be_repeated_and_not_contradicted() {
    need_fuse();
    let script = r#"
        echo "$SANDBOX/source $SANDBOX/mount slackwater $OPTIONS,dirty-ratio=10,nofail,_netdev,x-any=1 0 0" > run/fstab
        mount --bind run/fstab /etc/fstab
        mount mount
        mount -o remount,ro mount
        grep " $SANDBOX/mount fuse.slackwater ro," /proc/self/mounts
        mount -o remount,rw mount
        grep " $SANDBOX/mount fuse.slackwater rw," /proc/self/mounts
        fails 32 mount -o remount,ro,cache=64MiB,dirty-ratio=33,keep mount
        grep " $SANDBOX/mount fuse.slackwater rw," /proc/self/mounts
        fails 1 mount -o remount,ro,cache=lots mount
        umount mount
        over
    "#;
    let words = ["--cache is 64.0 MiB", "and 32.0 MiB", "--dirty-ratio is 33 here, and 10 there", "--keep is on here"];
    run(&Sandbox::new(), script, &words);
}

#[test]
fn the_next_process_of_a_kept_mount_knows_of_the_remount() {
    need_fuse();
    let script = r#"
        mkdir other
        mount -t slackwater source mount -o "$OPTIONS,keep"
        echo one > mount/file
        mount -o remount,ro,keep mount
        cat source/file
        ./slackwater restart mount
        fails 2 sh -c 'echo two > mount/file'
        fails 32 mount -t slackwater source other -o "$OPTIONS,upload-limit=1MiB"
        mount -t slackwater source other -o "$OPTIONS,ro"
        umount other
        mount -o remount,rw mount
        ./slackwater restart mount
        echo two >> mount/file
        mount -t slackwater source other -o "$OPTIONS"
        echo three >> other/file
        umount other mount
        over
        echo $(cat source/file)
    "#;
    run(&Sandbox::new(), script, &["one two three"]);
}
