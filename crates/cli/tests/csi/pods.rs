//! Volumes that are published for pods: the daemon, the plugin, an API server, and the cgroup of a pod, as on a node.

use std::process::{Command, Stdio};

use serde_json::Value;
use tonic::Code;

use crate::cgroups::{memory, unified};
use crate::cluster::Cluster;
use crate::life::thrice;
use crate::plugin::{Plugin, Volume, mounts_in};
use crate::pod_cgroups::{Pod, unique_uid, write};
use crate::process::Daemon;
use crate::rig::{Scratch, UNMOUNT_COPIES, need_fuse};

const MIB: u64 = 1 << 20;
/// The limit in the annotation of the pod `small`.
const LIMIT_MIB: u64 = 4;
const WRITTEN_MIB: u64 = 24;
/// Write-back begins at a limit only.
const PASSIVE: &str = "dirty-expire = \"1h\"\ndirty-ratio = 90\ntenant-by = \"cgroup\"\n";
/// The variable that is set for the process in which a test runs.
const INSIDE: &str = "SLACKWATER_TEST_IN_A_POD";

/// Runs `test` in a process that finds the server and its account as one in a pod does, with a `/run` of its own.
fn in_a_pod(name: &str, cluster: &Cluster, uid: &str) {
    let run = "mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io \
               && ln -s \"$0\" /run/secrets/kubernetes.io/serviceaccount && exec \"$@\"";
    let script = format!("{UNMOUNT_COPIES}{run}");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]).arg(&cluster.account);
    command.arg(std::env::current_exe().unwrap()).args(["--exact", name, "--nocapture"]).env(INSIDE, uid);
    command.env("KUBERNETES_SERVICE_HOST", "127.0.0.1").env("KUBERNETES_SERVICE_PORT", cluster.port.to_string());
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    println!("{text}");
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// The volume, published for a pod with this name.
fn of_pod(volume: &Volume, scratch: &Scratch, name: &str, pod: &Pod) -> Volume {
    let mut context = volume.context.clone();
    for (key, value) in [("name", name), ("namespace", "shop"), ("uid", &pod.uid)] {
        context.insert(format!("csi.storage.k8s.io/pod.{key}"), value.to_owned());
    }
    let target = scratch.path.join("kubelet").join(format!("pods/{}/volumes/kubernetes.io~csi/{name}/mount", pod.uid));
    std::fs::create_dir_all(target.parent().unwrap()).unwrap();
    Volume { context, target, ..volume.clone() }
}

fn tenant(daemon: &Daemon<'_>, path: &str) -> Option<Value> {
    let tenants = daemon.json("tenants");
    tenants["tenants"].as_array().unwrap().iter().find(|tenant| tenant["name"] == path).cloned()
}

#[test]
fn a_pod_gets_the_limit_of_its_annotation_before_its_first_write() {
    need_fuse();
    let Some(hierarchy) = unified().or_else(memory) else { return };
    let Ok(uid) = std::env::var(INSIDE) else {
        let uid = unique_uid();
        let Some(cluster) = Cluster::new("pods", &uid) else { return };
        return in_a_pod("pods::a_pod_gets_the_limit_of_its_annotation_before_its_first_write", &cluster, &uid);
    };
    let pattern = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_D.slice/cri-containerd-ID.scope";
    let pod = Pod::with_uid(&hierarchy, pattern, uid);
    let scratch = Scratch::new();
    let daemon = Daemon::start(&scratch, PASSIVE);
    let plugin = Plugin::start(&scratch, scratch.dir("pool", 0o755).to_str().unwrap(), &[]);
    let volume = Volume::create(&scratch, &plugin, "data");
    volume.stage().unwrap();

    // A pod whose limit is not known is not started.
    for (name, code, why) in [
        ("wrong", Code::InvalidArgument, "slackwater.dirty-limit"),
        ("forbidden", Code::Unavailable, "verb get on pods"),
        ("absent", Code::Unavailable, "pods/absent"),
        ("successor", Code::Unavailable, "pods/successor"),
    ] {
        let refused = of_pod(&volume, &scratch, name, &pod).publish(false).unwrap_err();
        assert_eq!(refused.code, code, "{name}: {refused:?}");
        assert!(refused.message.contains(why), "{name}: {refused:?}");
        assert_eq!(mounts_in(&scratch), std::slice::from_ref(&volume.staging), "{name}");
    }

    let small = of_pod(&volume, &scratch, "small", &pod);
    thrice(|| small.publish(false));
    write(&pod.container, &small.target.join("file"), WRITTEN_MIB);
    let full = tenant(&daemon, &pod.path).unwrap();
    assert_eq!(full["limit_bytes"], LIMIT_MIB * MIB, "{full}");
    assert_eq!((&full["namespace"], &full["pod"]), (&"shop".into(), &"small".into()), "{full}");
    let [charged, written] = ["charged_bytes", "written_bytes"].map(|name| full[name].as_u64().unwrap());
    // Nothing but the limit has caused write-back.
    assert!(charged <= (LIMIT_MIB + 1) * MIB && written >= (WRITTEN_MIB - LIMIT_MIB - 1) * MIB, "{full}");

    thrice(|| small.unpublish());
    let after = tenant(&daemon, &pod.path);
    assert!(after.as_ref().is_none_or(|tenant| tenant["limit_bytes"].is_null()), "{after:?}");
    volume.unstage().unwrap();
    assert_eq!(std::fs::metadata(volume.source().join("file")).unwrap().len(), WRITTEN_MIB * MIB);
    volume.delete().unwrap();
    plugin.end();
    daemon.end();
}
