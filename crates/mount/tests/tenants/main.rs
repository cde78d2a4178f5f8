//! Tenants by cgroup, on the hierarchies of this machine: real cgroups, and processes that move between them.

mod rig;

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use slackwater::{Clock, ManualClock, Timestamp};
use slackwater_backends::SystemClock;
use slackwater_mount::tenants::{TenantBy, TenantId, Tenants};

use rig::{Cgroup, Rig, Sleeper, await_removal, memory, unified};

const MIB: u64 = 1 << 20;
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_move_on_the_unified_hierarchy_is_seen_at_once() {
    let Some(hierarchy) = unified() else { return };
    let (a, b) = (Cgroup::top(&hierarchy), Cgroup::top(&hierarchy));
    let leaf = a.below("leaf");
    let (rig, process) = (Rig::new(), Sleeper::new());
    for _ in 0..2 {
        leaf.enter(&process);
        let tenant = rig.of(&process).unwrap();
        assert_eq!((tenant.id, &tenant.path, tenant.limit_bytes), (TenantId(a.number()), &a.path, None));
        assert!(Arc::ptr_eq(&tenant, &rig.of(&process).unwrap()), "a second lookup finds the same");
        b.enter(&process);
        assert_eq!(rig.path_of(&process), b.path);
    }
}

#[test]
fn a_move_on_the_memory_hierarchy_is_seen_after_a_second() {
    let Some(hierarchy) = memory() else { return };
    let (a, b) = (Cgroup::top(&hierarchy), Cgroup::top(&hierarchy));
    let (rig, process) = (Rig::new(), Sleeper::new());
    a.enter(&process);
    let tenant = rig.of(&process).unwrap();
    assert_eq!((tenant.id, &tenant.path), (TenantId(a.number() | 1 << 63), &a.path));
    b.enter(&process);
    rig.clock.advance(SECOND - Duration::from_nanos(1));
    assert_eq!(rig.path_of(&process), a.path, "the result is cached for a second");
    rig.clock.advance(Duration::from_nanos(1));
    assert_eq!(rig.path_of(&process), b.path);
}

#[test]
fn a_process_that_leaves_the_unified_root_is_charged_by_its_unified_cgroup() {
    let (Some(first), Some(second)) = (memory(), unified()) else { return };
    let (of_memory, of_unified) = (Cgroup::top(&first), Cgroup::top(&second));
    let (rig, process) = (Rig::new(), Sleeper::new());
    of_memory.enter(&process);
    assert_eq!(rig.path_of(&process), of_memory.path);
    of_unified.enter(&process);
    assert_eq!(rig.path_of(&process), of_unified.path);
}

#[test]
fn the_nearest_limit_makes_the_tenant_and_a_leafs_own_limit_replaces_it() {
    let Some(hierarchy) = memory() else { return };
    let top = Cgroup::top(&hierarchy);
    let middle = top.below("middle");
    let leaf = middle.below("leaf");
    let (rig, process) = (Rig::new(), Sleeper::new());
    leaf.enter(&process);
    assert_eq!(rig.path_of(&process), top.path, "only the machine is limited");
    middle.limit("67108864");
    rig.clock.advance(2 * SECOND);
    let tenant = rig.of(&process).unwrap();
    assert_eq!((&tenant.path, tenant.limit_bytes), (&middle.path, Some(64 * MIB)));
    leaf.limit("33554432");
    rig.clock.advance(2 * SECOND);
    let tenant = rig.of(&process).unwrap();
    assert_eq!((&tenant.path, tenant.limit_bytes), (&leaf.path, Some(32 * MIB)));
    leaf.limit("-1");
    middle.limit("16777216");
    rig.clock.advance(2 * SECOND);
    let tenant = rig.of(&process).unwrap();
    assert_eq!((&tenant.path, tenant.limit_bytes), (&middle.path, Some(16 * MIB)));
}

#[test]
fn a_configured_limit_makes_a_tenant_on_both_hierarchies() {
    for hierarchy in [unified(), memory()].into_iter().flatten() {
        let top = Cgroup::top(&hierarchy);
        let (one, two) = (top.below("one"), top.below("two"));
        let rig = Rig::with_limits(BTreeMap::from([(one.path.clone().into(), MIB)]));
        let (first, second) = (Sleeper::new(), Sleeper::new());
        one.enter(&first);
        two.enter(&second);
        let tenant = rig.of(&first).unwrap();
        assert_eq!((&tenant.path, tenant.limit_bytes), (&one.path, Some(MIB)));
        assert_eq!(rig.path_of(&second), top.path);
    }
}

