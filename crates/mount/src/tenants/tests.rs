//! The kinds of tenants, and lookups on a kernel that does not return cgroup numbers. Tests that need their own cgroups
//! are in `tests/tenants`.

use std::fs;
use std::io;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use slackwater::{ManualClock, Timestamp};
use slackwater_host::cgroup::{Hierarchy, Layout};

use super::by_cgroup::ByCgroup;
use super::cgroups::Cgroups;
use super::limits::Limits;
use super::thread_handle::ThreadHandleKind;
use super::watches::Watches;
use super::*;

const MIB: u64 = 1 << 20;

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp(0)))
}

fn of_this_machine() -> Layout {
    Layout::parse(&fs::read_to_string("/proc/self/mountinfo").unwrap())
}

fn by_cgroup(kind: ThreadHandleKind, layout: Layout, clock: Arc<ManualClock>) -> ByCgroup {
    ByCgroup::with_parts(kind, Cgroups::new(layout, Limits::new(BTreeMap::new()), Watches::new()), clock)
}

#[test]
fn a_kind_of_tenant_is_parsed_from_its_name() {
    for by in [TenantBy::Cgroup, TenantBy::Uid, TenantBy::Volume] {
        assert_eq!(by.to_string().parse(), Ok(by));
    }
    let refusal = "Uid".parse::<TenantBy>().unwrap_err().to_string();
    assert_eq!(refusal, "`Uid` is not one of cgroup, uid and volume");
}

#[test]
fn each_user_is_a_tenant() {
    let limits = BTreeMap::from([("uid:1000".into(), TenantConfig::limit(MIB))]);
    let tenants = Tenants::new(TenantBy::Uid, limits, clock()).unwrap();
    let user = tenants.find(1, 1000).unwrap();
    let path = "uid:1000".to_owned();
    assert_eq!(
        *user,
        Tenant {
            id: TenantId(1000),
            path,
            limit_bytes: Some(MIB),
            dontcache: None,
            parent: None,
            as_of: AsOf::default()
        }
    );
    assert_eq!(tenants.find(1, 0).unwrap().limit_bytes, None);
    assert_eq!(tenants.find(0, 1000), Some(user), "a caller in another pid namespace still has a uid");
    assert!(tenants.watcher().is_none());
}

#[test]
fn limits_of_impossible_tenants_are_rejected_with_an_example() {
    let refusal = |by, tenant: &str| {
        let limits = BTreeMap::from([(tenant.into(), TenantConfig::limit(MIB))]);
        Tenants::new(by, limits, clock()).err().map(|error| error.to_string())
    };
    for tenant in ["/a", "volume", "1000", "uid:", "uid:007", "uid:-1", "uid:4294967296", "uid:root"] {
        let refusal = refusal(TenantBy::Uid, tenant).unwrap();
        assert!(refusal.contains(tenant) && refusal.contains("uid:1000"), "{refusal}");
    }
    for tenant in ["/a", "uid:1", "Volume"] {
        assert!(refusal(TenantBy::Volume, tenant).unwrap().contains("is written as volume"));
    }
    for tenant in ["a/b", "uid:1000", "volume"] {
        // This is checked before the cgroup hierarchies.
        assert!(refusal(TenantBy::Cgroup, tenant).unwrap().contains("/containers/a"));
    }
    assert_eq!(refusal(TenantBy::Uid, "uid:4294967295"), None);
}

#[test]
fn a_volume_is_one_tenant() {
    let config = TenantConfig { limit_bytes: Some(MIB), dontcache: Some(true) };
    let tenants = Tenants::new(TenantBy::Volume, BTreeMap::from([("volume".into(), config)]), clock()).unwrap();
    assert!(tenants.has_dontcache());
    let tenant = tenants.find(0, 0).unwrap();
    let path = "volume".to_owned();
    assert_eq!(
        *tenant,
        Tenant {
            id: TenantId(0),
            path,
            limit_bytes: Some(MIB),
            dontcache: Some(true),
            parent: None,
            as_of: AsOf::default()
        }
    );
    assert_eq!(tenant, tenants.find(7, 1000).unwrap());
}

#[test]
fn a_kernel_that_returns_no_cgroup_number_finds_the_same_tenant() {
    let layout = of_this_machine();
    if layout == Layout::default() {
        return println!("skipped: no cgroups are mounted here");
    }
    let pid = std::process::id();
    let by_text = by_cgroup(ThreadHandleKind::Directory, layout.clone(), clock());
    let tenant = by_text.tenant_of(pid);
    assert!(tenant.is_some());
    assert_eq!(tenant, by_cgroup(ThreadHandleKind::of_this_kernel(), layout, clock()).tenant_of(pid));
}

