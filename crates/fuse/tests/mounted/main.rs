//! Mounts served by a file system in memory.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod alone;
mod memory;
mod rig;
#[path = "../transport/mod.rs"]
mod transport;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use slackwater_fuse::mount::Uring;
use slackwater_fuse::{DevFuse, Ended, Errno, Notification, Pool, PoolOptions, Session};

use memory::MemFs;
use rig::{Mounted, dd, until, wait};

fn pool() -> Pool {
    Pool::new(PoolOptions::default()).expect("a pool")
}

#[test]
fn written_bytes_are_read_back_and_an_unmount_ends_the_session() {
    let pool = pool();
    let mounted = Mounted::new(&pool);
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|i| (i / 7) as u8).collect();
    fs::write(mounted.file("a"), &bytes).unwrap();
    assert!(fs::read(mounted.file("a")).unwrap() == bytes);
    let mut file = File::options().read(true).write(true).open(mounted.file("a")).unwrap();
    file.seek(SeekFrom::Start(4095)).unwrap();
    file.write_all(b"xyz").unwrap();
    let mut three = [0; 3];
    file.read_exact_at(&mut three, 4095).unwrap();
    assert_eq!(&three, b"xyz");
    drop(file);
    let names: Vec<_> = fs::read_dir(&mounted.path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["a"]);
    assert_eq!(fs::metadata(mounted.file("b")).unwrap_err().raw_os_error(), Some(Errno::NOENT.raw_os_error()));
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(mounted.path.to_str().unwrap())).unwrap();
    assert!(line.starts_with("slackwater#test,of\\040mounts ") || line.starts_with("slackwater\\043test,"), "{line}");
    assert!(line.contains(" fuse.slackwater "), "{line}");
    assert_eq!(mounted.fs.initialised.load(Ordering::SeqCst), 1);
    assert_eq!(mounted.umount(), Ended::Unmounted);
    assert_eq!(mounted.fs.destroyed.load(Ordering::SeqCst), 1);
}

#[test]
fn a_current_kernel_supports_the_requested_features() {
    let pool = pool();
    let mounted = Mounted::new(&pool);
    let missing = &mounted.session.negotiated().missing;
    println!("missing: {missing:?}");
    assert!(missing.iter().all(|missing| !missing.affects.is_empty()));
    assert!(mounted.session.negotiated().has(slackwater_fuse::abi::init::HANDLE_KILLPRIV_V2));
}

#[test]
fn a_killed_writer_exits_while_its_write_is_held() {
    let pool = pool();
    let mounted = Mounted::new(&pool);
    fs::write(mounted.file("held"), b"").unwrap();
    let mut child = dd(&mounted.file("held"));
    until("the write is held", || mounted.fs.held() == 1);
    child.kill().unwrap();
    let status = wait(&mut child);
    mounted.fs.release();
    assert!(status.expect("the writer exits before its write is released").code().is_none());
    assert_eq!(mounted.fs.interrupted.load(Ordering::SeqCst), 1);
}

#[test]
fn an_interrupted_write_returns_its_count() {
    let pool = pool();
    let mounted = Mounted::new(&pool);
    fs::write(mounted.file("held"), b"").unwrap();
    let mut child = dd(&mounted.file("held"));
    until("the write is held", || mounted.fs.held() == 1);
    // On SIGUSR1 dd prints statistics and continues. After EINTR it would write again, and that write would be held
    // forever.
    kill_process(Pid::from_child(&child), Signal::USR1).unwrap();
    let status = wait(&mut child);
    assert!(status.expect("the write returned with its count").success());
    assert_eq!(mounted.fs.held(), 1, "it did not write again");
}

#[test]
fn an_invalidation_drops_cached_pages() {
    let pool = pool();
    let mounted = Mounted::new(&pool);
    let read = |file: &mut File| {
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        text
    };
    // Repeated, since another test may make the kernel drop its caches.
    let cached = (0..20).map(|number| format!("cached-{number}")).find_map(|name| {
        fs::write(mounted.file(&name), b"old").unwrap();
        let mut file = File::open(mounted.file(&name)).unwrap();
        assert_eq!(read(&mut file), "old");
        let node = mounted.fs.change(&name, b"new");
        (read(&mut file) == "old").then_some((name, file, node))
    });
    let (name, mut file, node) = cached.expect("a read comes from the kernel's cache");
    let invalidation = |node| Notification::InvalInode { node, offset: 0, len: 0 };
    mounted.session.notifier().send(&invalidation(node)).unwrap();
    assert_eq!(read(&mut file), "new");
    mounted.fs.change(&name, b"brand");
    mounted.session.notifier().queue(invalidation(node));
    until("the queued notification arrives", || {
        let text = fs::read_to_string(mounted.file(&name)).unwrap();
        text == "brand"
    });
    mounted.session.notifier().send(&invalidation(4711)).expect("an unknown node is not cached");
}

