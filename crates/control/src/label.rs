//! The short form of a pod or container, for people.

use crate::protocol::Container;

/// Characters of ids that are shown: the first part of a UUID, and as many as `docker ps` shows of a container.
const UID_SHOWN: usize = 8;
const ID_SHOWN: usize = 12;

impl Container {
    /// `namespace/pod/0123456789ab...`, or `pod 01234567.../containerd 0123456789ab...` without names. `None` if it is
    /// neither a pod nor a container.
    pub fn label(&self) -> Option<String> {
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
    pub fn message_bytes(&self) -> usize {
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
