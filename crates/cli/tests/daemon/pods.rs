//! Containers as tenants: real cgroups with the names that kubelets and container runtimes give them.

use std::fs;

use serde_json::Value;

use crate::cgroups::{memory, unified};
use crate::pod_cgroups::{Pod, made, unique, write};
use crate::process::{Daemon, ask, table};
use crate::rig::{Scratch, need_fuse};

const MIB: u64 = 1 << 20;
/// Data beyond any limit.
const WRITTEN_MIB: u64 = 24;
/// Write-back begins at a limit only.
const PASSIVE: &str = "dirty-expire = \"1h\"\ndirty-ratio = 90\ntenant-by = \"cgroup\"\n";

/// The tenant with this path.
fn tenant(daemon: &Daemon<'_>, path: &str) -> Value {
    let tenants = daemon.json("tenants");
    let all = tenants["tenants"].as_array().unwrap();
    all.iter().find(|tenant| tenant["name"] == path).unwrap_or_else(|| panic!("no {path} in {tenants}")).clone()
}

#[test]
fn two_pods_of_one_volume_have_limits_and_names_of_their_own_in_every_layout() {
    need_fuse();
    for hierarchy in [unified(), memory()].into_iter().flatten() {
        for (pattern, qos, runtime) in [
            (
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_D.slice/cri-containerd-ID.scope",
                "Burstable",
                "containerd",
            ),
            ("kubepods/besteffort/podUID/ID", "BestEffort", ""),
            ("kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podU_D.slice/crio-ID.scope", "Guaranteed", "cri-o"),
        ] {
            let scratch = Scratch::new();
            let (source, mountpoint) = scratch.pair("a");
            let daemon = Daemon::start(&scratch, &(PASSIVE.to_owned() + &table("shared", &source, &mountpoint)));
            let pods = [4, 16].map(|limit_mib| (limit_mib, Pod::new(&hierarchy, pattern)));
            for (number, (limit_mib, pod)) in pods.iter().enumerate() {
                let own = pod.directory().join("memory.limit_in_bytes");
                if number == 1 && own.exists() {
                    fs::write(own, (limit_mib * MIB).to_string()).unwrap();
                } else {
                    let words = [format!("pod:{}", pod.uid), format!("limit={limit_mib}MiB")];
                    daemon.run(["set", "--tenant", &words[0], &words[1]]).expect(0, &[]);
                }
                write(&pod.container, &mountpoint.join(number.to_string()), WRITTEN_MIB);
            }
            for (limit_mib, pod) in &pods {
                let tenant = tenant(&daemon, &pod.path);
                assert_eq!(tenant["limit_bytes"], limit_mib * MIB, "{tenant}");
                // Nothing but the limit has caused write-back.
                let [charged, written] = ["charged_bytes", "written_bytes"].map(|name| tenant[name].as_u64().unwrap());
                assert!(charged <= (limit_mib + 1) * MIB, "{pattern}: {tenant}");
                assert!(written >= (WRITTEN_MIB - limit_mib - 1) * MIB, "{pattern}: {tenant}");
                assert_eq!((tenant["pod_uid"].as_str(), tenant["qos_class"].as_str()), (Some(&*pod.uid), Some(qos)));
                assert_eq!((&tenant["container_id"], &tenant["pod"]), (&Value::Null, &Value::Null), "{tenant}");
            }
            // Now each container has a limit, too.
            for (_, pod) in &pods {
                daemon.run(["set", "--tenant", &pod.container.path, "limit=2MiB"]).expect(0, &[]);
                write(&pod.container, &mountpoint.join(&pod.uid), 12);
                let tenant = tenant(&daemon, &pod.container.path);
                assert_eq!(
                    (tenant["pod_uid"].as_str(), tenant["container_id"].as_str()),
                    (Some(&*pod.uid), Some(&*pod.container_id))
                );
                assert_eq!(tenant["runtime"].as_str().unwrap_or_default(), runtime, "{tenant}");
                let shown = format!("pod {}.../", &pod.uid[..8]);
                daemon.run(["tenants"]).expect(0, &[&shown, &format!("; cgroup {}", pod.container.path)]);
            }
            daemon.run(["sync", "shared"]).expect(0, &[]);
            daemon.end();
            for (name, _) in pods.iter().enumerate() {
                assert_eq!(fs::metadata(source.join(name.to_string())).unwrap().len(), WRITTEN_MIB * MIB);
            }
        }
    }
}

/// Each of the three has a limit, as on a cluster: all pods, the pod, and the container by its memory.
#[test]
fn p08_the_limit_of_a_pod_holds_for_its_container_with_a_memory_limit() {
    need_fuse();
    for hierarchy in [unified(), memory()].into_iter().flatten() {
        let scratch = Scratch::new();
        let (source, mountpoint) = scratch.pair("a");
        let daemon = Daemon::start(&scratch, &(PASSIVE.to_owned() + &table("a", &source, &mountpoint)));
        let top = format!("kubepods{}.slice", unique());
        let pod = Pod::new(&hierarchy, &format!("{top}/kubepods-burstable-podU_D.slice/cri-containerd-ID.scope"));
        let all = hierarchy.root.join(&top).to_str().unwrap().to_owned();
        let set =
            |tenant: &str, mib: u64| daemon.run(["set", "--tenant", tenant, &format!("limit={mib}MiB")]).expect(0, &[]);
        let memory = pod.container.directory.join("memory.limit_in_bytes");
        if memory.exists() {
            fs::write(memory, (512 * MIB).to_string()).unwrap();
        } else {
            set(&pod.container.path, 512);
        }
        set(&all, 64);
        set(&format!("pod:{}", pod.uid), 8);
        write(&pod.container, &mountpoint.join("x"), WRITTEN_MIB);
        let [container, in_pod, in_all] = [&pod.container.path, &pod.path, &all].map(|path| tenant(&daemon, path));
        let charged = |tenant: &Value| tenant["charged_bytes"].as_u64().unwrap();
        assert!(charged(&in_pod) <= 9 * MIB, "{in_pod}");
        assert_eq!((charged(&container), charged(&in_all)), (charged(&in_pod), charged(&in_pod)));
        assert!(container["written_bytes"].as_u64().unwrap() >= (WRITTEN_MIB - 9) * MIB, "{container}");
        assert_eq!((&container["parent"], &in_pod["parent"]), (&in_pod["id"], &in_all["id"]));
        assert_eq!(in_all.get("parent"), None);
        let text = format!("; within pod {}...", &pod.uid[..8]);
        for words in [&["tenants"][..], &["status", "a"]] {
            daemon.run(words).expect(0, &[&text]);
        }
        daemon.end();
        assert_eq!(fs::metadata(source.join("x")).unwrap().len(), WRITTEN_MIB * MIB);
    }
}