#[test]
fn a_removed_tenant_is_reported_at_once_and_its_successor_is_another_tenant() {
    for hierarchy in [unified(), memory()].into_iter().flatten() {
        let (top, other) = (Cgroup::top(&hierarchy), Cgroup::top(&hierarchy));
        let (mut rig, process) = (Rig::new(), Sleeper::new());
        top.enter(&process);
        let first = rig.of(&process).unwrap();
        assert_eq!(rig.watcher.drain(), []);
        assert_eq!(rig.watcher.polling_reason(), None);
        other.enter(&process);
        let start = Instant::now();
        top.remove();
        await_removal(&mut rig.watcher, first.id);
        println!("{}: removal reported after {:?}", top.path, start.elapsed());
        assert_eq!(rig.watcher.drain(), []);
        // Although no time has passed, no process is found in it.
        assert_eq!(rig.path_of(&process), other.path);
        top.make_again();
        top.enter(&process);
        rig.clock.advance(SECOND);
        let second = rig.of(&process).unwrap();
        assert_eq!(first.path, second.path);
        assert_ne!(first.id, second.id, "the number of a directory is not reused");
    }
}

#[test]
fn the_removal_of_a_leaf_is_not_the_removal_of_its_tenant() {
    for hierarchy in [unified(), memory()].into_iter().flatten() {
        let top = Cgroup::top(&hierarchy);
        let leaf = top.below("leaf");
        let (mut rig, process) = (Rig::new(), Sleeper::new());
        leaf.enter(&process);
        let tenant = rig.of(&process).unwrap();
        assert_eq!(tenant.path, top.path);
        top.enter(&process);
        leaf.remove();
        rig.clock.advance(SECOND);
        assert_eq!(rig.of(&process).unwrap(), tenant);
        drop(process);
        top.remove();
        await_removal(&mut rig.watcher, tenant.id);
    }
}

/// Sets a flag when dropped, even if the test fails.
struct Raise<'a>(&'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// While a process moves on and the cgroups behind it are removed, no lookup finds a cgroup after its removal was
/// reported.
#[test]
fn no_lookup_finds_a_tenant_after_its_removal_was_reported() {
    const MOVES: usize = 50;
    for hierarchy in [unified(), memory()].into_iter().flatten() {
        let mut here = Cgroup::top(&hierarchy);
        let (Rig { tenants, mut watcher, .. }, process) = (Rig::new(), Sleeper::new());
        here.enter(&process);
        let reported = Mutex::new(HashSet::new());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let before = reported.lock().unwrap().clone();
                        let found = tenants.find(process.id(), 0);
                        assert!(found.is_none_or(|tenant| !before.contains(&tenant.id)));
                    }
                });
            }
            let _end = Raise(&is_over);
            for _ in 0..MOVES {
                let tenant = tenants.find(process.id(), 0).map(|tenant| tenant.id);
                let next = Cgroup::top(&hierarchy);
                next.enter(&process);
                drop(std::mem::replace(&mut here, next));
                if let Some(tenant) = tenant {
                    await_removal(&mut watcher, tenant);
                    reported.lock().unwrap().insert(tenant);
                }
            }
        });
    }
}

#[test]
fn an_exited_process_has_no_tenant() {
    if unified().or_else(memory).is_none() {
        return;
    }
    let rig = Rig::new();
    let process = Sleeper::new();
    let id = process.id();
    assert!(rig.of(&process).is_some());
    drop(process);
    assert_eq!(rig.tenants.find(id, 0), None);
    assert_eq!(rig.tenants.find(0, 0), None);
}

#[test]
fn each_thread_of_a_process_is_looked_up_by_itself() {
    if unified().or_else(memory).is_none() {
        return;
    }
    let rig = Rig::new();
    let own = std::thread::scope(|scope| {
        let look = || rig.tenants.find(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(), 0);
        scope.spawn(look).join().unwrap()
    });
    assert_eq!(own, rig.tenants.find(std::process::id(), 0));
    assert!(own.is_some());
}

