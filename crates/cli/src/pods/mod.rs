//! Pods and containers behind tenants: ids from the paths of cgroups ([`pod_cgroup`](slackwater_control::pod_cgroup)), and the names that a platform gives.
//!
//! A platform names a pod by its UID, usually when it mounts a volume for it. At that time the pod may not have a cgroup
//! yet.
//!
//! # Invariants
//! N1. The name of a pod with a cgroup stays. Others are forgotten when the table is full.
//! N2. A name is in the file before it is acknowledged. So the process that takes a daemon over has all names.
//! N3. Names have letters, digits, `-`, `_` and `.` only, and are no longer than those of Kubernetes. They need no
//!     escaping anywhere.

mod file;
mod living;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use slackwater_control::exit::Failure;
use slackwater_control::pod_cgroup::{Place, is_pod_uid};
use slackwater_control::protocol::Container;
use slackwater_host::Printable as _;

/// Maximum number of pods with a name. A node has a few hundred pods.
const PODS_MAX: usize = 1024;
/// Maximum lengths of names: a label, and a domain name.
const NAMESPACE_MAX: usize = 63;
const NAME_MAX: usize = 253;

/// The beginning of a pod in requests, before its UID.
const PREFIX: &str = "pod:";

/// The name of a pod.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
struct PodName {
    namespace: String,
    name: String,
}