#[test]
fn containers_without_pods_are_tenants_with_their_ids() {
    need_fuse();
    for hierarchy in [unified(), memory()].into_iter().flatten() {
        let scratch = Scratch::new();
        let (source, mountpoint) = scratch.pair("a");
        let daemon = Daemon::start(&scratch, &(PASSIVE.to_owned() + &table("a", &source, &mountpoint)));
        for (above, beginning, end, runtime) in [
            ("system.slice", "docker-", ".scope", "docker"),
            ("docker", "", "", "docker"),
            ("machine.slice", "libpod-", ".scope", "podman"),
        ] {
            let id = format!("{}{}", unique(), "a7".repeat(26));
            let (cgroup, _above) = made(&hierarchy, &format!("{above}/{beginning}{id}{end}"));
            daemon.run(["set", "--tenant", &cgroup.path, "limit=4MiB"]).expect(0, &[]);
            write(&cgroup, &mountpoint.join(&id), 12);
            let tenant = tenant(&daemon, &cgroup.path);
            assert_eq!((tenant["runtime"].as_str(), tenant["container_id"].as_str()), (Some(runtime), Some(&*id)));
            assert!(
                tenant["charged_bytes"].as_u64().unwrap() <= 5 * MIB && tenant.get("pod_uid").is_none(),
                "{tenant}"
            );
            daemon.run(["tenants"]).expect(0, &[&format!("{runtime} {}...: ", &id[..12])]);
            cgroup.remove();
        }
        daemon.end();
    }
}

#[test]
fn a_named_pod_is_shown_with_its_name_everywhere() {
    need_fuse();
    let Some(hierarchy) = unified().or_else(memory) else { return };
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let config = format!("{PASSIVE}metrics = \"127.0.0.1:0\"\nweb = \"127.0.0.1:0\"\n");
    let daemon = Daemon::start(&scratch, &(config + &table("a", &source, &mountpoint)));
    let pod = Pod::new(&hierarchy, "kubepods.slice/kubepods-podU_D.slice/cri-containerd-ID.scope");
    let set = |setting: &str| daemon.run(["set", "--tenant", &format!("pod:{}", pod.uid), setting]);
    // The name comes first, as from a plugin that mounts the volume.
    set("name=default/web-0").expect(0, &[]);
    daemon.run(["set", "--tenant", &pod.container.path, "limit=4MiB"]).expect(0, &[]);
    write(&pod.container, &mountpoint.join("file"), 2);

    let name = format!("default/web-0/{}...", &pod.container_id[..12]);
    let shown = tenant(&daemon, &pod.container.path);
    assert_eq!((&shown["namespace"], &shown["pod"]), (&"default".into(), &"web-0".into()), "{shown}");
    daemon.run(["tenants"]).expect(0, &[&format!("{name}: 2.0 MiB of 4.0 MiB")]);
    daemon.run(["status", "a"]).expect(0, &[&name]);
    // Columns are narrower than this name.
    daemon.run(["top", "--once"]).expect(0, &["default/web-0/"]);
    let top = daemon.json_of(&["top", "--once"]);
    let of_top = top["volumes"][0]["tenants"].as_array().unwrap().iter().find(|it| it["label"] == *name);
    assert_eq!(of_top.unwrap_or_else(|| panic!("{top}"))["container_id"], pod.container_id);
    let page = ask(&daemon.web_address(), "GET /status.json", &[]);
    assert!(page.contains(&format!("\"label\":\"{name}\"")) && page.contains("\"pod\":\"web-0\""), "{page}");
    let (_, address) = daemon.announcement.split_once("Metrics: http://").unwrap();
    let metrics = ask(address.split_once('/').unwrap().0, "GET /metrics", &["Connection: close"]);
    let labels = format!(
        "slackwater_tenant_info{{tenant=\"{}\",namespace=\"default\",pod=\"web-0\",pod_uid=\"{}\",container_id=\"{}\"}} 1",
        pod.container.path, pod.uid, pod.container_id
    );
    assert!(metrics.contains(&labels), "{metrics}");

    for (setting, why) in [("name=web-0", "NAMESPACE/POD"), ("name=a/\u{1b}[2J", "NAMESPACE/POD")] {
        set(setting).expect(2, &[why]);
    }
    daemon.run(["set", "--tenant", "/system.slice", "name=a/b"]).expect(2, &["pod:UID"]);
    daemon.run(["set", "--tenant", &format!("pod:{}", "0".repeat(32)), "limit=1MiB"]).expect(1, &["has no cgroup"]);
    set("name=none").expect(0, &[]);
    assert!(tenant(&daemon, &pod.container.path).get("pod").is_none());
    daemon.end();
}