/// The kernel reuses the ids of dead threads. A result cached for a dead thread, for up to a second, must not be used
/// for the writes of a new one.
#[test]
fn a_reused_thread_id_is_looked_up_again() {
    const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";
    let Some(hierarchy) = memory() else { return };
    if let Err(error) = fs::read_to_string(LAST_PID).and_then(|last| fs::write(LAST_PID, last)) {
        return println!("skipped: the next id cannot be chosen: {LAST_PID}: {error}");
    }
    let (a, b) = (Cgroup::top(&hierarchy), Cgroup::top(&hierarchy));
    for _ in 0..1000 {
        let (rig, first) = (Rig::new(), Sleeper::new());
        a.enter(&first);
        assert_eq!(rig.path_of(&first), a.path);
        let id = first.id();
        drop(first);
        fs::write(LAST_PID, (id - 1).to_string()).unwrap();
        // Another process may get the id first.
        let second = Sleeper::new();
        if second.id() == id {
            b.enter(&second);
            assert_eq!(rig.path_of(&second), b.path);
            return;
        }
    }
    println!("skipped: other processes took the id each time");
}

#[test]
fn another_pid_namespace_is_rejected_and_the_error_names_alternatives() {
    const INSIDE: &str = "SLACKWATER_TENANTS_INSIDE";
    /// Runs a program without the mounts of other tests, which it would keep in use. Only for a mount namespace of its
    /// own. The helper of umount(8) is not called: it would reach the process of a mount.
    const WITHOUT_VOLUMES: &str = "umount -cil -a -t fuse.slackwater; exec \"$0\" \"$@\"";
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(Timestamp(0)));
    if std::env::var_os(INSIDE).is_some() {
        let refusal = Tenants::new(TenantBy::Cgroup, BTreeMap::new(), Arc::clone(&clock)).err().unwrap().to_string();
        println!("{refusal}");
        assert!(refusal.contains("pid namespace") && refusal.contains("--tenant-by uid or volume"), "{refusal}");
        assert!(Tenants::new(TenantBy::Uid, BTreeMap::new(), clock).is_ok());
        return;
    }
    let own = std::env::current_exe().unwrap();
    // With its own /proc, and with that of the host.
    let own_proc = ["--pid", "--fork", "--mount-proc", "--propagation", "private", "sh", "-c", WITHOUT_VOLUMES];
    for options in [&own_proc[..], &["--pid", "--fork"]] {
        let mut unshare = Command::new("unshare");
        unshare
            .args(options)
            .arg(&own)
            .args(["--exact", "another_pid_namespace_is_rejected_and_the_error_names_alternatives"]);
        match unshare.arg("--nocapture").env(INSIDE, "1").output() {
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stdout);
                let errors = String::from_utf8_lossy(&output.stderr);
                if errors.contains("unshare failed") {
                    return println!("skipped: {errors}");
                }
                assert!(output.status.success() && text.contains("1 passed"), "{text}\n{errors}");
            }
            Err(error) => return println!("skipped: unshare: {error}"),
        }
    }
}

/// The cost that the lookup adds to each write.
#[test]
#[ignore = "long: a measurement, of use in a release build only"]
fn lookups_are_measured() {
    const LOOKUPS: u32 = 300_000;
    for (name, hierarchy) in [("unified", unified()), ("memory", memory())] {
        let Some(hierarchy) = hierarchy else { continue };
        let cgroup = Cgroup::top(&hierarchy);
        let tenants = Tenants::new(TenantBy::Cgroup, BTreeMap::new(), Arc::new(SystemClock)).unwrap();
        let callers: Vec<_> = std::iter::repeat_with(Sleeper::new).take(100).collect();
        callers.iter().for_each(|caller| cgroup.enter(caller));
        let look = |caller: &Sleeper| assert_eq!(tenants.find(caller.id(), 0).unwrap().path, cgroup.path);
        let start = Instant::now();
        callers.iter().for_each(look);
        println!("{name}, the first lookup of a caller: {:?}", start.elapsed() / 100);
        for threads in [1, 2] {
            let start = Instant::now();
            std::thread::scope(|scope| {
                let own = |caller| scope.spawn(move || (0..LOOKUPS).for_each(|_| look(caller)));
                callers.iter().take(threads).for_each(|caller| drop(own(caller)));
            });
            println!("{name}, {threads} threads, later lookups: {:?}", start.elapsed() / LOOKUPS);
        }
    }
}
