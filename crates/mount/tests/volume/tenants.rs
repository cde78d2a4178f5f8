//! Tenants on one volume: each is bounded by its own limit, and does not wait for other tenants' data.
//!
//! Processes in real cgroups, over a source that is slow or answers no write.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use slackwater::Tunables;
use slackwater::backend::Backend;
use slackwater_backends::DirBackend;
use slackwater_host::cgroup::Hierarchy;
use slackwater_mount::tenants::TenantBy;
use slackwater_mount::{MountedError, UmountRequest};
use slackwater_testkit::{Rate, Rule, pattern};

use crate::cgroups::{Cgroup, memory, unified};
use crate::needs;
use crate::programs::{LONG, until, wait};
use crate::rig::{Rig, TenantSetup, assert_same, within};

const MIB: u64 = 1 << 20;
/// The largest request.
const MAX_WRITE: u64 = MIB;
/// Longer than any write takes that does not wait for the backend, even on a busy machine.
const PROMPT: Duration = Duration::from_secs(20);

fn hierarchy() -> Option<Hierarchy> {
    unified().or_else(memory)
}

fn directly(directory: DirBackend) -> Arc<dyn Backend> {
    Arc::new(directory)
}

/// A volume with a share above the limit of `tenant`.
fn limited(tenant: &Cgroup, limit_bytes: u64, layer: impl FnOnce(DirBackend) -> Arc<dyn Backend>) -> Rig {
    let setup = TenantSetup::of(TenantBy::Cgroup, &[(&tenant.path, limit_bytes)]);
    Rig::with_tenants(128 * MIB, Tunables::default(), setup, layer)
}

/// Copies `from` into a file of the mount, in requests of `request` bytes.
pub(crate) fn dd(of: &Cgroup, from: &Path, to: &Path, request: usize) -> Child {
    let words = [format!("if={}", from.display()), format!("of={}", to.display()), format!("bs={request}")];
    of.command("dd", &words.each_ref().map(String::as_str)).spawn().unwrap()
}

/// A file outside the mount that programs copy from.
pub(crate) struct Original(pub(crate) PathBuf, pub(crate) Vec<u8>);

impl Original {
    /// Filled with consecutive numbers, which are all different.
    pub(crate) fn new(rig: &Rig, len: u64) -> Self {
        let mut bytes = Vec::with_capacity(len as usize + 8);
        (0..len.div_ceil(8))
            .for_each(|number| bytes.extend_from_slice(&number.wrapping_mul(0x9e37_79b9).to_le_bytes()));
        bytes.truncate(len as usize);
        let path = rig.source.with_file_name("original");
        fs::write(&path, &bytes).unwrap();
        Self(path, bytes)
    }
}