#[test]
fn the_kernel_prunes_unused_nodes() {
    const FILES: u64 = 600; // more than the kernel processes at a time
    let pool = pool();
    let mounted = Mounted::new(&pool);
    let name = |number: u64| mounted.file(&format!("file-{number}"));
    let nodes: Vec<u64> = (0..FILES)
        .map(|number| {
            fs::write(name(number), b"here").unwrap();
            fs::metadata(name(number)).unwrap().ino()
        })
        .collect();
    let (open, covered) = (File::open(name(0)).unwrap(), name(1));
    rustix::mount::mount_bind(name(2), &covered).unwrap();
    let minor = mounted.session.negotiated().minor;
    let prune = Notification::Prune { nodes: nodes.iter().copied().chain([4711]).collect() };
    let send = || mounted.session.notifier().send(&prune);
    if minor < 45 {
        assert_eq!(send(), Err(Errno::INVAL), "before Linux 6.18");
        return;
    }
    until("all unused nodes are forgotten", || {
        // Repeated, since a program that another test starts shares the open files until it is executed.
        send().expect("7.45 includes prune");
        mounted.fs.forgotten.lock().unwrap().len() as u64 >= FILES - 3
    });
    let mut forgotten = mounted.fs.forgotten.lock().unwrap().clone();
    forgotten.sort_unstable();
    assert_eq!(forgotten, nodes[3..], "nodes that are open, mount points or mounted are kept");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(mounts.contains(covered.to_str().unwrap()), "{mounts}");
    let mut text = [0; 4];
    open.read_exact_at(&mut text, 0).unwrap();
    assert!((0..FILES).all(|number| fs::read(name(number)).unwrap() == b"here"), "pruned names are found again");
    rustix::mount::unmount(&covered, rustix::mount::UnmountFlags::DETACH).unwrap();
}

#[test]
fn another_session_takes_over_a_live_connection() {
    if transport::uring() != Uring::Never {
        return; // the kernel does not send requests again that came over io_uring
    }
    let pool = pool();
    let mut mounted = Mounted::new(&pool);
    fs::write(mounted.file("a"), b"before").unwrap();
    fs::write(mounted.file("held"), b"").unwrap();
    let open = File::open(mounted.file("a")).unwrap();
    // A request that the first session reads and never answers.
    let path = mounted.file("held");
    let writer = thread::spawn(move || File::options().write(true).open(path).unwrap().write(b"12345"));
    until("the write is held", || mounted.fs.held() == 1);

    let fd = mounted.session.try_clone_fd().unwrap();
    let negotiated = mounted.session.negotiated().clone();
    assert_eq!(mounted.session.detach(), Ended::Detached);
    assert_eq!(mounted.fs.destroyed.load(Ordering::SeqCst), 1);
    let path = mounted.file("late");
    let waiting = thread::spawn(move || fs::write(path, b"written while no session served"));

    let second = Arc::new(MemFs::with_files_of(&mounted.fs));
    let transport = DevFuse::new(fd).unwrap();
    let session = Session::adopt(&pool, transport, negotiated, second.clone()).unwrap();
    session.notifier().resend().unwrap();
    assert_eq!(writer.join().unwrap().unwrap(), 5, "the request was sent again");
    assert_eq!(second.resent.load(Ordering::SeqCst), 1);
    waiting.join().unwrap().unwrap();
    let mut text = [0; 6];
    open.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"before");
    drop(open);
    assert_eq!(fs::read(mounted.file("late")).unwrap(), b"written while no session served");
    mounted.session = session;
    assert_eq!(mounted.umount(), Ended::Unmounted);
    assert_eq!(second.destroyed.load(Ordering::SeqCst), 1);
}

#[test]
fn blocked_handlers_of_one_volume_do_not_affect_others() {
    if transport::uring() != Uring::Never {
        return; // this is about the threads of the pool
    }
    const BLOCKED_MAX: usize = 4;
    const CALLERS: usize = 7;
    let pool = Pool::new(PoolOptions { blocked_max: BLOCKED_MAX, ..PoolOptions::default() }).unwrap();
    let (hung, lively) = (Mounted::new(&pool), Mounted::new(&pool));
    let callers: Vec<_> = (0..CALLERS)
        .map(|i| {
            let path = hung.file(&format!("block{i}"));
            fs::write(&path, b"x").unwrap();
            thread::spawn(move || fs::read(path).unwrap())
        })
        .collect();
    until("the limit of blocked threads is reached", || hung.fs.blocked.load(Ordering::SeqCst) == BLOCKED_MAX);
    until("the other calls are queued", || hung.fs.queued() == CALLERS - BLOCKED_MAX);
    for i in 0..100 {
        fs::write(lively.file(&i.to_string()), b"works").unwrap();
        assert_eq!(fs::read(lively.file(&i.to_string())).unwrap(), b"works");
    }
    fs::write(hung.file("a"), b"the hung volume's other files work too").unwrap();
    assert_eq!(hung.fs.blocked.load(Ordering::SeqCst), BLOCKED_MAX);
    hung.fs.release();
    for caller in callers {
        caller.join().unwrap();
    }
    assert_eq!(lively.umount(), Ended::Unmounted);
    assert_eq!(hung.umount(), Ended::Unmounted);
}

