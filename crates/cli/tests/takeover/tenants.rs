//! Unwritten data belongs to the same tenant after a kill.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::kept::Kept;
use crate::bytes;
use crate::cgroups::{Cgroup, memory, unified};
use crate::rig::{Scratch, need_fuse};

const MIB: u64 = 1 << 20;
/// Write-back begins with a sync only.
const PASSIVE: [&str; 4] = ["--dirty-ratio", "90", "--dirty-expire", "1h"];

/// Lets a program of a tenant write a file.
fn write(scratch: &Scratch, mut command: Command, to: &Path, mib: u64) {
    let original = scratch.path.join("original");
    fs::write(&original, bytes(7, (mib * MIB) as usize)).unwrap();
    let [from, to] = [("if", original.as_path()), ("of", to)].map(|(word, path)| format!("{word}={}", path.display()));
    assert!(command.args([&from, &to, "bs=64K"]).status().unwrap().success(), "{command:?}");
}

/// MiB charged to a tenant, and dirty in its files.
fn held(kept: &Kept, tenant: &str) -> (u64, u64) {
    let status = kept.status();
    let tenants = status["tenants"].as_array().unwrap_or_else(|| panic!("{status}"));
    let figure = |tenant: &Value, name: &str| tenant[name].as_u64().unwrap_or_else(|| panic!("{tenant}")) / MIB;
    let found = tenants.iter().find(|found| found["name"] == tenant);
    found.map_or((0, 0), |found| (figure(found, "charged_bytes"), figure(found, "dirty_bytes")))
}

#[test]
fn p08_unwritten_data_is_charged_to_its_cgroup_after_a_kill() {
    need_fuse();
    for hierarchy in [unified(), memory()].into_iter().flatten() {
        let (first, gone) = (Cgroup::top(&hierarchy), Cgroup::top(&hierarchy));
        let middle = first.below("middle");
        let deep = middle.below("deep");
        let limit = format!("{}=40MiB", deep.path);
        let mut kept = Kept::new(&[&PASSIVE[..], &["--tenant-by", "cgroup", "--tenant-limit", &limit]].concat());
        for (cgroup, name, mib) in [(&first, "first", 5), (&deep, "deep", 6), (&gone, "gone", 7)] {
            write(&kept.scratch, cgroup.command("dd", &[]), &kept.mountpoint.join(name), mib);
        }
        let of_first_and_deep = || [&first, &deep].map(|cgroup| held(&kept, &cgroup.path));
        assert_eq!(of_first_and_deep(), [(5, 5), (6, 6)]);
        for round in 0..2 {
            kept.replace_server();
            assert_eq!(of_first_and_deep(), [(5, 5), (6, 6)], "round {round}");
            assert_eq!(held(&kept, &gone.path), (7, 7), "round {round}");
        }
        // A server that sees the end of the cgroup writes its data back.
        kept.replace_server_after(|| gone.remove());
        assert_eq!((of_first_and_deep(), held(&kept, &gone.path)), ([(5, 5), (6, 6)], (0, 0)));
        assert_eq!(held(&kept, "root").1, 7);
        kept.run(&["sync"]).expect(0, &[]);
        assert_eq!((of_first_and_deep(), held(&kept, "root").1), ([(0, 0), (0, 0)], 0));
        kept.umount();
        assert_eq!(fs::read(kept.source.join("deep")).unwrap(), bytes(7, 6 << 20));
    }
}

#[test]
fn p08_unwritten_data_is_charged_to_its_user_after_a_kill() {
    let mut kept = Kept::new(&[&PASSIVE[..], &["--tenant-by", "uid"]].concat());
    let public = kept.mountpoint.join("public");
    fs::write(&public, b"").unwrap();
    fs::set_permissions(&public, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let mut user = Command::new("setpriv");
    user.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "dd"]);
    write(&kept.scratch, user, &public, 5);
    write(&kept.scratch, Command::new("dd"), &kept.mountpoint.join("own"), 3);
    for _ in 0..2 {
        assert_eq!((held(&kept, "uid:65534"), held(&kept, "uid:0")), ((5, 5), (3, 3)));
        kept.replace_server();
    }
    kept.umount();
}