impl Drop for Original {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Whether a process waits for a FUSE reply.
pub(crate) fn is_asleep_in_a_request(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/wchan")).is_ok_and(|place| place.contains("request_wait_answer"))
}

/// Waits until `writer` is blocked: the volume holds its request, and its tenant's charge has not changed for a while.
pub(crate) fn until_it_waits(rig: &Rig, tenant: &str, writer: &Child) {
    let charged = || rig.charged_bytes(tenant);
    let mut before = (charged(), Instant::now());
    until("the writer is blocked", || {
        let now = charged();
        let is_held = rig.mounted.parked_writes() + rig.mounted.paused_writes() > 0;
        if now != before.0 || !is_held || !is_asleep_in_a_request(writer.id()) {
            before = (now, Instant::now());
        }
        now > 0 && before.1.elapsed() > Duration::from_secs(1)
    });
}

/// Small writes of another tenant, none of which may wait.
fn writes_promptly(path: PathBuf, writes: usize) {
    within("small writes", move || {
        let file = File::create(path).unwrap();
        for number in 0..writes {
            let start = Instant::now();
            file.write_all_at(&pattern(9, 4096), number as u64 * 4096).unwrap();
            assert!(start.elapsed() < PROMPT, "a write took {:?}", start.elapsed());
        }
    });
}

fn wrote_beyond_its_limit(writers: usize) {
    const LIMIT: u64 = 16 * MIB;
    const TOTAL: u64 = 200 * MIB;
    let Some(hierarchy) = hierarchy() else { return };
    for request in [MIB as usize, 64 << 10] {
        let tenant = Cgroup::top(&hierarchy);
        let rig = limited(&tenant, LIMIT, |directory| Arc::new(Rate::new(directly(directory), 100 * MIB)));
        let original = Original::new(&rig, TOTAL / writers as u64);
        let name = |number: usize| format!("of {number}");
        let mut children: Vec<_> =
            (0..writers).map(|number| dd(&tenant, &original.0, &rig.file(name(number)), request)).collect();
        let is_over = Arc::new(AtomicBool::new(false));
        let (flag, path) = (is_over.clone(), rig.file("beside"));
        let beside = std::thread::spawn(move || {
            let (file, mut longest, mut writes) = (File::create(path).unwrap(), Duration::ZERO, 0);
            while !flag.load(Ordering::Relaxed) {
                let start = Instant::now();
                file.write_all_at(&pattern(3, 4096), writes % 1024 * 4096).unwrap();
                (longest, writes) = (longest.max(start.elapsed()), writes + 1);
                std::thread::sleep(Duration::from_millis(1));
            }
            (longest, writes)
        });
        let mut most = 0;
        let start = Instant::now();
        while children.iter_mut().any(|child| child.try_wait().unwrap().is_none()) {
            most = most.max(rig.charged_bytes(&tenant.path));
            assert!(start.elapsed() < 2 * LONG, "the writers do not finish");
            std::thread::sleep(Duration::from_micros(200));
        }
        is_over.store(true, Ordering::Relaxed);
        let (longest, writes) = beside.join().unwrap();
        println!(
            "{writers} writers of {request} bytes: at most {most} bytes in {:?}; beside them {writes} writes, {longest:?} at most",
            start.elapsed()
        );
        assert!(most > LIMIT / 4, "data is written back, not written through: {most}");
        assert!(most <= LIMIT + writers as u64 * MAX_WRITE, "{most}");
        assert!(longest < PROMPT, "{longest:?}");
        for child in &mut children {
            assert!(wait(child).unwrap().success());
        }
        rig.umount().unwrap();
        for number in 0..writers {
            assert_same(&fs::read(rig.stored(name(number))).unwrap(), &original.1);
        }
    }
}

#[test]
fn p08_one_writer_never_holds_more_than_its_tenants_limit_and_a_request() {
    wrote_beyond_its_limit(1);
}

#[test]
fn p08_many_writers_never_hold_more_than_their_tenants_limit_and_a_request_each() {
    wrote_beyond_its_limit(16);
}

#[test]
fn p08_a_tenant_at_its_limit_on_a_hung_backend_slows_only_itself() {
    const LIMIT: u64 = 8 * MIB;
    let Some(hierarchy) = hierarchy() else { return };
    let (tenant, other) = (Cgroup::top(&hierarchy), Cgroup::top(&hierarchy));
    let rig = limited(&tenant, LIMIT, directly);
    fs::write(rig.stored("old"), pattern(2, 100_000)).unwrap();
    let original = Original::new(&rig, 32 * MIB);
    rig.faults.add(Rule::hold().on("write"));
    let mut hog = dd(&tenant, &original.0, &rig.file("hog"), MIB as usize);
    until_it_waits(&rig, &tenant.path, &hog);
    let charged = rig.charged_bytes(&tenant.path);
    assert!((LIMIT / 4..=LIMIT + MAX_WRITE).contains(&charged), "{charged}");
    // By this process, which may be a tenant of its own or none.
    writes_promptly(rig.file("beside"), 200);
    let copy = rig.file("copy");
    let mut beside = other.command("cp", &[rig.file("old").to_str().unwrap(), copy.to_str().unwrap()]).spawn().unwrap();
    assert!(wait(&mut beside).expect("another tenant copies meanwhile").success());
    assert_eq!(rig.charged_bytes(&tenant.path), charged);
    assert!(hog.try_wait().unwrap().is_none());
    rig.let_through();
    assert!(wait(&mut hog).expect("the program continues").success());
    rig.umount().unwrap();
    assert_same(&fs::read(rig.stored("hog")).unwrap(), &original.1);
    assert_same(&fs::read(rig.stored("copy")).unwrap(), &pattern(2, 100_000));
    assert_eq!(fs::metadata(rig.stored("beside")).unwrap().len(), 200 * 4096);
}

/// Copies within the mount by copy_file_range(2) alone.
const COPY: &str = "
import os, sys
a, b = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
left = os.fstat(a).st_size
while left:
    left -= os.copy_file_range(a, b, left)
";

#[test]
fn p08_a_copy_within_the_mount_is_bounded_by_its_callers_limit() {
    if needs::are_missing(&["python3"]) {
        return;
    }
    const LIMIT: u64 = 8 * MIB;
    let Some(hierarchy) = hierarchy() else { return };
    let tenant = Cgroup::top(&hierarchy);
    let rig = limited(&tenant, LIMIT, directly);
    let wanted = pattern(6, 24 << 20);
    fs::write(rig.stored("from"), &wanted).unwrap();
    rig.faults.add(Rule::hold().on("write"));
    let (from, to) = (rig.file("from"), rig.file("to"));
    let words = ["-I", "-c", COPY, from.to_str().unwrap(), to.to_str().unwrap()];
    let mut copy = tenant.command("python3", &words).spawn().unwrap();
    until_it_waits(&rig, &tenant.path, &copy);
    let charged = rig.charged_bytes(&tenant.path);
    assert!((LIMIT / 4..=LIMIT + MAX_WRITE).contains(&charged), "{charged}");
    writes_promptly(rig.file("beside"), 200);
    rig.let_through();
    assert!(wait(&mut copy).expect("the program continues").success());
    rig.umount().unwrap();
    assert_same(&fs::read(rig.stored("to")).unwrap(), &wanted);
}

#[test]
fn p08_with_a_limit_below_a_request_one_request_at_a_time_is_written() {
    let Some(hierarchy) = hierarchy() else { return };
    for limit_bytes in [0, 4096, 100_000] {
        let tenant = Cgroup::top(&hierarchy);
        let rig = limited(&tenant, limit_bytes, directly);
        let original = Original::new(&rig, 4 * MIB);
        let start = Instant::now();
        let mut writer = dd(&tenant, &original.0, &rig.file("a"), 256 << 10);
        let mut most = 0;
        while writer.try_wait().unwrap().is_none() {
            most = most.max(rig.charged_bytes(&tenant.path));
            assert!(start.elapsed() < 5 * LONG, "the writer does not finish");
        }
        println!("a limit of {limit_bytes}: at most {most} bytes, {:?}", start.elapsed());
        assert!(wait(&mut writer).unwrap().success());
        assert!(most <= limit_bytes + (256 << 10), "{most}");
        rig.umount().unwrap();
        assert_same(&fs::read(rig.stored("a")).unwrap(), &original.1);
    }
}

#[test]
fn p07_fsync_waits_for_no_other_tenants_data() {
    let Some(hierarchy) = hierarchy() else { return };
    let (hog, other) = (Cgroup::top(&hierarchy), Cgroup::top(&hierarchy));
    let rig = limited(&hog, 16 * MIB, directly);
    let original = Original::new(&rig, 32 * MIB);
    // The backend accepts the other tenant's writes, and none of the hog.
    rig.faults.add(Rule::hold().on("write").matching(|call| call.range_bytes().is_some_and(|(_, len)| len > 4096)));
    let mut child = dd(&hog, &original.0, &rig.file("hog"), MIB as usize);
    until_it_waits(&rig, &hog.path, &child);
    let charged = rig.charged_bytes(&hog.path);
    let script = format!("of={}", rig.file("synced").display());
    for _ in 0..10 {
        let words = ["if=/dev/zero", &script, "bs=4096", "count=1", "conv=fsync,notrunc"];
        let mut sync = other.command("dd", &words).spawn().unwrap();
        assert!(wait(&mut sync).expect("fsync returns while the other tenant's data waits").success());
    }
    assert_eq!(fs::metadata(rig.stored("synced")).unwrap().len(), 4096);
    assert_eq!(rig.charged_bytes(&hog.path), charged);
    rig.let_through();
    assert!(wait(&mut child).unwrap().success());
    rig.umount().unwrap();
    assert_same(&fs::read(rig.stored("hog")).unwrap(), &original.1);
}

#[test]
fn p04_an_unmount_waits_for_no_tenant_of_another_volume() {
    let Some(hierarchy) = hierarchy() else { return };
    let tenant = Cgroup::top(&hierarchy);
    let rig = limited(&tenant, 4 * MIB, directly);
    let original = Original::new(&rig, 32 * MIB);
    rig.faults.add(Rule::hold().on("write"));
    let mut hog = dd(&tenant, &original.0, &rig.file("hog"), MIB as usize);
    until_it_waits(&rig, &tenant.path, &hog);
    for setup in [None, Some(TenantSetup::of(TenantBy::Cgroup, &[(&tenant.path, 4 * MIB)]))] {
        let beside = rig.beside(setup);
        // Also by the same tenant, within its limit.
        let mut same = dd(&tenant, &original.0, &beside.file("same"), MIB as usize);
        assert!(wait(&mut same).expect("the tenant writes to another volume").success());
        fs::write(beside.file("a"), pattern(1, 1_000_000)).unwrap();
        let mounted = beside.mounted.clone();
        let request = UmountRequest { deadline: Some(LONG), ..UmountRequest::default() };
        within("the unmount", move || crate::rig::umount(&mounted, request, &|_| {})).unwrap();
        assert_same(&fs::read(beside.stored("a")).unwrap(), &pattern(1, 1_000_000));
        assert_same(&fs::read(beside.stored("same")).unwrap(), &original.1);
    }
    assert!(hog.try_wait().unwrap().is_none());
    rig.let_through();
    assert!(wait(&mut hog).unwrap().success());
    rig.umount().unwrap();
    assert_same(&fs::read(rig.stored("hog")).unwrap(), &original.1);
}

#[test]
fn the_data_of_a_removed_cgroup_is_written_back_and_its_tenant_ends() {
    let Some(hierarchy) = hierarchy() else { return };
    let tenant = Cgroup::top(&hierarchy);
    let rig = limited(&tenant, 16 * MIB, directly);
    let original = Original::new(&rig, 4 * MIB);
    rig.faults.add(Rule::hold().on("write"));
    let mut writer = dd(&tenant, &original.0, &rig.file("a"), MIB as usize);
    assert!(wait(&mut writer).unwrap().success());
    let memcg = rig.memcg(&tenant.path).expect("the tenant has written");
    assert_eq!(memcg.charged_bytes(), 4 * MIB);
    tenant.remove();
    until("its removal is noticed", || memcg.state() > slackwater::MemcgState::Dying);
    drop(memcg);
    rig.let_through();
    rig.umount().unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &original.1);
    // Only the root is left.
    until("the tenant is gone", || rig.engine.memcgs().len() == 1);
}