#[test]
fn many_clients_of_many_volumes_lose_no_request() {
    let pool = Pool::new(PoolOptions { readers: 2, ..PoolOptions::default() }).unwrap();
    let volumes: Vec<_> = (0..3).map(|_| Mounted::new(&pool)).collect();
    let client = |path: std::path::PathBuf, seed: u8| {
        thread::spawn(move || {
            let file = File::options().create(true).truncate(true).read(true).write(true).open(path).unwrap();
            let mut back = vec![0; 20_000];
            for round in 0..100 {
                let bytes = vec![seed.wrapping_add(round); 1 + usize::from(round) * 199];
                let offset = u64::from(round) * 4096;
                file.write_all_at(&bytes, offset).unwrap();
                file.read_exact_at(&mut back[..bytes.len()], offset).unwrap();
                assert!(back[..bytes.len()] == bytes);
            }
        })
    };
    let clients: Vec<_> =
        (0..12_u8).map(|i| client(volumes[usize::from(i) % 3].file(&i.to_string()), i.wrapping_mul(37))).collect();
    // Short sessions reuse the same slots meanwhile.
    for _ in 0..20 {
        let brief = Mounted::new(&pool);
        fs::write(brief.file("a"), b"brief").unwrap();
        assert_eq!(brief.umount(), Ended::Unmounted);
    }
    for client in clients {
        client.join().unwrap();
    }
    for volume in volumes {
        assert_eq!(volume.umount(), Ended::Unmounted);
    }
}

#[test]
fn a_panic_in_a_handler_fails_only_its_request() {
    let pool = pool();
    let mounted = Mounted::new(&pool);
    let mut file = File::create(mounted.file("panic")).unwrap();
    for _ in 0..10 {
        let error = file.write(b"x").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
    }
    drop(file);
    fs::write(mounted.file("a"), b"the threads survive").unwrap();
    assert_eq!(mounted.umount(), Ended::Unmounted);
}

/// The kernel sends RELEASE after `close` has returned, so it may be read while the kernel takes the connection down.
#[test]
fn an_unmount_right_after_a_close_is_reported_as_an_unmount() {
    let pool = pool();
    for _ in 0..100 {
        let mounted = Mounted::new(&pool);
        for name in ["a", "b", "c"] {
            fs::write(mounted.file(name), b"closed just now").unwrap();
        }
        assert_eq!(mounted.umount(), Ended::Unmounted);
    }
}

#[test]
fn a_forced_unmount_ends_the_session() {
    let pool = pool();
    let mounted = Mounted::new(&pool);
    rustix::mount::unmount(&mounted.path, rustix::mount::UnmountFlags::FORCE).unwrap();
    let ended = mounted.session.wait_ended_timeout(rig::LONG).expect("an end");
    assert!(matches!(ended, Ended::Unmounted | Ended::Aborted), "{ended:?}");
}

#[test]
fn a_busy_mount_is_not_unmounted() {
    let pool = pool();
    let mounted = Mounted::new(&pool);
    let open = File::create(mounted.file("a")).unwrap();
    let busy = slackwater_fuse::mount::unmount(&mounted.path, false);
    assert!(matches!(busy, Err(slackwater_fuse::mount::UnmountError::Busy(_))), "{busy:?}");
    drop(open);
    assert_eq!(mounted.umount(), Ended::Unmounted);
    let gone = slackwater_fuse::mount::unmount(&mounted.path, false);
    assert!(matches!(gone, Err(slackwater_fuse::mount::UnmountError::NotMounted(_))), "{gone:?}");
}

/// Held replies keep their entries of a ring: more than it has at first.
#[test]
fn many_held_writes_leave_room_for_other_requests() {
    const WRITERS: usize = 2500;
    let pool = pool();
    let mounted = Mounted::new(&pool);
    fs::write(mounted.file("held"), b"").unwrap();
    fs::write(mounted.file("other"), b"other").unwrap();
    let file = Arc::new(File::options().write(true).open(mounted.file("held")).unwrap());
    // The kernel passes writes on one by one if they make the file longer.
    file.set_len(WRITERS as u64).unwrap();
    let writers: Vec<_> = (0..WRITERS)
        .map(|number| {
            let file = Arc::clone(&file);
            thread::Builder::new().stack_size(64 << 10).spawn(move || file.write_at(&[1], number as u64)).unwrap()
        })
        .collect();
    until("all writes are held", || mounted.fs.held() == WRITERS);
    for _ in 0..10 {
        assert_eq!(fs::read(mounted.file("other")).unwrap(), b"other");
    }
    mounted.fs.release();
    for writer in writers {
        assert_eq!(writer.join().unwrap().unwrap(), 1);
    }
    drop(file);
    assert_eq!(mounted.umount(), Ended::Unmounted);
}
