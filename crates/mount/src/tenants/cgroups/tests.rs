//! Trees of ordinary directories stand in for machines with v1, v2 and both.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::AtomicUsize;

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;
const START: Tick = Tick(1_000_000_000_000);

struct Machine {
    root: PathBuf,
}

impl Machine {
    fn new() -> Self {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("slackwater-cgroups-{}-{number}", std::process::id()));
        fs::create_dir_all(root.join("unified")).unwrap();
        fs::create_dir_all(root.join("memory")).unwrap();
        Self { root }
    }

    fn hierarchy(&self, name: &str, root: &str) -> Option<Hierarchy> {
        Some(Hierarchy { mountpoint: self.root.join(name), root: root.into() })
    }

    fn v2(&self) -> Layout {
        Layout { unified: self.hierarchy("unified", "/"), memory: None }
    }

    fn v1(&self) -> Layout {
        Layout { unified: None, memory: self.hierarchy("memory", "/") }
    }

    fn hybrid(&self) -> Layout {
        Layout { unified: self.hierarchy("unified", "/"), memory: self.hierarchy("memory", "/") }
    }

    fn cgroup(&self, path: &str) {
        fs::create_dir_all(self.root.join(path)).unwrap();
    }

    /// Writes a file of a cgroup, creating the cgroup if needed.
    fn limit(&self, file: &str, text: &str) {
        let file = self.root.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn cgroups(layout: Layout, configured: &[(&str, u64)]) -> Cgroups {
    let limit = |(path, bytes): &(&str, u64)| (PathBuf::from(path), TenantConfig::limit(*bytes));
    let configured: BTreeMap<_, _> = configured.iter().map(limit).collect();
    Cgroups::new(layout, Limits::new(configured), Watches::new())
}

fn tenant(cgroups: &Cgroups, kind: Kind, path: &str) -> (String, Option<u64>) {
    let (_, tenant) = cgroups.resolve(kind, path.into(), START).unwrap();
    (tenant.path.clone(), tenant.limit_bytes)
}

#[test]
fn the_nearest_limit_makes_the_tenant_on_v2() {
    let machine = Machine::new();
    machine.limit("unified/a/memory.max", "max\n");
    machine.limit("unified/a/b/memory.max", "67108864\n");
    machine.limit("unified/a/b/c/memory.max", "max\n");
    machine.limit("unified/a/b/c/d/memory.max", "1048576\n");
    let cgroups = cgroups(machine.v2(), &[]);
    assert_eq!(tenant(&cgroups, Kind::Unified, "/a/b/c/d"), ("/a/b/c/d".into(), Some(MIB)));
    assert_eq!(tenant(&cgroups, Kind::Unified, "/a/b/c"), ("/a/b".into(), Some(64 * MIB)));
    assert_eq!(tenant(&cgroups, Kind::Unified, "/a/b"), ("/a/b".into(), Some(64 * MIB)));
    assert_eq!(tenant(&cgroups, Kind::Unified, "/a"), ("/a".into(), None));
}

#[test]
fn the_nearest_limit_makes_the_tenant_on_v1() {
    let machine = Machine::new();
    machine.limit("memory/memory.limit_in_bytes", "9223372036854771712\n");
    machine.limit("memory/docker/memory.limit_in_bytes", "9223372036854771712\n");
    machine.limit("memory/docker/4f/memory.limit_in_bytes", "1048576\n");
    machine.limit("memory/docker/4f/job/memory.limit_in_bytes", "9223372036854771712\n");
    let cgroups = cgroups(machine.v1(), &[]);
    assert_eq!(tenant(&cgroups, Kind::Memory, "/docker/4f/job"), ("/docker/4f".into(), Some(MIB)));
    assert_eq!(tenant(&cgroups, Kind::Memory, "/docker"), ("/docker".into(), None));
    assert_eq!(tenant(&cgroups, Kind::Memory, "/"), ("/".into(), None));
}

#[test]
fn without_any_limit_the_top_level_cgroup_is_the_tenant() {
    let machine = Machine::new();
    machine.cgroup("unified/user.slice/user-1000.slice/app");
    let cgroups = cgroups(machine.v2(), &[]);
    assert_eq!(tenant(&cgroups, Kind::Unified, "/user.slice/user-1000.slice/app"), ("/user.slice".into(), None));
    assert_eq!(tenant(&cgroups, Kind::Unified, "/"), ("/".into(), None));
}

#[test]
fn a_configured_limit_counts_like_a_memory_limit_and_the_smaller_one_applies() {
    let machine = Machine::new();
    machine.limit("unified/a/memory.max", "10485760\n");
    machine.cgroup("unified/a/b/c");
    let configured = [("/a/b/", 2 * MIB), ("/a", 64 * MIB), ("/", 99 * MIB)];
    let cgroups = cgroups(machine.v2(), &configured);
    assert_eq!(tenant(&cgroups, Kind::Unified, "/a/b/c"), ("/a/b".into(), Some(2 * MIB)));
    assert_eq!(tenant(&cgroups, Kind::Unified, "/a"), ("/a".into(), Some(10 * MIB)));
    machine.cgroup("unified/x/y");
    assert_eq!(tenant(&cgroups, Kind::Unified, "/x/y"), ("/".into(), Some(99 * MIB)));
}

#[test]
fn later_settings_apply_at_once_and_older_results_are_not_cached() {
    let machine = Machine::new();
    machine.cgroup("unified/a/b");
    let cgroups = cgroups(machine.v2(), &[("/a", 8 * MIB)]);
    assert_eq!(tenant(&cgroups, Kind::Unified, "/a/b"), ("/a".into(), Some(8 * MIB)));
    cgroups.set_config("/a/b".into(), TenantConfig::limit(MIB));
    assert_eq!(tenant(&cgroups, Kind::Unified, "/a/b"), ("/a/b".into(), Some(MIB)));
    // A lookup that began before and ends only now.
    let (id, found) = cgroups.resolve(Kind::Unified, "/a/b".into(), START).unwrap();
    let seen = cgroups.removals();
    cgroups.set_config("/a/b".into(), TenantConfig::default());
    cgroups.store(id, "/a/b".into(), (*found).clone(), START, seen);
    assert!(cgroups.cached(id, START).is_none());
    assert_eq!(tenant(&cgroups, Kind::Unified, "/a/b"), ("/a".into(), Some(8 * MIB)));
    assert_eq!(cgroups.limit_bytes(found.id, Path::new("/a/b")), None);
    assert_eq!(cgroups.limit_bytes(found.id, Path::new("/a")), Some(8 * MIB));
}

#[test]
fn a_cgroup_with_dontcache_is_the_tenant_of_those_below_it() {
    let machine = Machine::new();
    machine.limit("unified/a/b/c/memory.max", "1048576\n");
    machine.cgroup("unified/a/b/d/e");
    machine.cgroup("unified/x");
    let word = |dontcache| TenantConfig { limit_bytes: None, dontcache: Some(dontcache) };
    let configured = BTreeMap::from([("/a/b".into(), word(true)), ("/a/b/d".into(), word(false))]);
    let cgroups = Cgroups::new(machine.v2(), Limits::new(configured), Watches::new());
    let found = |path: &str| {
        let (_, tenant) = cgroups.resolve(Kind::Unified, path.into(), START).unwrap();
        (tenant.path.clone(), tenant.limit_bytes, tenant.dontcache)
    };
    assert_eq!(found("/a/b"), ("/a/b".into(), None, Some(true)));
    assert_eq!(found("/a/b/c"), ("/a/b/c".into(), Some(MIB), Some(true)));
    assert_eq!(found("/a/b/d/e"), ("/a/b/d".into(), None, Some(false)));
    assert_eq!((found("/a"), found("/x")), (("/a".into(), None, None), ("/x".into(), None, None)));
}

#[test]
fn on_a_hybrid_machine_the_limit_is_in_the_memory_hierarchy() {
    let machine = Machine::new();
    machine.cgroup("unified/a/b");
    machine.limit("memory/a/memory.limit_in_bytes", "1048576\n");
    let cgroups = cgroups(machine.hybrid(), &[]);
    assert_eq!(tenant(&cgroups, Kind::Unified, "/a/b"), ("/a".into(), Some(MIB)));
    assert_eq!(tenant(&cgroups, Kind::Memory, "/a"), ("/a".into(), Some(MIB)));
    let (unified, _) = cgroups.directory(Kind::Unified, Path::new("/a")).unwrap();
    let (memory, _) = cgroups.directory(Kind::Memory, Path::new("/a")).unwrap();
    let memory_as_unified = CgroupId { kind: Kind::Unified, ..memory };
    assert_ne!(TenantId::from(memory), TenantId::from(memory_as_unified));
    assert_eq!(TenantId::from(unified), TenantId(unified.inode));
}

#[test]
fn malformed_limits_count_as_none() {
    let machine = Machine::new();
    machine.limit("unified/a/memory.max", "1048576\n");
    machine.limit("unified/a/b/memory.max", "many\n");
    machine.limit("unified/a/c/memory.max", "");
    machine.cgroup("unified/a/d/memory.max");
    let cgroups = cgroups(machine.v2(), &[]);
    for path in ["/a/b", "/a/c", "/a/d"] {
        assert_eq!(tenant(&cgroups, Kind::Unified, path), ("/a".into(), Some(MIB)));
    }
}

#[test]
fn in_a_container_paths_begin_with_the_mounts_root() {
    let machine = Machine::new();
    machine.cgroup("unified/job/leaf");
    let layout = Layout { unified: machine.hierarchy("unified", "/system.slice/docker-4f.scope"), memory: None };
    let cgroups = cgroups(layout, &[]);
    let job = "/system.slice/docker-4f.scope/job";
    assert_eq!(tenant(&cgroups, Kind::Unified, &format!("{job}/leaf")), (job.into(), None));
    let outside = cgroups.resolve(Kind::Unified, "/system.slice/cron.service".into(), START);
    assert!(matches!(outside, Err(LookupError::Outside { .. })));
}

#[test]
fn a_missing_cgroup_is_an_error_and_a_deleted_one_is_gone() {
    let machine = Machine::new();
    let cgroups = cgroups(machine.v2(), &[]);
    let enter = |kind, path: &str| cgroups.resolve(kind, path.into(), START).unwrap_err();
    assert!(matches!(enter(Kind::Unified, "/a"), LookupError::Directory { source: Errno::NOENT, .. }));
    assert!(matches!(enter(Kind::Unified, "/a (deleted)"), LookupError::Gone));
    assert!(matches!(enter(Kind::Memory, "/a"), LookupError::Nowhere));
}

#[test]
fn limits_are_read_again_after_two_seconds_and_not_before() {
    let machine = Machine::new();
    machine.limit("unified/a/memory.max", "max\n");
    machine.limit("unified/a/b/memory.max", "max\n");
    let cgroups = cgroups(machine.v2(), &[]);
    let (id, first) = cgroups.resolve(Kind::Unified, "/a/b".into(), START).unwrap();
    machine.limit("unified/a/memory.max", "2097152\n");
    machine.limit("unified/a/b/memory.max", "1048576\n");
    let before = cgroups.cached(id, START + Duration::from_millis(1999)).unwrap();
    assert!(Arc::ptr_eq(&first, &before));
    let after = cgroups.cached(id, START + Duration::from_secs(2)).unwrap();
    assert_eq!((after.path.as_str(), after.limit_bytes), ("/a/b", Some(MIB)));
    machine.limit("unified/a/b/memory.max", "max\n");
    let (_, later) = cgroups.resolve(Kind::Unified, "/a/b".into(), START + Duration::from_secs(4)).unwrap();
    assert_eq!((later.path.as_str(), later.limit_bytes), ("/a", Some(2 * MIB)));
    // An unchanged result keeps its tenant.
    let same = cgroups.cached(id, START + Duration::from_secs(6)).unwrap();
    assert!(Arc::ptr_eq(&later, &same));
}

#[test]
fn a_removed_cgroup_is_not_cached_any_more() {
    let machine = Machine::new();
    machine.cgroup("unified/a/b");
    let cgroups = cgroups(machine.v2(), &[]);
    let (id, first) = cgroups.resolve(Kind::Unified, "/a/b".into(), START).unwrap();
    fs::remove_dir(machine.root.join("unified/a/b")).unwrap();
    assert_eq!(cgroups.cached(id, START + Duration::from_secs(2)), None);
    machine.cgroup("unified/a/b");
    let (id, _) = cgroups.resolve(Kind::Unified, "/a/b".into(), START).unwrap();
    let removals = cgroups.removals();
    cgroups.forget(&[]);
    assert!(cgroups.cached(id, START).is_some() && cgroups.removals() == removals);
    cgroups.forget(&[first.id]);
    assert!(cgroups.cached(id, START).is_none() && cgroups.removals() != removals);
}

#[test]
fn the_cache_is_bounded() {
    let machine = Machine::new();
    machine.cgroup("unified/a");
    let cgroups = cgroups(machine.v2(), &[]);
    let tenant = Tenant {
        id: TenantId(1),
        path: "/a".to_owned(),
        limit_bytes: None,
        dontcache: None,
        parent: None,
        as_of: AsOf::default(),
    };
    for inode in 0..2 * CACHED_MAX as u64 {
        cgroups.store(CgroupId { kind: Kind::Unified, inode }, "/a".into(), tenant.clone(), START, 0);
        assert!(cgroups.known.lock().len() <= CACHED_MAX);
    }
}

#[test]
fn limits_above_a_tenant_cover_it_and_the_outermost_count() {
    let machine = Machine::new();
    machine.limit("unified/kubepods/memory.max", "8388608\n");
    machine.limit("unified/kubepods/pod/memory.max", "max\n");
    machine.limit("unified/kubepods/pod/ctr/memory.max", "4194304\n");
    machine.cgroup("unified/kubepods/pod/ctr/x");
    let cgroups = cgroups(machine.v2(), &[("/kubepods/pod", 2 * MIB)]);
    let lineage = |path: &str| {
        let (_, tenant) = cgroups.resolve(Kind::Unified, path.into(), START).unwrap();
        let limits = tenant.lineage().map(|tenant| (tenant.path.clone(), tenant.limit_bytes.unwrap() / MIB));
        limits.collect::<Vec<_>>()
    };
    let pod = [("/kubepods/pod".to_owned(), 2), ("/kubepods".to_owned(), 8)];
    assert_eq!(lineage("/kubepods/pod"), pod);
    assert_eq!(lineage("/kubepods/pod/ctr/x"), [&[("/kubepods/pod/ctr".to_owned(), 4)][..], &pod].concat());
    // A container makes cgroups of its own.
    let deep = (0..20).fold("/kubepods/pod/ctr".to_owned(), |path, level| {
        let path = format!("{path}/{level}");
        machine.limit(&format!("unified{path}/memory.max"), "1048576\n");
        path
    });
    let found = lineage(&deep);
    assert_eq!((found.len(), &found[0].0), (Memcg::LEVELS_MAX, &deep));
    assert_eq!(found[Memcg::LEVELS_MAX - 2..], pod);
}

/// Cgroups of the random tree, each after the one above it.
const TREE: [&str; 7] = ["/", "/a", "/a/a", "/a/b", "/a/b/a", "/b", "/b/a"];

fn limit_of_the_tree() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![Just(None), (1..100u64).prop_map(|mib| Some(mib * MIB))]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The model checks one path after the other, without files or caches.
    #[test]
    fn tenants_are_those_of_a_plain_model(
        limits in proptest::collection::vec((limit_of_the_tree(), limit_of_the_tree()), TREE.len()),
        is_memory: bool,
    ) {
        let machine = Machine::new();
        let (kind, mount, file) = if is_memory {
            (Kind::Memory, "memory", "memory.limit_in_bytes")
        } else {
            (Kind::Unified, "unified", "memory.max")
        };
        let mut configured = Vec::new();
        for (path, (in_file, in_map)) in TREE.iter().zip(&limits) {
            let text = in_file.map_or_else(|| "max".to_owned(), |bytes| bytes.to_string());
            machine.limit(&format!("{mount}{path}/{file}"), &text);
            configured.extend(in_map.map(|bytes| (*path, bytes)));
        }
        let cgroups = cgroups(if is_memory { machine.v1() } else { machine.v2() }, &configured);
        for leaf in TREE {
            let mut expected = vec![(leaf.get(..2).unwrap_or("/").to_owned(), None)];
            for (path, (in_file, in_map)) in TREE.iter().zip(&limits) {
                let is_above = *path == "/" || leaf == *path || leaf.starts_with(&format!("{path}/"));
                let limit = in_file.iter().chain(in_map).min();
                if let Some(limit) = limit.filter(|_| is_above) {
                    expected.retain(|(_, limit)| limit.is_some());
                    expected.insert(0, ((*path).to_owned(), Some(*limit)));
                }
            }
            let (_, tenant) = cgroups.resolve(kind, leaf.into(), START).unwrap();
            let found: Vec<_> = tenant.lineage().map(|tenant| (tenant.path.clone(), tenant.limit_bytes)).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