#[test]
fn ten_successive_tenants_leave_nothing_behind() {
    let Some(hierarchy) = hierarchy() else { return };
    let rig = Rig::with_tenants(32 * MIB, Tunables::default(), TenantSetup::of(TenantBy::Cgroup, &[]), directly);
    let mut gone = Vec::new();
    for number in 0..10_u8 {
        let tenant = Cgroup::top(&hierarchy);
        gone.push(tenant.path.clone());
        let original = Original::new(&rig, u64::from(number) * 100_000);
        let mut writer = dd(&tenant, &original.0, &rig.file("same"), 64 << 10);
        assert!(wait(&mut writer).unwrap().success());
        tenant.remove();
        assert_same(&fs::read(rig.file("same")).unwrap(), &original.1);
    }
    rig.umount().unwrap();
    // This process belongs to another tenant, which remains.
    until("the tenants are gone", || gone.iter().all(|path| rig.memcg(path).is_none()));
}

/// A tenant at its limit whose reply is held or whose write is parked, on a backend that hangs.
fn stuck(hierarchy: &Hierarchy) -> (Cgroup, Rig, Original) {
    let tenant = Cgroup::top(hierarchy);
    let rig = limited(&tenant, 8 * MIB, directly);
    let original = Original::new(&rig, 32 * MIB);
    rig.faults.add(Rule::hold().on("write"));
    (tenant, rig, original)
}

