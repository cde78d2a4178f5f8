//! Nothing that another user of the machine can do prevents a mount.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use rustix::fs::{FlockOperation, flock};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::needs;
use crate::rig::{Scratch, need_fuse};
use crate::sandbox::Sandbox;

/// Any user may create files in /dev/shm, and the name of an arena is predictable.
#[test]
fn an_arena_name_taken_by_another_user_does_not_prevent_a_mount() {
    need_fuse();
    let script = r#"
        arena() { sed 's/.*"arena":"\([^"]*\)".*/\1/' /run/slackwater/*.json; }
        $MOUNT
        usual=$(arena)
        ./slackwater umount mount
        ended
        for way in touch mkfifo 'mkdir -m 777' 'ln -s /nonexistent' 'ln -s /'; do
            rm -rf /dev/shm/slackwater-0*
            as_nobody $way "$usual" || true
            as_nobody $way /dev/shm/slackwater-0
            $MOUNT
            echo "by $way" > mount/file
            case $(arena) in /dev/shm/slackwater-0-????????????????/*.arena) ;; *) arena; exit 97;; esac
            [ "$(stat -c '%u %a' "$(dirname "$(arena)")")" = '0 700' ]
            kill -9 $(sed 's/.*"pid":\([0-9]*\).*/\1/' /run/slackwater/*.json)
            while ls mount 2> /dev/null; do :; done
            $MOUNT
            [ "$(cat source/file)" = "by $way" ]
            ./slackwater umount mount
        done
        echo all of them
    "#;
    Sandbox::new().run_as_root(script).expect(0, &["all of them"]);
}

/// The lock of a daemon's socket used to be beside the socket, under a predictable name.
#[test]
fn a_lock_file_taken_by_another_user_does_not_prevent_a_daemon() {
    need_fuse();
    let script = r#"
        mkdir -m 1777 open
        for way in touch mkfifo mkdir 'ln -s /nonexistent'; do
            rm -rf open/*
            as_nobody $way open/sock.lock
            ./slackwater daemon --socket open/sock --cache 32MiB & daemon=$!
            until ./slackwater ls --socket open/sock 2> /dev/null; do kill -0 $daemon; sleep 0.02; done
            fails 3 ./slackwater daemon --socket open/sock --cache 32MiB
            fails 3 env SLACKWATER_RUNTIME_DIR=$SANDBOX/other ./slackwater daemon --socket open/sock --cache 32MiB
            kill $daemon; wait $daemon
        done
        echo all of them
    "#;
    Sandbox::new().run_as_root(script).expect(0, &["another daemon", "all of them"]);
}

/// Earlier versions had their arenas in /dev/shm itself.
#[test]
fn an_arena_where_an_earlier_version_put_it_is_taken_over() {
    need_fuse();
    let script = r#"
        name() { basename "$(sed -n 's/.*"arena":"\([^"]*\)".*/\1/p' "$1")"; }
        $MOUNT
        earlier=/dev/shm/slackwater-0-$(name /run/slackwater/*.json)
        ./slackwater umount mount
        ended
        $MOUNT --arena "$earlier"
        echo by itself > mount/file
        kill -9 $(sed 's/.*"pid":\([0-9]*\).*/\1/' /run/slackwater/*.json)
        while ls mount 2> /dev/null; do :; done
        $MOUNT
        cat source/file
        ./slackwater umount mount
        ended

        DAEMON='./slackwater daemon --cache 32MiB'
        start() { "$@" & daemon=$!; until ./slackwater ls 2> /dev/null; do sleep 0.02; done; }
        start $DAEMON
        ./slackwater mount --daemon source mount --name it
        earlier=/dev/shm/slackwater-0-$(name /run/slackwater/*.it.json)
        kill $daemon; wait $daemon
        printf 'dirty-expire = "1h"\n' > run/config
        start $DAEMON --arena "$earlier" --config run/config
        ./slackwater mount --daemon source mount --name it
        echo by the daemon > mount/file
        kill -9 $daemon; wait $daemon || true
        start $DAEMON
        until ! ls /run/slackwater/*.it.json 2> /dev/null; do sleep 0.02; done
        cat source/file
        kill $daemon; wait $daemon
        ended
    "#;
    let output = Sandbox::new().run_as_root(script);
    output.expect(0, &["died with 4.0 KiB unwritten", "by itself", "taking over its cache", "by the daemon"]);
}

/// A user without a runtime directory gets one in /tmp, where every user may create files.
#[test]
fn a_runtime_directory_in_tmp_cannot_be_taken_away() {
    need_fuse();
    if needs::are_missing(&["fusermount3"]) {
        return;
    }
    let preparation = r#"
        mount -t tmpfs none /mnt
        cp -p slackwater /mnt; mkdir /mnt/source /mnt/mount; chown 65534 /mnt/source /mnt/mount
        mount -t tmpfs -o mode=1777 none /tmp
        mkdir -m 777 /tmp/slackwater-65534
        cd /mnt; SANDBOX=/mnt
    "#;
    let script = r#"
        unset SLACKWATER_RUNTIME_DIR
        cd /mnt
        $MOUNT
        echo precious > mount/file
        ./slackwater umount mount
        cat source/file
        [ -d /tmp/slackwater-65534-* ] && ./slackwater status
    "#;
    let output = Sandbox::new().run_as_nobody_after(preparation, script);
    output.expect(0, &["precious", "Nothing is mounted"]);
}

/// Takes locks, for which read permission is enough.
const LOCKS: &str = r#"
    MOUNT='./slackwater mount roots mount --cache 32MiB --dirty-expire 1h --background'
    # Has a program of USER stand there with a lock on DIRECTORY, as OPTION says.
    locked() {
        rm -f run/locked
        setpriv --reuid $1 --regid $1 --clear-groups sh -c "exec 9< $2; flock $3 9; ${4:-exec sleep 1000}" & locker=$!
        while flock --nonblock $2 true; do sleep 0.01; done
    }
    unlocked() { kill $locker; wait $locker || true; flock roots true; }
"#;

#[test]
fn a_lock_of_another_user_on_the_source_does_not_prevent_a_mount() {
    need_fuse();
    let sandbox = Sandbox::new();
    sandbox.scratch.dir("roots", 0o755);
    let script = r#"
        install -m 4755 "$(command -v sleep)" power
        for way in -x -s '-x 9; exec ./power 1000; :'; do
            locked 65534 roots "$way"
            $MOUNT 2> run/said
            grep "roots is locked by pid [0-9]* ([a-z]*) of user 65534, which has no write permission" run/said
            echo "by $way" > mount/file
            # The lock excludes no other owner, but our own mark does: also where neither the registry nor the list of mounts tells.
            mkdir -p other
            unshare --mount --propagation private sh -e -c '
                umount -l mount
                SLACKWATER_RUNTIME_DIR=$SANDBOX/elsewhere ./slackwater mount roots other --cache 32MiB --arena /dev/shm/other --background || exit $?
            ' && exit 96 || [ $? = 3 ]
            # And when the stranger is gone.
            unlocked
            unshare --mount --propagation private sh -e -c '
                umount -l mount
                SLACKWATER_RUNTIME_DIR=$SANDBOX/elsewhere ./slackwater mount roots other --cache 32MiB --arena /dev/shm/other --background || exit $?
            ' && exit 95 || [ $? = 3 ]
            ./slackwater umount mount
            ended
            [ "$(cat roots/file)" = "by $way" ]
        done
        echo all of them
    "#;
    sandbox.run_as_root(&format!("{LOCKS}{script}")).expect(0, &["is locked by pid", "all of them"]);
}

/// A user with write permission may have data for the source.
#[test]
fn a_lock_of_a_user_with_write_permission_prevents_a_mount() {
    need_fuse();
    let sandbox = Sandbox::new();
    for (name, mode) in [("closed", 0o755), ("open", 0o777)] {
        sandbox.scratch.dir(name, mode);
    }
    let script = r#"
        chown 1000 closed
        for directory in closed open; do
            locked 1000 $directory -x
            fails 3 ./slackwater mount $directory mount --cache 32MiB
            kill $locker; wait $locker || true
        done
    "#;
    sandbox.run_as_root(&format!("{LOCKS}{script}")).expect(0, &["closed is locked by pid", "open is locked by pid"]);
}

/// An unprivileged user sees less of other users' processes than root.
#[test]
fn a_lock_of_another_user_does_not_prevent_an_unprivileged_mount() {
    need_fuse();
    if needs::are_missing(&["fusermount3"]) {
        return;
    }
    let preparation = r#"
        setpriv --reuid 1000 --regid 1000 --clear-groups flock source sleep 1000 &
        while flock --nonblock source true; do sleep 0.01; done
    "#;
    let script = r#"
        $MOUNT
        echo precious > mount/file
        ./slackwater umount mount
        cat source/file
    "#;
    let output = Sandbox::new().run_as_nobody_after(preparation, script);
    output.expect(0, &["source is locked by pid", "(flock) of user 1000", "precious"]);
}

/// Whether this is the initial pid namespace. In another one, processes that hold a lock may be invisible.
fn are_all_processes_seen() -> bool {
    let is_initial = std::fs::read_link("/proc/self/ns/pid").unwrap().as_os_str() == "pid:[4026531836]";
    if !is_initial {
        needs::skip("this is not the initial pid namespace");
    }
    is_initial
}

/// A descriptor on its way through a socket keeps its lock and belongs to no process.
#[test]
fn a_lock_without_a_process_does_not_prevent_a_mount() {
    need_fuse();
    if !are_all_processes_seen() {
        return;
    }
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let (_end, other_end) = std::os::unix::net::UnixStream::pair().unwrap();
    let lock = File::open(&source).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    let descriptors = [lock.as_fd()];
    assert!(message.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(&other_end, &[IoSlice::new(b"x")], &mut message, SendFlags::empty()).unwrap();
    drop(lock);
    let mount = scratch.mount(&source, &mountpoint, &[]);
    scratch.umount(&mountpoint);
    drop(mount);
}

/// Any user can mount a file system whose type and source name claim to be ours.
#[test]
fn a_foreign_mount_of_our_type_does_not_prevent_a_mount() {
    need_fuse();
    if !are_all_processes_seen() || needs::are_missing(&["fusermount3"]) {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.scratch.dir("roots", 0o755);
    sandbox.dir_of_nobody("theirs", 0o755);
    let script = r#"
        # Its source may be read by anyone, and it has no data for it.
        as_nobody ./slackwater mount roots theirs --cache 32MiB --background
        $MOUNT
        echo precious > mount/file
        ./slackwater umount mount
        cat roots/file
    "#;
    sandbox.run_among_all_processes(&format!("{LOCKS}{script}")).expect(0, &["roots is locked by", "precious"]);
}
