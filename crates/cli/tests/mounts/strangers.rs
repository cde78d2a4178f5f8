//! What any other user of the machine can do keeps nobody from mounting.

use crate::needs;
use crate::rig::need_fuse;
use crate::sandbox::Sandbox;

/// Any user may make files in /dev/shm, and the name of an arena can be foreseen.
#[test]
fn a_name_that_a_stranger_made_first_keeps_no_one_from_mounting() {
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

/// The lock of a daemon's socket was beside the socket, under a name that can be foreseen.
#[test]
fn a_name_beside_a_socket_that_a_stranger_made_first_keeps_no_daemon_from_listening() {
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

/// Versions before this one had their arenas in /dev/shm itself.
#[test]
fn an_arena_at_the_place_of_an_earlier_version_is_brought_in() {
    need_fuse();
    let script = r#"
        name() { basename "$(sed -n 's/.*"arena":"\([^"]*\)".*/\1/p' "$1")"; }
        died() { while kill -0 $1; do :; done 2> /dev/null; }
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
    output.expect(0, &["died with 4.0 KiB not in it yet", "by itself", "taking its cache over", "by the daemon"]);
}

/// A user without a runtime directory has one in /tmp, where everyone may make files too.
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