#[test]
fn a_killed_writer_that_is_throttled_exits_at_once_and_keeps_its_taken_bytes() {
    let Some(hierarchy) = hierarchy() else { return };
    // Small requests are parked at the limit; large ones have their replies held before it.
    for request in [4 << 10, 64 << 10, MIB as usize] {
        let (tenant, rig, original) = stuck(&hierarchy);
        let mut writer = dd(&tenant, &original.0, &rig.file("a"), request);
        until_it_waits(&rig, &tenant.path, &writer);
        println!("requests of {request}: {} bytes are parked", rig.mounted.parked_bytes());
        // Which of the two happens depends on the backend's last measurement.
        let waiting = || (rig.mounted.parked_writes(), rig.mounted.paused_writes());
        until("the writer is counted as parked or paused", || [(1, 0), (0, 1)].contains(&waiting()));
        writer.kill().unwrap();
        assert!(wait(&mut writer).expect("the writer exits while its backend hangs").code().is_none());
        let taken = fs::metadata(rig.file("a")).unwrap().len();
        assert_eq!(rig.charged_bytes(&tenant.path), taken, "no bytes are taken after its exit");
        until("the rest of its payload is dropped", || rig.mounted.parked_bytes() == 0);
        rig.let_through();
        until("the taken bytes are written back", || rig.umount().is_ok());
        assert_same(&fs::read(rig.stored("a")).unwrap(), &original.1[..taken as usize]);
    }
}

