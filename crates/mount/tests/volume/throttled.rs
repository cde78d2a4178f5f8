//! Thousands of writers of one tenant at its limit.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Uid;
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::thread::set_thread_res_uid;
use slackwater::Tunables;
use slackwater_mount::tenants::TenantBy;
use slackwater_testkit::{Rule, pattern};

use crate::programs::{LONG, in_own_process, until};
use crate::rig::{Rig, TenantSetup, assert_same, within};

const MIB: u64 = 1 << 20;
/// Longer than any write or read takes that does not wait for the backend, even on a busy machine.
const PROMPT: Duration = Duration::from_secs(20);
const WRITERS: usize = 3000;
const USER: u32 = 4711;
/// Size of each write.
const WRITE_BYTES: usize = 16 << 10;

/// Makes the calling thread another user.
fn become_user(uid: u32) {
    let uid = Uid::from_raw(uid);
    set_thread_res_uid(uid, uid, uid).unwrap();
}

fn threads_of_this_process() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// The test has a process of its own, since threads and descriptors of other tests would be counted.
#[test]
fn p08_thousands_of_throttled_writers_hold_no_thread_and_slow_no_other_tenant() {
    in_own_process(
        "throttled::p08_thousands_of_throttled_writers_hold_no_thread_and_slow_no_other_tenant",
        thousands_write,
    );
}

fn thousands_write() {
    /// The limit in `worker.rs`.
    const TENANT_BYTES: usize = 16 << 20;
    const KEPT_BYTES: usize = 64 << 10;
    const LIMIT: u64 = 4 * MIB;
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();

    let setup = TenantSetup::of(TenantBy::Uid, &[(&format!("uid:{USER}"), LIMIT)]);
    let rig = Rig::with_tenants(128 * MIB, Tunables::default(), setup, |directory| std::sync::Arc::new(directory));
    fs::write(rig.stored("old"), pattern(7, 1_000_000)).unwrap();
    rig.faults.add(Rule::hold().on("write"));
    let before = threads_of_this_process();
    let tenant = format!("uid:{USER}");
    let writers: Vec<_> = (0..WRITERS)
        .map(|number| {
            let file = File::create(rig.file(number.to_string())).unwrap();
            let write = move || {
                become_user(USER);
                file.write_all_at(&pattern(number as u64, WRITE_BYTES), 0).unwrap();
            };
            std::thread::Builder::new().stack_size(64 << 10).spawn(write).unwrap()
        })
        .collect();
    let still_there = || writers.iter().filter(|writer| !writer.is_finished()).count();
    // Writers within the limit have finished.
    let unblocked = (LIMIT as usize).div_ceil(WRITE_BYTES) + 64;
    until("the others are parked", || {
        rig.mounted.parked_bytes() >= TENANT_BYTES.min((WRITERS - unblocked) * WRITE_BYTES)
    });
    let waiting = still_there();
    assert!(waiting >= WRITERS - unblocked, "{waiting}");
    assert!(rig.charged_bytes(&tenant) <= LIMIT + MIB, "{}", rig.charged_bytes(&tenant));
    for _ in 0..20 {
        let parked = rig.mounted.parked_bytes();
        assert!(parked <= TENANT_BYTES + WRITERS * KEPT_BYTES.min(WRITE_BYTES), "{parked}");
        let threads = threads_of_this_process().saturating_sub(waiting + before);
        assert!(threads < 64, "{threads} more threads for {waiting} writers");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Except for writes that are being tried.
    until("all waiting writers are counted", || {
        rig.mounted.parked_writes() + rig.mounted.paused_writes() + 64 >= still_there()
    });
    println!("{waiting} writers wait; {} bytes are parked", rig.mounted.parked_bytes());
    others_go_on(&rig);
    assert!(still_there() >= WRITERS - unblocked, "no writer was released");
    rig.let_through();
    let start = Instant::now();
    within("all writes", move || writers.into_iter().for_each(|writer| writer.join().unwrap()));
    println!("all of them finished {:?} after the backend continued", start.elapsed());
    until("no write is parked any more", || rig.mounted.parked_bytes() == 0);
    until("no writer waits", || (rig.mounted.parked_writes(), rig.mounted.paused_writes()) == (0, 0));
    rig.umount().unwrap();
    for number in 0..WRITERS {
        assert_same(&fs::read(rig.stored(number.to_string())).unwrap(), &pattern(number as u64, WRITE_BYTES));
    }
    assert_same(&fs::read(rig.stored("beside")).unwrap(), &pattern(9, 200 * 4096));
}

/// Another tenant writes, and reads its data and older data.
fn others_go_on(rig: &Rig) {
    let (path, old): (PathBuf, PathBuf) = (rig.file("beside"), rig.file("old"));
    let wanted = pattern(9, 200 * 4096);
    let expected = wanted.clone();
    let longest = within("another tenant", move || {
        let mut longest = Duration::ZERO;
        let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
        for (number, page) in wanted.chunks(4096).enumerate() {
            let (start, mut found) = (Instant::now(), [0; 4096]);
            file.write_all_at(page, number as u64 * 4096).unwrap();
            file.read_exact_at(&mut found, number as u64 * 4096).unwrap();
            longest = longest.max(start.elapsed());
        }
        assert_same(&fs::read(old).unwrap(), &pattern(7, 1_000_000));
        longest
    });
    println!("meanwhile a write and a read of another tenant took at most {longest:?}");
    assert!(longest < PROMPT.min(LONG), "{longest:?}");
    assert_same(&fs::read(rig.file("beside")).unwrap(), &expected);
}

/// A limit of one user does not affect another; a volume's limit applies to all users.
#[test]
fn limits_by_user_and_by_volume_apply_to_their_tenants_only() {
    const LIMIT: u64 = 4 * MIB;
    for (by, tenant) in [(TenantBy::Uid, "uid:4711"), (TenantBy::Volume, "volume")] {
        let rig =
            Rig::with_tenants(128 * MIB, Tunables::default(), TenantSetup::of(by, &[(tenant, LIMIT)]), |directory| {
                std::sync::Arc::new(directory)
            });
        rig.faults.add(Rule::hold().on("write"));
        let files = ["limited", "other"].map(|name| File::create(rig.file(name)).unwrap());
        let [limited, other] = [USER, USER + 1]
            .into_iter()
            .zip(files)
            .map(|(user, file)| {
                std::thread::spawn(move || {
                    become_user(user);
                    for part in 0..16 {
                        file.write_all_at(&pattern(part, MIB as usize), part * MIB).unwrap();
                    }
                })
            })
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        until("a limit is reached", || rig.charged_bytes(tenant) >= LIMIT / 2);
        if by == TenantBy::Uid {
            until("the other user has finished", || other.is_finished());
            assert_eq!(rig.charged_bytes("uid:4712"), 16 * MIB);
        }
        std::thread::sleep(Duration::from_millis(300));
        assert!(!limited.is_finished());
        assert_eq!(other.is_finished(), by == TenantBy::Uid);
        assert!(rig.charged_bytes(tenant) <= LIMIT + 2 * MIB, "{}", rig.charged_bytes(tenant));
        rig.let_through();
        within("both", move || [limited, other].into_iter().for_each(|writer| writer.join().unwrap()));
        rig.umount().unwrap();
        for name in ["limited", "other"] {
            let stored = fs::read(rig.stored(name)).unwrap();
            stored.chunks(MIB as usize).enumerate().for_each(|(part, found)| {
                assert_same(found, &pattern(part as u64, MIB as usize));
            });
            assert_eq!(stored.len() as u64, 16 * MIB);
        }
    }
}