/// Two top-level cgroups of the unified hierarchy, and a process. All are removed with the test.
struct Pair {
    directories: [PathBuf; 2],
    process: Child,
}

impl Pair {
    fn new(test: &str, hierarchy: &Hierarchy) -> io::Result<Self> {
        let directory = |name| hierarchy.mountpoint.join(format!("slackwater-{test}-{}-{name}", std::process::id()));
        let directories = ["a", "b"].map(directory);
        let process = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().expect("sleep of coreutils");
        let pair = Self { directories, process };
        pair.directories.iter().try_for_each(fs::create_dir)?;
        Ok(pair)
    }

    fn enter(&self, which: usize) {
        fs::write(self.directories[which].join("cgroup.procs"), self.process.id().to_string()).unwrap();
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        for directory in &self.directories {
            while matches!(fs::remove_dir(directory), Err(error) if error.kind() == io::ErrorKind::ResourceBusy) {
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn without_cgroup_numbers_a_move_on_the_unified_hierarchy_is_seen_after_a_second() {
    let layout = of_this_machine();
    let Some(unified) = layout.unified.clone() else { return println!("skipped: cgroup2 is not mounted here") };
    let pair = match Pair::new("by-text", &unified) {
        Ok(pair) => pair,
        Err(error) => return println!("skipped: no cgroup can be made: {error}"),
    };
    let (clock, pid) = (clock(), pair.process.id());
    let by_text = by_cgroup(ThreadHandleKind::Directory, layout.clone(), Arc::clone(&clock));
    let by_number = by_cgroup(ThreadHandleKind::of_this_kernel(), layout, Arc::clone(&clock));
    pair.enter(0);
    let first = by_text.tenant_of(pid).unwrap();
    assert_eq!(first, by_number.tenant_of(pid).unwrap());
    pair.enter(1);
    assert_eq!(by_text.tenant_of(pid).unwrap(), first);
    clock.advance(Duration::from_secs(1));
    let second = by_text.tenant_of(pid).unwrap();
    assert_ne!(first.id, second.id);
    assert_eq!(second, by_number.tenant_of(pid).unwrap());
}

/// The kernel returns the number of a cgroup, and `/proc` its path a moment later. If they do not match, the thread has
/// moved or its id was reused, and the cgroup at the path is not its tenant.
#[test]
fn a_directory_with_another_number_is_rejected() {
    let layout = of_this_machine();
    let Some(unified) = layout.unified.clone() else { return println!("skipped: cgroup2 is not mounted here") };
    if ThreadHandleKind::of_this_kernel() == ThreadHandleKind::Directory {
        return println!("skipped: this kernel does not return the cgroup of a pidfd");
    }
    let pair = match Pair::new("number", &unified) {
        Ok(pair) => pair,
        Err(error) => return println!("skipped: no cgroup can be made: {error}"),
    };
    pair.enter(0);
    let elsewhere = std::env::temp_dir().join(format!("slackwater-elsewhere-{}", std::process::id()));
    fs::create_dir(&elsewhere).unwrap();
    fs::create_dir(elsewhere.join(pair.directories[0].file_name().unwrap())).unwrap();
    let hidden = Hierarchy { mountpoint: elsewhere.clone(), ..unified };
    let pid = pair.process.id();
    let found =
        by_cgroup(ThreadHandleKind::Pidfd, Layout { unified: Some(hidden), ..layout.clone() }, clock()).tenant_of(pid);
    fs::remove_dir_all(elsewhere).unwrap();
    assert_eq!(found, None);
    assert!(by_cgroup(ThreadHandleKind::Pidfd, layout, clock()).tenant_of(pid).is_some());
}

#[test]
fn a_cgroup_that_cannot_be_read_has_no_tenant() {
    let nowhere = |name: &str| Hierarchy { mountpoint: PathBuf::from("/proc/self").join(name), root: "/".into() };
    let layout = Layout { unified: Some(nowhere("u")), memory: Some(nowhere("m")) };
    let clock = clock();
    for kind in [ThreadHandleKind::of_this_kernel(), ThreadHandleKind::Directory] {
        let by_cgroup = by_cgroup(kind, layout.clone(), Arc::clone(&clock));
        for _ in 0..2 {
            assert_eq!(by_cgroup.tenant_of(std::process::id()), None);
            clock.advance(Duration::from_secs(2));
        }
    }
}

#[test]
fn a_thread_that_never_existed_has_no_tenant() {
    for kind in [ThreadHandleKind::of_this_kernel(), ThreadHandleKind::Directory] {
        assert_eq!(by_cgroup(kind, of_this_machine(), clock()).tenant_of(4_194_305), None);
    }
}