impl PodName {
    /// Parses `namespace/pod`.
    fn parse(text: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/')?;
        let fits = |part: &str, max| {
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            (1..=max).contains(&part.len()) && part.bytes().all(is_allowed)
        };
        let is_valid = fits(namespace, NAMESPACE_MAX) && fits(name, NAME_MAX);
        is_valid.then(|| Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

type Names = BTreeMap<String, PodName>;

/// The names of pods, by their UIDs.
#[derive(Debug, Default)]
pub(crate) struct Pods {
    names: Mutex<Names>,
    /// N2. `None` in a process that gets no names.
    file: Option<PathBuf>,
}

impl Pods {
    /// The pods with the names that a predecessor has left in `file`.
    pub(crate) fn load(file: PathBuf) -> Self {
        let names = file::read(&file);
        Self { names: Mutex::new(names), file: Some(file) }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        // A thread that panicked has changed one entry or none.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names the pod `tenant`: `pod:UID`, or the path of its cgroup or of one below. With `none` it has no name any more.
    ///
    /// # Errors
    /// The tenant is not a pod, or the name is invalid. `Busy`, if too many pods that have cgroups are named.
    ///
    /// # Blocking
    /// For the file, and sometimes for a walk through all cgroups.
    pub(crate) fn set_name(&self, tenant: &Path, name: &str) -> Result<(), Failure> {
        let uid = uid_of(tenant)?;
        let name = match name {
            "none" => None,
            name => Some(PodName::parse(name).ok_or_else(|| invalid(name))?),
        };
        self.change(uid, name, || living::cgroups().into_keys().collect())
    }

    fn change(&self, uid: String, name: Option<PodName>, living: impl Fn() -> HashSet<String>) -> Result<(), Failure> {
        let mut names = self.names();
        let before = names.clone();
        match name {
            None => drop(names.remove(&uid)),
            Some(name) => {
                if names.len() >= PODS_MAX && !names.contains_key(&uid) {
                    let living = living();
                    names.retain(|uid, _| living.contains(uid)); // N1
                }
                if names.len() >= PODS_MAX && !names.contains_key(&uid) {
                    return Err(Failure::busy(format!("{PODS_MAX} pods are named, and all of them have cgroups")));
                }
                names.insert(uid, name);
            }
        }
        if *names == before {
            return Ok(());
        }
        let Some(path) = &self.file else { return Ok(()) };
        file::write(path, &names).map_err(|error| {
            *names = before;
            Failure::failed(format!("cannot keep the name of the pod in {}: {error}", path.printable()))
        })
    }

    /// The container or pod that is the tenant `name`, with its names.
    pub(crate) fn container(&self, name: &str) -> Container {
        let Some(Place { pod_uid, qos, container_id, runtime }) = Place::of(name) else { return Container::default() };
        let named = pod_uid.as_ref().and_then(|uid| self.names().get(uid).cloned());
        let (namespace, pod) = named.map(|named| (named.namespace, named.name)).unzip();
        Container {
            namespace,
            pod,
            pod_uid,
            qos_class: qos.map(|qos| qos.to_string()),
            runtime: runtime.map(|runtime| runtime.to_string()),
            container_id: container_id.map(str::to_owned),
        }
    }

    /// Removes the file: nothing is mounted any more, and no successor needs the names.
    pub(crate) fn end(&self) {
        if let Some(path) = &self.file {
            file::remove(path);
        }
    }
}

/// The tenants that a request calls `tenant`: of a pod, its cgroups.
///
/// # Errors
/// `pod:` is not followed by a UID, or the pod has no cgroup.
///
/// # Blocking
/// For a pod, for a walk through all cgroups.
pub(crate) fn tenants_of(tenant: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !tenant.to_str().is_some_and(|text| text.starts_with(PREFIX)) {
        return Ok(vec![tenant.to_owned()]);
    }
    let uid = uid_of(tenant)?;
    let cgroups = living::cgroups().remove(&uid);
    cgroups.map(Vec::from_iter).ok_or_else(|| {
        Failure::failed(format!("the pod {uid} has no cgroup")).advise("try again once its first container is created")
    })
}

/// The UID of the pod that a request calls `tenant`.
fn uid_of(tenant: &Path) -> Result<String, Failure> {
    let text = tenant.to_str().unwrap_or_default();
    let uid = match text.strip_prefix(PREFIX) {
        Some(uid) => Some(uid.to_owned()).filter(|uid| is_pod_uid(uid)),
        None => Place::of(text).and_then(|place| place.pod_uid),
    };
    uid.ok_or_else(|| {
        let shown: String = tenant.printable().to_string().chars().take(100).collect();
        Failure::usage(format!("{shown} is not a pod")).advise("write pod:UID, or the path of the pod's cgroup")
    })
}

fn invalid(name: &str) -> Failure {
    let shown: String = name.printable().to_string().chars().take(100).collect();
    Failure::usage(format!("name={shown} is not the name of a pod")).advise(format!(
        "write name=NAMESPACE/POD, with at most {NAMESPACE_MAX} and {NAME_MAX} letters, digits, `-`, `_` and `.`"
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const UID: &str = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";

    fn uid(number: usize) -> String {
        format!("{number:032x}")
    }

    /// The name of a pod, as a tenant shows it.
    fn name(pods: &Pods, uid: &str) -> Option<String> {
        let container = pods.container(&format!("/kubepods/pod{uid}"));
        Some(format!("{}/{}", container.namespace?, container.pod?))
    }

    fn set(pods: &Pods, tenant: &str, name: &str) -> Result<(), String> {
        pods.set_name(Path::new(tenant), name).map_err(|failure| failure.to_string())
    }

    #[test]
    fn labels_have_names_if_there_are_any_and_otherwise_ids() {
        let id = "4f5e6a7b8c9d0e1f2a3b4c5d6e7f8a9b0c1d2e3f4a5b6c7d8e9f0a1b2c3d4e5f";
        let pod = "/kubepods/pod0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";
        let pods = Pods::default();
        let label = |path: &str| pods.container(path).label();
        let systemd = format!("/kubepods.slice/kubepods-pod{}.slice/cri-containerd-{id}.scope", "0a1b2c3d".repeat(4));
        for (path, wanted) in [
            (format!("{pod}/{id}"), "pod 0a1b2c3d.../4f5e6a7b8c9d..."),
            (systemd, "pod 0a1b2c3d.../containerd 4f5e6a7b8c9d..."),
            (pod.to_owned(), "pod 0a1b2c3d..."),
            (format!("/docker/{id}"), "docker 4f5e6a7b8c9d..."),
        ] {
            assert_eq!(label(&path).as_deref(), Some(wanted));
        }
        assert_eq!(label("/system.slice"), None);
        pods.set_name(pod.as_ref(), "default/web-0").unwrap();
        assert_eq!(label(&format!("{pod}/crio-{id}")).as_deref(), Some("default/web-0/4f5e6a7b8c9d..."));
        assert_eq!(label(pod).as_deref(), Some("default/web-0"));
    }

    #[test]
    fn a_pod_is_named_by_its_uid_or_by_a_cgroup_until_the_name_is_taken_away() {
        let pods = Pods::default();
        let cgroup = format!("/kubepods.slice/kubepods-pod{}.slice", UID.replace('-', "_"));
        set(&pods, &format!("pod:{UID}"), "default/web-0").unwrap();
        assert_eq!(name(&pods, UID).as_deref(), Some("default/web-0"));
        assert_eq!(pods.container(&cgroup).pod.as_deref(), Some("web-0"));
        set(&pods, &cgroup, "default/web-1").unwrap();
        assert_eq!(name(&pods, UID).as_deref(), Some("default/web-1"));
        assert_eq!(name(&pods, &uid(1)), None);
        set(&pods, &cgroup, "none").unwrap();
        assert_eq!(name(&pods, UID), None);
        assert_eq!(pods.container("/system.slice"), Container::default());
    }

    #[test]
    fn hostile_names_and_lengths_are_refused() {
        let pods = Pods::default();
        let pod = format!("pod:{UID}");
        let long = [format!("a/{}", "b".repeat(254)), format!("{}/b", "a".repeat(64)), "x/".repeat(40_000)];
        let bad = ["", "a", "/", "a/", "/b", "a/b/c", "a/b\n", "a/\u{1b}[2J", "a/\u{202e}b", "a/b c", "a/b\"", "a\0/b"];
        for word in bad.into_iter().chain(long.iter().map(String::as_str)) {
            let refusal = set(&pods, &pod, word).unwrap_err();
            assert!(refusal.contains("NAMESPACE/POD") && refusal.len() < 500, "{refusal}");
            assert!(!refusal.contains(['\u{1b}', '\u{202e}', '\0']), "{refusal:?}");
        }
        for tenant in ["pod:", "pod:x", "uid:0", "volume", "/a", "pod:../../../../../../../../../../etc/x"] {
            assert!(set(&pods, tenant, "a/b").unwrap_err().contains("pod:UID"), "{tenant}");
        }
        assert!(pods.names().is_empty());
        set(&pods, &pod, &format!("{}/{}", "a".repeat(63), "b".repeat(253))).unwrap();
    }

    #[test]
    fn names_of_pods_without_cgroups_make_space_and_others_stay() {
        let pods = Pods::default();
        let add = |number, living: &[usize]| {
            let living = || living.iter().map(|number| uid(*number)).collect();
            pods.change(uid(number), PodName::parse(&format!("n/p{number}")), living)
        };
        (0..PODS_MAX).for_each(|number| add(number, &[]).unwrap());
        assert_eq!(pods.names().len(), PODS_MAX, "nothing is forgotten before it is full");
        add(0, &[]).unwrap();
        assert_eq!(pods.names().len(), PODS_MAX, "an old pod needs no space");
        add(PODS_MAX, &[3, 5]).unwrap();
        assert_eq!(pods.names().keys().cloned().collect::<Vec<_>>(), [uid(3), uid(5), uid(PODS_MAX)]);
        let all: Vec<usize> = (0..2 * PODS_MAX).collect();
        (0..PODS_MAX).for_each(|number| add(number, &all).unwrap_or_else(|_| assert_eq!(number, PODS_MAX - 1)));
        assert!(add(2000, &all).unwrap_err().what.contains("1024"));
    }

    #[test]
    fn a_successor_has_the_names_and_a_damaged_file_costs_nothing_else() {
        let path = std::env::temp_dir().join(format!("slackwater-pods-{}", std::process::id()));
        let load = || Pods::load(path.clone());
        set(&load(), &format!("pod:{UID}"), "default/web-0").unwrap();
        assert_eq!(name(&load(), UID).as_deref(), Some("default/web-0"));
        let text = fs::read_to_string(&path).unwrap();
        let hostile = text.replace("web-0", "web-0\\n").into_bytes();
        for damaged in [text.as_bytes()[..20].to_vec(), vec![0xff; 100], Vec::new(), hostile] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(name(&load(), UID), None);
            set(&load(), &format!("pod:{UID}"), "default/web-1").unwrap();
            assert_eq!(name(&load(), UID).as_deref(), Some("default/web-1"));
        }
        load().end();
        assert!(!path.exists());
    }
}
