//! The short form of a pod or container, for people.

use crate::control::protocol::Container;

/// Characters of ids that are shown: the first part of a UUID, and as many as `docker ps` shows of a container.
const UID_SHOWN: usize = 8;
const ID_SHOWN: usize = 12;

impl Container {
    /// `namespace/pod/0123456789ab...`, or `pod 01234567.../containerd 0123456789ab...` without names. `None` if it is
    /// neither a pod nor a container.
    pub(crate) fn label(&self) -> Option<String> {
        let pod = match (&self.namespace, &self.pod, &self.pod_uid) {
            (Some(namespace), Some(pod), _) => Some(format!("{namespace}/{pod}")),
            (_, _, Some(uid)) => Some(format!("pod {}", short(uid, UID_SHOWN))),
            _ => None,
        };
        let id = self.container_id.as_ref().map(|id| short(id, ID_SHOWN));
        let has_name = self.pod.is_some();
        let container = id.map(|id| match &self.runtime {
            Some(runtime) if !has_name => format!("{runtime} {id}"),
            _ => id,
        });
        let parts: Vec<String> = pod.into_iter().chain(container).collect();
        (!parts.is_empty()).then(|| parts.join("/"))
    }

    /// Maximum bytes of these texts in a message.
    pub(crate) fn message_bytes(&self) -> usize {
        let Self { namespace, pod, pod_uid, qos_class, runtime, container_id } = self;
        let texts = [namespace, pod, pod_uid, qos_class, runtime, container_id];
        // Each has a key and quotes; nothing in it is escaped.
        texts.into_iter().flatten().map(|text| text.len() + 20).sum()
    }
}

fn short(id: &str, shown: usize) -> String {
    let start: String = id.chars().take(shown).collect();
    if start.len() < id.len() { start + "..." } else { start }
}

#[cfg(test)]
mod tests {
    use crate::pods::Pods;

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
}
