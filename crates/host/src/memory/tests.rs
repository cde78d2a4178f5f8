//! Recorded files of machines with cgroup v1, v2 and both, bare and in containers.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::{Limit, Scope, limit_bytes, limit_files, meminfo_bytes, smallest};

const MEMINFO: &str = "MemTotal:       24684096 kB\nMemFree:        24330792 kB\nMemAvailable:   24370644 kB\n";
const MEM_TOTAL_BYTES: u64 = 24_684_096 * 1024;
const MEM_AVAILABLE_BYTES: u64 = 24_370_644 * 1024;

const V2_MOUNTS: &str = "\
30 24 0:26 / /sys rw,relatime shared:9 - sysfs sysfs rw,nosuid,nodev,noexec,relatime
30 24 0:26 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate,memory_recursiveprot
30 24 0:26 / /dev/shm rw,relatime shared:9 - tmpfs tmpfs rw,nosuid,nodev
";
const V2_CGROUP: &str = "0::/system.slice/slackwater.service\n";

const V1_MOUNTS: &str = "\
30 24 0:26 / /sys/fs/cgroup rw,relatime shared:9 - tmpfs tmpfs ro,nosuid,nodev,noexec,mode=755
30 24 0:26 / /sys/fs/cgroup/systemd rw,relatime shared:9 - cgroup cgroup rw,nosuid,nodev,noexec,relatime,xattr,name=systemd
30 24 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,nosuid,nodev,noexec,relatime,cpu,cpuacct
30 24 0:26 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,nosuid,nodev,noexec,relatime,memory
";
const V1_CGROUP: &str = "11:cpu,cpuacct:/a\n4:memory:/jobs/one\n1:name=systemd:/init.scope\n";

/// The mounts of V1, and beside them the unified hierarchy, which has no memory controller.
const HYBRID_MOUNTS: &str = "\
30 24 0:26 / /sys/fs/cgroup rw,relatime shared:9 - tmpfs tmpfs rw,relatime,mode=755
30 24 0:26 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,relatime,memory
30 24 0:26 / /sys/fs/cgroup/systemd rw,relatime shared:9 - cgroup cgroup rw,relatime,name=systemd
30 24 0:26 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw,relatime
";
const HYBRID_CGROUP: &str = "9:name=systemd:/\n4:memory:/process_api/2619\n0::/\n";

fn machine(mounts: &str, cgroup: &str, limits: &[(&str, &str)]) -> Limit {
    let fixed = [("/proc/meminfo", MEMINFO), ("/proc/self/mountinfo", mounts), ("/proc/self/cgroup", cgroup)];
    let files = fixed.iter().chain(limits).copied().collect::<HashMap<_, _>>();
    let read = |path: &Path| files.get(path.to_str()?).map(|text| (*text).to_owned());
    smallest(Scope::Charged, read).expect("MemTotal is there")
}

fn names(files: &[PathBuf]) -> Vec<&str> {
    files.iter().filter_map(|file| file.to_str()).collect()
}

#[test]
fn v2_is_asked_at_every_level_up_to_the_mount() {
    assert_eq!(
        names(&limit_files(V2_MOUNTS, V2_CGROUP)),
        [
            "/sys/fs/cgroup/system.slice/slackwater.service/memory.max",
            "/sys/fs/cgroup/system.slice/memory.max",
            "/sys/fs/cgroup/memory.max",
        ]
    );
    let own = ("/sys/fs/cgroup/system.slice/slackwater.service/memory.max", "max\n");
    let parent = ("/sys/fs/cgroup/system.slice/memory.max", "1073741824\n");
    let limit = machine(V2_MOUNTS, V2_CGROUP, &[own, parent]);
    assert_eq!((limit.bytes, limit.name.starts_with(parent.0)), (15 << 26, true), "{}", limit.name);
}

#[test]
fn v1_is_asked_in_the_hierarchy_with_memory() {
    let own = ("/sys/fs/cgroup/memory/jobs/one/memory.limit_in_bytes", "536870912\n");
    let root = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    let limit = machine(V1_MOUNTS, V1_CGROUP, &[own, root]);
    assert_eq!((limit.bytes, limit.name.starts_with(own.0)), (480 << 20, true), "{}", limit.name);
}

#[test]
fn hybrid_finds_memory_in_v1_and_nothing_in_v2() {
    let own = ("/sys/fs/cgroup/memory/process_api/2619/memory.limit_in_bytes", "268435456\n");
    assert_eq!(machine(HYBRID_MOUNTS, HYBRID_CGROUP, &[own]).bytes, 240 << 20);
    let files = limit_files(HYBRID_MOUNTS, HYBRID_CGROUP);
    assert!(names(&files).contains(&"/sys/fs/cgroup/unified/memory.max"));
}

#[test]
fn a_container_whose_path_is_the_hosts_finds_the_limit_at_the_mount() {
    let cgroup = "4:memory:/docker/0123456789ab\n";
    let mount = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "134217728\n");
    assert_eq!(machine(V1_MOUNTS, cgroup, &[mount]).bytes, 120 << 20);
    let mount = ("/sys/fs/cgroup/memory.max", "134217728\n");
    assert_eq!(machine(V2_MOUNTS, "0::/../../elsewhere\n", &[mount]).bytes, 120 << 20);
}

#[test]
fn without_a_cgroup_limit_most_available_memory_may_be_used() {
    let none = machine(V2_MOUNTS, V2_CGROUP, &[("/sys/fs/cgroup/system.slice/memory.max", "max\n")]);
    let name = "MemAvailable of /proc/meminfo, minus a part for everything else".to_owned();
    assert_eq!(none, Limit { bytes: MEM_AVAILABLE_BYTES - MEM_TOTAL_BYTES / 16, name });
    assert_eq!(machine("", "", &[]), none);
}

#[test]
fn huge_pages_are_charged_to_no_cgroup() {
    let read = |path: &Path| {
        let text = if path == Path::new("/proc/meminfo") { MEMINFO } else { "4096\n" };
        Some(text.to_owned())
    };
    assert_eq!(smallest(Scope::Machine, read).map(|limit| limit.bytes), Some(MEM_TOTAL_BYTES));
}

#[test]
fn malformed_lines_are_no_limit() {
    assert_eq!(meminfo_bytes("MemTotal: many kB\n", "MemTotal"), None);
    assert_eq!(meminfo_bytes("", "MemTotal"), None);
    assert_eq!(limit_bytes("max\n"), None);
    assert_eq!(limit_bytes("-1\n"), None);
    assert_eq!(limit_files("cgroup2 /sys/fs/cgroup", V2_CGROUP), [] as [&Path; 0]);
    assert_eq!(limit_files(V2_MOUNTS, "0:/\nnonsense\n"), [] as [&Path; 0]);
}

#[test]
fn colons_in_paths_are_kept() {
    assert_eq!(names(&limit_files(V2_MOUNTS, "0::/a:b/c\n"))[0], "/sys/fs/cgroup/a:b/c/memory.max");
}
