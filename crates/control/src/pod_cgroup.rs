//! The container and the pod behind a cgroup, by its path alone.
//!
//! ```text
//! /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope   systemd
//! /kubepods/burstable/pod<uid>/<id>                                                                      cgroupfs
//! /system.slice/docker-<id>.scope, /docker/<id>, /machine.slice/libpod-<id>.scope                        without pods
//! ```
//!
//! All of them also occur below other cgroups: a node of kind is a container, and its kubelet has a root of its own
//! (`kubelet.slice/kubelet-kubepods.slice`). The innermost pod or container counts, and a container outside that pod
//! is its node.
//!
//! A user to whom a cgroup is delegated can create any name in it, so the result is for people, and nothing is
//! permitted by it. Ids have hexadecimal digits and dashes only.

use std::fmt;

/// Characters of the id of a container.
const ID_LEN: usize = 64;
/// Lengths of the UID of a pod: a hash for a static pod, otherwise a UUID.
const UID_LEN: std::ops::RangeInclusive<usize> = 32..=36;

/// The program that runs a container.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Runtime {
    Containerd,
    CriO,
    Docker,
    Podman,
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Containerd => "containerd",
            Self::CriO => "cri-o",
            Self::Docker => "docker",
            Self::Podman => "podman",
        })
    }
}

/// The quality-of-service class of a pod, as the kubelet sorts pods into cgroups.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Qos {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl fmt::Display for Qos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A pod or a container. At least one of `pod_uid` and `container_id` is known.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Place<'p> {
    /// The UID with dashes between its parts, also if the name of the cgroup has underscores there.
    pub pod_uid: Option<String>,
    pub qos: Option<Qos>,
    pub container_id: Option<&'p str>,
    /// The runtime; `None` where the name of the cgroup does not say it.
    pub runtime: Option<Runtime>,
}

impl<'p> Place<'p> {
    /// The innermost container or pod of the cgroup at `path`.
    pub fn of(path: &'p str) -> Option<Self> {
        let mut place = Self::default();
        let (mut qos, mut above) = (None, "");
        for name in path.split('/').filter(|name| !name.is_empty()) {
            qos = qos_of(name).or(qos);
            if let Some(uid) = pod_uid_of(name) {
                place = Self { pod_uid: Some(uid), qos: qos.take(), ..Self::default() };
            } else if let Some((runtime, id)) = container_of(name, above) {
                (place.runtime, place.container_id) = (runtime, Some(id));
            }
            above = name;
        }
        (place.pod_uid.is_some() || place.container_id.is_some()).then_some(place)
    }
}

/// Whether `text` can be the UID of a pod.
pub fn is_pod_uid(text: &str) -> bool {
    UID_LEN.contains(&text.len()) && text.bytes().all(|byte| is_digit(byte) || byte == b'-')
}

/// The UID of the pod whose cgroup has this name.
pub fn pod_uid_of(name: &str) -> Option<String> {
    let uid = match name.strip_suffix(".slice") {
        // In the name of a slice, a dash separates it from the slices above.
        Some(slice) => {
            let (above, uid) = slice.rsplit_once("-pod")?;
            is_kubepods(above).then(|| uid.replace('_', "-"))?
        }
        None => name.strip_prefix("pod")?.to_owned(),
    };
    is_pod_uid(&uid).then_some(uid)
}

/// The class of the pods below a cgroup of the kubelet; pods directly below its root are guaranteed.
fn qos_of(name: &str) -> Option<Qos> {
    let slice = name.strip_suffix(".slice");
    match slice.and_then(|slice| slice.rsplit_once('-')).filter(|(above, _)| is_kubepods(above)) {
        Some((_, "burstable")) => return Some(Qos::Burstable),
        Some((_, "besteffort")) => return Some(Qos::BestEffort),
        _ => {}
    }
    match slice.unwrap_or(name) {
        "burstable" if slice.is_none() => Some(Qos::Burstable),
        "besteffort" if slice.is_none() => Some(Qos::BestEffort),
        root => root.rsplit('-').next().filter(|last| *last == "kubepods").map(|_| Qos::Guaranteed),
    }
}