#[test]
fn an_interrupted_writer_that_is_throttled_ends_with_a_whole_write_and_the_exact_count() {
    let Some(hierarchy) = hierarchy() else { return };
    for request in [4 << 10, MIB as usize] {
        let (tenant, rig, original) = stuck(&hierarchy);
        let words = [format!("if={}", original.0.display()), format!("of={}", rig.file("a").display())];
        let bs = format!("bs={request}");
        let mut command = tenant.command("dd", &[&words[0], &words[1], &bs]);
        let mut writer = command.env("LC_ALL", "C").stderr(Stdio::piped()).spawn().unwrap();
        until_it_waits(&rig, &tenant.path, &writer);
        // It ends after the write in which Ctrl-C finds it.
        kill_process(Pid::from_child(&writer), Signal::INT).unwrap();
        rig.let_through();
        assert!(wait(&mut writer).expect("Ctrl-C ends it").code().is_none());
        let mut said = String::new();
        writer.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let counted = said.lines().find(|line| line.contains("bytes")).and_then(|line| line.split(' ').next());
        let taken = fs::metadata(rig.file("a")).unwrap().len();
        assert_eq!(counted, Some(taken.to_string().as_str()), "{said}");
        assert_eq!(taken % request as u64, 0, "{said}");
        rig.umount().unwrap();
        assert_same(&fs::read(rig.stored("a")).unwrap(), &original.1[..taken as usize]);
    }
}

#[test]
fn unmounts_finish_while_replies_are_held() {
    let Some(hierarchy) = hierarchy() else { return };
    for request in [4 << 10, MIB as usize] {
        let (tenant, rig, original) = stuck(&hierarchy);
        let mut writer = dd(&tenant, &original.0, &rig.file("a"), request);
        until_it_waits(&rig, &tenant.path, &writer);
        let soon = UmountRequest { deadline: Some(Duration::from_millis(300)), ..UmountRequest::default() };
        let mounted = rig.mounted.clone();
        let error = within("a plain unmount", move || mounted.umount(soon, &|_| {})).unwrap_err();
        assert!(matches!(error, MountedError::Busy { .. }), "{error}");
        assert!(writer.try_wait().unwrap().is_none(), "the writer continues");
        let (mounted, force) = (rig.mounted.clone(), UmountRequest { force: true, ..soon });
        let error = within("a forced unmount", move || mounted.umount(force, &|_| {})).unwrap_err();
        assert!(matches!(error, MountedError::Left { .. }), "{error}");
        let status = wait(&mut writer).expect("the writer gets an error");
        // Accepted data is written back.
        rig.let_through();
        let mounted = rig.mounted.clone();
        within("the flush", move || mounted.wait_ended(UmountRequest::default())).unwrap();
        let stored = fs::read(rig.stored("a")).unwrap();
        assert!(!status.success() || stored.len() == original.1.len(), "{status}");
        assert_same(&stored, &original.1[..stored.len()]);
    }
}

#[test]
fn a_forced_unmount_with_discard_waits_for_no_held_reply() {
    let Some(hierarchy) = hierarchy() else { return };
    let (tenant, rig, original) = stuck(&hierarchy);
    let mut writer = dd(&tenant, &original.0, &rig.file("a"), 4 << 10);
    until_it_waits(&rig, &tenant.path, &writer);
    let (mounted, request) = (
        rig.mounted.clone(),
        UmountRequest { deadline: Some(LONG), force: true, discard: true, ..UmountRequest::default() },
    );
    within("the unmount", move || mounted.umount(request, &|_| {})).unwrap();
    assert!(!wait(&mut writer).expect("the writer gets an error").success());
}
