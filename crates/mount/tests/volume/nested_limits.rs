//! Limits of cgroups above one another: each holds for all data below it.
//!
//! The cgroups have the places and names that a kubelet gives them. On a machine with both layouts, each test runs in both.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use slackwater::Tunables;
use slackwater_host::cgroup::Hierarchy;
use slackwater_mount::tenants::{TenantBy, TenantConfig};
use slackwater_testkit::Rate;

use crate::cgroups::{Cgroup, memory, unified};
use crate::programs::{LONG, until, wait};
use crate::rig::{Rig, TenantSetup, assert_same};
use crate::tenants::{Original, dd};

const MIB: u64 = 1 << 20;
/// The largest request.
const MAX_WRITE: u64 = MIB;
const LIMIT: u64 = 8 * MIB;
/// A limit that nothing here reaches.
const LARGE: u64 = 48 * MIB;

/// A pod with two containers. The fields are in the order in which cgroups can be removed.
struct Pod {
    containers: [Cgroup; 2],
    pod: Cgroup,
    _qos: Cgroup,
    /// The cgroup of all pods.
    pods: Cgroup,
}

impl Pod {
    fn new(hierarchy: &Hierarchy) -> Self {
        let pods = Cgroup::top(hierarchy);
        let qos = pods.below("kubepods-burstable.slice");
        let pod = qos.below("kubepods-burstable-pod0a1b2c3d_4e5f_4071_8293_a4b5c6d7e8f9.slice");
        let container = |id: &str| pod.below(&format!("cri-containerd-{}.scope", id.repeat(32)));
        Self { containers: [container("4f"), container("5e")], pod, _qos: qos, pods }
    }

    /// A slow volume with limits by cgroup.
    fn rig(limits_bytes: &[(&Cgroup, u64)]) -> Rig {
        let limits: Vec<_> = limits_bytes.iter().map(|(cgroup, bytes)| (cgroup.path.as_str(), *bytes)).collect();
        let setup = TenantSetup::of(TenantBy::Cgroup, &limits);
        let slow = |directory| Arc::new(Rate::new(Arc::new(directory), 100 * MIB)) as Arc<_>;
        Rig::with_tenants(256 * MIB, Tunables { dirty_percent: 50, ..Tunables::default() }, setup, slow)
    }
}

fn hierarchies() -> impl Iterator<Item = Hierarchy> {
    [unified(), memory()].into_iter().flatten()
}