/// Whether a slice is the kubelet's root, or of one of its classes.
fn is_kubepods(slice: &str) -> bool {
    slice.split('-').any(|part| part == "kubepods")
}

/// The container whose cgroup has this name, below a cgroup with the name `above`.
fn container_of<'n>(name: &'n str, above: &str) -> Option<(Option<Runtime>, &'n str)> {
    let scope = name.strip_suffix(".scope").unwrap_or(name);
    let (runtime, id) = match scope.rsplit_once('-') {
        Some(("cri-containerd", id)) => (Some(Runtime::Containerd), id),
        Some(("crio", id)) => (Some(Runtime::CriO), id),
        Some(("docker", id)) => (Some(Runtime::Docker), id),
        Some(("libpod", id)) => (Some(Runtime::Podman), id),
        Some(_) => return None,
        None if above == "docker" => (Some(Runtime::Docker), name),
        None if pod_uid_of(above).is_some() => (None, name),
        None => return None,
    };
    (id.len() == ID_LEN && id.bytes().all(is_digit)).then_some((runtime, id))
}

fn is_digit(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "4f5e6a7b8c9d0e1f2a3b4c5d6e7f8a9b0c1d2e3f4a5b6c7d8e9f0a1b2c3d4e5f";
    const OTHER: &str = "00000000000000000000000000000000000000000000000000000000000000aa";
    const UID: &str = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";
    const HASH: &str = "0a1b2c3d4e5f60718293a4b5c6d7e8f9";

    /// The path with ids in place of `ID`, `OTHER`, `UID` (with underscores: `U_D`) and `HASH`.
    fn path(pattern: &str) -> String {
        let path = pattern.replace("ID", ID).replace("OTHER", OTHER);
        path.replace("U_D", &UID.replace('-', "_")).replace("HASH", HASH)
    }

    /// `pod`, `pod/runtime container` and so on, with the class of the pod.
    fn described(path: &str) -> String {
        let Some(place) = Place::of(path) else { return "-".to_owned() };
        let pod = place.pod_uid.as_deref().map(|uid| match uid {
            UID => "uid",
            HASH => "hash",
            _ => "?",
        });
        let container = place.container_id.map(|id| match id {
            ID => "id",
            OTHER => "other",
            _ => "?",
        });
        let runtime = place.runtime.map(|runtime| runtime.to_string());
        let words =
            [place.qos.map(|qos| qos.to_string()), pod.map(str::to_owned), runtime, container.map(str::to_owned)];
        words.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn layouts_of_kubelets_and_runtimes() {
        let table = [
            // systemd, with each class.
            (
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_D.slice/cri-containerd-ID.scope",
                "Burstable uid containerd id",
            ),
            (
                "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_D.slice/crio-ID.scope",
                "BestEffort uid cri-o id",
            ),
            ("/kubepods.slice/kubepods-podU_D.slice/docker-ID.scope", "Guaranteed uid docker id"),
            ("/kubepods.slice/kubepods-podU_D.slice", "Guaranteed uid"),
            (
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podHASH.slice/cri-containerd-ID.scope",
                "Burstable hash containerd id",
            ),
            // A cgroup that the container has made below its own.
            ("/kubepods.slice/kubepods-podU_D.slice/cri-containerd-ID.scope/init", "Guaranteed uid containerd id"),
            // The monitor of a container is not the container.
            ("/kubepods.slice/kubepods-podU_D.slice/crio-conmon-ID.scope", "Guaranteed uid"),
            // cgroupfs.
            ("/kubepods/burstable/podUID/ID", "Burstable uid id"),
            ("/kubepods/besteffort/podUID/ID", "BestEffort uid id"),
            ("/kubepods/podUID/ID", "Guaranteed uid id"),
            ("/kubepods/podUID/crio-ID", "Guaranteed uid cri-o id"),
            ("/kubepods/podHASH", "Guaranteed hash"),
            // Below the root of kind, and below its container.
            (
                "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-podU_D.slice/cri-containerd-ID.scope",
                "Burstable uid containerd id",
            ),
            (
                "/docker/OTHER/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podU_D.slice/cri-containerd-ID.scope",
                "Guaranteed uid containerd id",
            ),
            ("/docker/OTHER/kubelet/kubepods/besteffort/podUID", "BestEffort uid"),
            ("/system.slice/docker-OTHER.scope", "docker other"),
            // Docker in a pod.
            ("/kubepods/podUID/OTHER/docker/ID", "Guaranteed uid docker id"),
            // Without pods.
            ("/system.slice/docker-ID.scope", "docker id"),
            ("/docker/ID", "docker id"),
            ("/machine.slice/libpod-ID.scope", "podman id"),
            ("/machine.slice/libpod-ID.scope/container", "podman id"),
            ("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope", "podman id"),
            ("/libpod_parent/libpod-ID", "podman id"),
            ("/system.slice/crio-ID.scope", "cri-o id"),
            // Not of a container.
            ("", "-"),
            ("/", "-"),
            ("root", "-"),
            ("uid:1000", "-"),
            ("volume", "-"),
            ("/kubepods.slice", "-"),
            ("/kubepods/burstable", "-"),
            ("/kubepods.slice/kubepods-burstable.slice", "-"),
            ("/system.slice/backup.service", "-"),
            ("/ID", "-"),
            ("/docker/4f5e", "-"),
            ("/kubepods/pod0a1b", "-"),
            ("/system.slice/system-podU_D.slice", "-"),
            ("/kubepods.slice/kubepods-podUID.scope", "-"),
            ("/machine.slice/libpod-conmon-ID.scope", "-"),
            ("/system.slice/docker-ID.scopes", "-"),
        ];
        for (pattern, wanted) in table {
            // UID is a part of U_D in no pattern, and ID is one of UID.
            let pattern = pattern.replace("UID", UID);
            assert_eq!(described(&path(&pattern)), wanted, "{pattern}");
        }
    }

    #[test]
    fn upper_case_and_foreign_characters_make_no_id() {
        let bad =
            [ID.to_uppercase(), ID.replace('4', "g"), ID.replace('4', "\u{e9}"), format!("{ID}0"), ID[1..].to_owned()];
        for id in bad {
            assert_eq!(Place::of(&format!("/docker/{id}")), None, "{id}");
        }
        for uid in ["0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8\u{1b}[", "../../../../../../../../../../../etc"] {
            assert!(!is_pod_uid(uid) && Place::of(&format!("/kubepods/pod{uid}")).is_none(), "{uid}");
        }
    }

    proptest! {
        #[test]
        fn any_path_is_parsed_without_a_panic(path in any::<String>()) {
            let _ = Place::of(&path);
        }

        /// The paths are made of the parts of real names, in any order.
        #[test]
        fn any_arrangement_of_real_parts_gives_ids_that_print(parts in proptest::collection::vec(
            prop_oneof![
                Just("/"), Just("-"), Just("_"), Just("pod"), Just("kubepods"), Just("burstable"), Just(".slice"),
                Just(".scope"), Just("docker"), Just("cri-containerd"), Just("crio"), Just("libpod"), Just(ID),
                Just(UID), Just(HASH), Just("\u{1b}[2J"), Just("\u{202e}"),
            ],
            0..12,
        )) {
            if let Some(place) = Place::of(&parts.concat()) {
                prop_assert!(place.pod_uid.as_deref().is_none_or(is_pod_uid));
                prop_assert!(place.container_id.is_none_or(|id| id.len() == ID_LEN && id.is_ascii()));
                prop_assert!(place.pod_uid.is_some() || place.container_id.is_some());
            }
        }
    }
}
