//! Sessions that one thread serves alone, since only one client uses them.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use slackwater_fuse::mount::Uring;
use slackwater_fuse::{DevFuse, Ended, Pool, PoolOptions, Session};

use crate::memory::MemFs;
use crate::rig::{LONG, Mounted, until};
use crate::{pool, transport};

/// More requests than one client must make in a row, and enough time for a second client to try.
const MANY: usize = 1000;

/// A file of one byte in a new mount; `None` over io_uring, which knows no such sessions.
fn mounted(pool: &Pool) -> Option<(Mounted, File)> {
    if transport::uring() != Uring::Never {
        return None;
    }
    let mounted = Mounted::new(pool);
    fs::write(mounted.file("a"), b"a").unwrap();
    let file = File::open(mounted.file("a")).unwrap();
    Some((mounted, file))
}

fn read(file: &File) {
    assert_eq!(file.read_at(&mut [0; 10], 0).unwrap(), 1);
}

/// Makes requests until one thread serves the session alone.
fn be_alone(mounted: &Mounted, file: &File) {
    until("one thread serves the only client", || {
        (0..MANY).any(|_| {
            read(file);
            mounted.session.is_served_alone()
        })
    });
}

#[test]
fn one_client_is_served_by_one_thread_until_another_comes() {
    let pool = pool();
    let Some((mounted, file)) = mounted(&pool) else { return };
    be_alone(&mounted, &file);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..MANY).for_each(|_| read(&file)));
        }
        (0..MANY).for_each(|_| read(&file));
    });
    be_alone(&mounted, &file);
    drop(file);
    assert_eq!(mounted.umount(), Ended::Unmounted);
}

#[test]
fn a_brief_call_that_hangs_does_not_hold_up_other_clients() {
    let pool = pool();
    let Some((mounted, file)) = mounted(&pool) else { return };
    fs::write(mounted.file("brief"), b"x").unwrap();
    let hanging = File::open(mounted.file("brief")).unwrap();
    thread::scope(|scope| {
        let client = scope.spawn(|| {
            be_alone(&mounted, &file);
            read(&hanging);
            read(&file);
        });
        until("the call hangs", || mounted.fs.blocked.load(Ordering::SeqCst) == 1);
        let start = Instant::now();
        read(&file);
        // Two ticks of 2 ms; the rest is for a loaded machine.
        assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
        (0..MANY).for_each(|_| read(&file));
        assert!(!client.is_finished());
        mounted.fs.release();
    });
    drop((file, hanging));
    assert_eq!(mounted.umount(), Ended::Unmounted);
}

#[test]
fn an_idle_session_leaves_its_thread_to_others() {
    let pool = Pool::new(PoolOptions { readers: 1, ..PoolOptions::default() }).unwrap();
    let Some((first, file)) = mounted(&pool) else { return };
    let (second, other) = mounted(&pool).unwrap();
    for _ in 0..10 {
        be_alone(&first, &file);
        read(&other);
        be_alone(&second, &other);
        until("idle sessions have no thread", || !first.session.is_served_alone() && !second.session.is_served_alone());
    }
    drop((file, other));
    assert_eq!(first.umount(), Ended::Unmounted);
    assert_eq!(second.umount(), Ended::Unmounted);
}

/// Serves the connection of a session that has ended with another one.
fn serve_again(mounted: &mut Mounted, pool: &Pool, fd: OwnedFd) {
    let next = Arc::new(MemFs::with_files_of(&mounted.fs));
    let transport = DevFuse::new(fd).unwrap();
    mounted.session = Session::adopt(pool, transport, mounted.session.negotiated().clone(), next).unwrap();
}

#[test]
fn a_session_served_alone_can_be_detached_and_adopted() {
    let pool = pool();
    let Some((mut mounted, file)) = mounted(&pool) else { return };
    for _ in 0..20 {
        be_alone(&mounted, &file);
        let fd = mounted.session.try_clone_fd().unwrap();
        assert_eq!(mounted.session.detach(), Ended::Detached);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| read(&file));
            serve_again(&mut mounted, &pool, fd);
            waiting.join().unwrap();
        });
        read(&file);
    }
    drop(file);
    assert_eq!(mounted.umount(), Ended::Unmounted);
}

#[test]
fn the_end_of_a_pool_ends_sessions_that_are_served_alone() {
    let mut pool = pool();
    let Some((mut mounted, file)) = mounted(&pool) else { return };
    for _ in 0..20 {
        be_alone(&mounted, &file);
        let fd = mounted.session.try_clone_fd().unwrap();
        drop(pool);
        assert_eq!(mounted.session.wait_ended(), Ended::Detached);
        pool = self::pool();
        serve_again(&mut mounted, &pool, fd);
    }
    drop(file);
    assert_eq!(mounted.umount(), Ended::Unmounted);
}
