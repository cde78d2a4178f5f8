//! Limits and names of pods: a pod's cgroup is a tenant of the daemon.

use std::path::Path;

use slackwater_control::exit::Failure;
use slackwater_host::Printable as _;

use crate::limits::Limits;
use crate::node::{Node, NodeError};
use crate::pods::{Pod, cgroup_of};

/// The value of a setting that a tenant does not have.
const NONE: &str = "none";

impl Node {
    /// Names a pod where tenants are shown.
    ///
    /// # Errors
    /// The daemon does not answer, or is of an earlier version.
    pub(crate) fn name_pod(&self, pod: &Pod) -> Result<(), NodeError> {
        let Pod { namespace, name, uid } = pod;
        self.daemon.set_tenant(Path::new(&format!("pod:{uid}")), "name", &format!("{namespace}/{name}"))
    }

    /// Holds a pod to `limits`, which replace those that it had. It need not have written anything yet.
    ///
    /// # Errors
    /// The pod has no cgroup here, or the daemon has no tenants or does not answer.
    ///
    /// # Blocking
    /// For the daemon, and until the cgroups of this machine have been searched.
    pub(crate) fn limit_pod(&self, pod: &Pod, limits: &Limits) -> Result<(), NodeError> {
        let Some(cgroup) = cgroup_of(&pod.uid) else {
            let what = format!("the pod {} has no cgroup that is visible here", pod.name.printable());
            return Err(NodeError::State(
                Failure::failed(what)
                    .advise("a plugin in a container needs /sys/fs/cgroup of the machine, and its cgroup namespace"),
            ));
        };
        self.daemon.set_tenant(&cgroup, "limit", limits.get("dirty-limit").unwrap_or(NONE))?;
        self.daemon.set_tenant(&cgroup, "dontcache", limits.get("dontcache").unwrap_or(NONE))
    }

    /// Forgets the limits of a pod that ends. One without a cgroup has written its last.
    ///
    /// # Errors
    /// The daemon has no tenants, or does not answer.
    ///
    /// # Blocking
    /// As [`limit_pod`](Self::limit_pod).
    pub(crate) fn forget_pod(&self, uid: &str) -> Result<(), NodeError> {
        let Some(cgroup) = cgroup_of(uid) else { return Ok(()) };
        self.daemon.set_tenant(&cgroup, "limit", NONE)?;
        self.daemon.set_tenant(&cgroup, "dontcache", NONE)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::thread;
    use std::time::Duration;

    use slackwater_host::cgroup::Layout;

    use super::*;
    use slackwater_control::protocol::{Message, Reply, Request};

    /// A cgroup of a pod on this machine, removed with the test.
    struct Cgroup(PathBuf);

    impl Cgroup {
        /// Makes the cgroup at `path`, which is as in `/proc/PID/cgroup`. `None` if no cgroup can be made here.
        fn new(path: &Path) -> Option<Self> {
            let layout = Layout::parse(&fs::read_to_string("/proc/self/mountinfo").unwrap());
            let directory = layout.memory.or(layout.unified)?.directory(path)?;
            fs::create_dir_all(&directory).ok()?;
            Some(Self(directory))
        }
    }

    impl Drop for Cgroup {
        fn drop(&mut self) {
            // The pod, its class, and all pods.
            self.0.ancestors().take(3).for_each(|directory| drop(fs::remove_dir(directory)));
        }
    }

    #[test]
    fn a_pod_gets_its_limits_and_loses_them() {
        let uid = format!("00000000-0000-4000-8000-{:012x}", std::process::id());
        let path = Path::new("/slackwater-test-kubepods/burstable").join(format!("pod{uid}"));
        let Some(_cgroup) = Cgroup::new(&path) else {
            eprintln!("skipped: no cgroup can be made here");
            return;
        };
        let socket = std::env::temp_dir().join(format!("slackwater-pod-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&socket).unwrap();
        let named = PathBuf::from(format!("pod:{uid}"));
        let daemon = thread::spawn(move || {
            let mut settings = Vec::new();
            while settings.len() < 5 {
                let (mut peer, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(&peer).read_line(&mut line).unwrap();
                let request = serde_json::from_str::<Message<Request>>(&line).unwrap().body;
                let Request::SetTenant { tenant, key, value } = request else { panic!("{line}") };
                assert_eq!(tenant, if key == "name" { named.clone() } else { path.clone() });
                settings.push(format!("{key}={value}"));
                peer.write_all(&Message::new(Reply::Done).line()).unwrap();
            }
            settings
        });
        let node = Node::new(socket.clone(), Duration::ZERO);
        let pod = Pod { namespace: "shop".into(), name: "web-0".into(), uid };
        let limits = Limits::parse(
            &[("slackwater.dirty-limit".into(), "64MiB".into()), ("slackwater.dontcache".into(), "on".into())].into(),
        )
        .unwrap();
        node.name_pod(&pod).unwrap();
        node.limit_pod(&pod, &limits).unwrap();
        node.forget_pod(&pod.uid).unwrap();
        let settings = daemon.join().unwrap();
        assert_eq!(settings, ["name=shop/web-0", "limit=67108864", "dontcache=on", "limit=none", "dontcache=none"]);
        fs::remove_file(socket).unwrap();
        let other = Pod { uid: pod.uid.replace('0', "1"), ..pod };
        assert!(matches!(node.limit_pod(&other, &limits), Err(NodeError::State(_))));
        node.forget_pod(&other.uid).unwrap();
    }
}
