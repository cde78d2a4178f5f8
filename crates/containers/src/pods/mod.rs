//! Limits of a pod: its annotations, for all that its containers write to all volumes together.
//!
//! kubelet keeps the containers of a pod in cgroups below one of the pod. That cgroup becomes a tenant of the daemon, with
//! the limits of the annotations `slackwater.dirty-limit` and `slackwater.dontcache`: the words of volumes' attributes.
//! The key of an annotation needs no prefix, and a prefix would have to be a domain of ours.
//!
//! ```text
//! cgroup  the cgroup of a pod, by its uid
//! api     the annotations of a pod, from the API of Kubernetes
//! ```

mod api;
mod cgroup;

use std::collections::BTreeMap;
use std::path::Path;

use slackwater_control::exit::Failure;

use crate::limits::Limits;

pub(crate) use self::api::Api;
pub(crate) use self::cgroup::find as cgroup_of;

/// Keys of a volume's context that kubelet fills in, if the CSIDriver object has `podInfoOnMount: true`.
const NAME: &str = "csi.storage.k8s.io/pod.name";
const NAMESPACE: &str = "csi.storage.k8s.io/pod.namespace";
const UID: &str = "csi.storage.k8s.io/pod.uid";

/// The directory in which kubelet has a directory for each pod, by uid.
const PODS: &str = "pods";

/// The annotations that limit a pod.
const OF_POD: [&str; 2] = ["slackwater.dirty-limit", "slackwater.dontcache"];

/// A pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Pod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The UID, which differs even between pods with the same name.
    pub(crate) uid: String,
}

impl Pod {
    /// The pod for which a volume is published. `None` if the platform does not say.
    pub(crate) fn of_context(context: &BTreeMap<String, String>) -> Option<Self> {
        let field = |key| context.get(key).filter(|value| !value.is_empty()).cloned();
        Some(Self { namespace: field(NAMESPACE)?, name: field(NAME)?, uid: field(UID)? })
    }
}

/// The uid in a path at which kubelet has a volume published, such as
/// `/var/lib/kubelet/pods/UID/volumes/kubernetes.io~csi/NAME/mount`.
pub(crate) fn uid_of_target(target: &Path) -> Option<&str> {
    let mut parts = target.iter().skip_while(|part| *part != PODS);
    parts.nth(1)?.to_str()
}

/// The limits in the annotations of a pod.
///
/// # Errors
/// An annotation is invalid, or one for volumes only. The message names it.
fn limits_of(annotations: &BTreeMap<String, String>) -> Result<Limits, Failure> {
    let limits = Limits::parse(annotations)?;
    match limits.attributes().into_keys().find(|key| !OF_POD.contains(&key.as_str())) {
        None => Ok(limits),
        Some(key) => Err(Failure::usage(format!("the annotation {key} is not for pods"))
            .advise("set it for the volume: as a parameter of its storage class")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn kubelet_names_the_pod_of_a_volume() {
        let context = map(&[(NAME, "web-0"), (NAMESPACE, "shop"), (UID, "8c5b"), ("other", "x")]);
        let pod = Pod { namespace: "shop".into(), name: "web-0".into(), uid: "8c5b".into() };
        assert_eq!(Pod::of_context(&context), Some(pod));
        assert_eq!(Pod::of_context(&map(&[(NAME, "web-0"), (NAMESPACE, "shop"), (UID, "")])), None);
        let target = "/var/lib/kubelet/pods/8c5b/volumes/kubernetes.io~csi/pvc-1/mount";
        assert_eq!(uid_of_target(Path::new(target)), Some("8c5b"));
        assert_eq!(uid_of_target(Path::new("/tmp/csi/target")), None);
    }

    #[test]
    fn annotations_limit_a_pod_and_those_of_volumes_are_refused() {
        let annotations = map(&[("slackwater.dirty-limit", "64MiB"), ("slackwater.dontcache", "on"), ("team", "a")]);
        let limits = limits_of(&annotations).unwrap();
        assert_eq!((limits.get("dirty-limit"), limits.get("dontcache")), (Some("67108864"), Some("on")));
        assert_eq!(limits_of(&map(&[("team", "a")])), Ok(Limits::default()));
        let refusal = limits_of(&map(&[("slackwater.quota-inodes", "7")])).unwrap_err().to_string();
        assert!(refusal.contains("slackwater.quota-inodes") && refusal.contains("storage class"), "{refusal}");
        assert!(limits_of(&map(&[("slackwater.dirty-limit", "lots")])).unwrap_err().what.contains("lots"));
    }
}