/// Lets a program of each cgroup write `total` bytes. Returns the most that was charged to `watched` meanwhile.
fn most_charged(rig: &Rig, from: &[&Cgroup], watched: &Cgroup, total: u64) -> u64 {
    let original = Original::new(rig, total);
    let name = |number: usize| format!("of {number}");
    let mut writers: Vec<_> = from
        .iter()
        .enumerate()
        .map(|(number, cgroup)| dd(cgroup, &original.0, &rig.file(name(number)), MAX_WRITE as usize))
        .collect();
    let (start, mut most) = (Instant::now(), 0);
    while writers.iter_mut().any(|writer| writer.try_wait().unwrap().is_none()) {
        most = most.max(rig.charged_bytes(&watched.path));
        assert!(start.elapsed() < 2 * LONG, "the writers do not finish");
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    for (number, writer) in writers.iter_mut().enumerate() {
        assert!(wait(writer).unwrap().success());
        rig.mounted.sync().unwrap();
        assert_same(&fs::read(rig.stored(name(number))).unwrap(), &original.1);
    }
    most
}

#[test]
fn p08_the_smallest_limit_holds_whether_of_the_container_the_pod_or_all_pods() {
    for hierarchy in hierarchies() {
        for level in ["container", "pod", "all pods"] {
            let kube = Pod::new(&hierarchy);
            let limit = |of| if of == level { LIMIT } else { LARGE };
            let [one, two] = &kube.containers;
            let rig = Pod::rig(&[
                (one, limit("container")),
                (two, limit("container")),
                (&kube.pod, limit("pod")),
                (&kube.pods, limit("all pods")),
            ]);
            let (watched, writers) = match level {
                "container" => (one, 1),
                "pod" => (&kube.pod, 2),
                _ => (&kube.pods, 2),
            };
            let most = most_charged(&rig, &[one, two], watched, 24 * MIB);
            println!("a limit of the {level}: at most {} KiB of {} KiB", most >> 10, LIMIT >> 10);
            assert!((LIMIT / 4..=LIMIT + writers * MAX_WRITE).contains(&most), "{level}: {most}");
            rig.umount().unwrap();
        }
    }
}

/// The nearest limits are those of the containers: the pod gets its own only while they write, as from an annotation.
#[test]
fn p08_a_pod_gets_a_limit_and_loses_it_while_its_limited_containers_write() {
    for hierarchy in hierarchies() {
        let kube = Pod::new(&hierarchy);
        let [one, two] = &kube.containers;
        let rig = Pod::rig(&[(one, LARGE), (two, LARGE)]);
        let set = |config| rig.tenancy.as_ref().unwrap().set_config(Path::new(&kube.pod.path), config).unwrap();
        for _ in 0..2 {
            let most = most_charged(&rig, &[one, two], one, 24 * MIB);
            assert!(most > LIMIT, "without a limit of the pod, its container has {most}");
            set(TenantConfig::limit(LIMIT));
            let most = most_charged(&rig, &[one, two], &kube.pod, 24 * MIB);
            assert!((LIMIT / 4..=LIMIT + 2 * MAX_WRITE).contains(&most), "{most}");
            let parent_of = |cgroup: &Cgroup| rig.memcg(&cgroup.path).and_then(|memcg| memcg.parent().cloned());
            assert_eq!(parent_of(one).map(|parent| parent.name().to_owned()), Some(kube.pod.path.clone()));
            set(TenantConfig::default());
        }
        // The containers' tenants under the pod and without it, of which two are left.
        let count = |cgroup: &Cgroup| rig.engine.memcgs().iter().filter(|memcg| memcg.name() == cgroup.path).count();
        rig.umount().unwrap();
        until("replaced tenants are gone", || count(one) <= 1 && count(two) <= 1);
    }
}

/// Limits of cgroups within a container, and settings that make a tenant without a limit.
#[test]
fn p08_nothing_below_a_limit_gets_out_of_it() {
    for hierarchy in hierarchies() {
        let kube = Pod::new(&hierarchy);
        let [one, _] = &kube.containers;
        let inner = one.below("inner");
        let uncached = one.below("uncached");
        let rig = Pod::rig(&[(&kube.pod, LIMIT), (&inner, LARGE)]);
        let settings = TenantConfig { limit_bytes: None, dontcache: Some(false) };
        rig.tenancy.as_ref().unwrap().set_config(Path::new(&uncached.path), settings).unwrap();
        let most = most_charged(&rig, &[&inner, &uncached], &kube.pod, 24 * MIB);
        assert!((LIMIT / 4..=LIMIT + 2 * MAX_WRITE).contains(&most), "{most}");
        rig.umount().unwrap();
    }
}

/// Two tenants below one limit write the same pages in turn: each page counts once for the limit.
#[test]
fn p08_pages_that_change_hands_below_a_limit_count_once() {
    for hierarchy in hierarchies() {
        let kube = Pod::new(&hierarchy);
        let [one, two] = &kube.containers;
        let rig = Pod::rig(&[(one, LARGE), (two, LARGE), (&kube.pod, LARGE)]);
        rig.faults.add(slackwater_testkit::Rule::hold().on("write"));
        let original = Original::new(&rig, 4 * MIB);
        for (writer, other) in [(one, two), (two, one), (one, two)] {
            let of = format!("of={}", rig.file("same").display());
            let from = format!("if={}", original.0.display());
            let mut child = writer.command("dd", &[&from, &of, "bs=1M", "conv=notrunc"]).spawn().unwrap();
            assert!(wait(&mut child).unwrap().success());
            let charged = [writer, other, &kube.pod].map(|cgroup| rig.charged_bytes(&cgroup.path));
            assert_eq!(charged, [4 * MIB, 0, 4 * MIB]);
        }
        rig.let_through();
        rig.mounted.sync().unwrap();
        assert_eq!([one, two, &kube.pod].map(|cgroup| rig.charged_bytes(&cgroup.path)), [0; 3]);
        rig.umount().unwrap();
    }
}
