//! Files in memory: shared mappings are the kernel's until it writes them.

use std::fs;
use std::process::{Command, Stdio};

use crate::programs::wait;
use crate::rig::{Rig, assert_same, pattern};

/// Changes a byte by way of a shared mapping, says so, and keeps it until told.
const MAPPER: &str = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
memory = mmap.mmap(fd, 0)
os.close(fd)
memory[5000:5005] = b'mmap!'
if sys.argv[2] == 'msync':
    memory.flush()
print('ready', flush=True)
sys.stdin.readline()
";

fn map(rig: &Rig, how: &str) -> std::process::Child {
    let mut child = Command::new("python3");
    child.args(["-c", MAPPER, rig.file("a").to_str().unwrap(), how]).current_dir("/");
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

#[test]
fn msync_hands_over_and_a_sync_stores_what_a_mapping_has() {
    for how in ["msync", "nothing"] {
        let rig = Rig::new();
        let mut wanted = pattern(1, 10_001);
        fs::write(rig.file("a"), &wanted).unwrap();
        wanted[5000..5005].copy_from_slice(b"mmap!");
        let mut child = map(&rig, how);
        if how == "msync" {
            assert_same(&fs::read(rig.stored("a")).unwrap(), &wanted);
        }
        rig.mounted.sync().unwrap();
        assert_same(&fs::read(rig.stored("a")).unwrap(), &wanted);
        assert_same(&fs::read(rig.file("a")).unwrap(), &wanted);
        drop(child.stdin.take());
        assert!(wait(&mut child).unwrap().success());
        rig.umount().unwrap();
    }
}

#[test]
fn a_mapping_that_is_gone_has_left_its_bytes() {
    let rig = Rig::new();
    let mut wanted = pattern(2, 10_001);
    fs::write(rig.file("a"), &wanted).unwrap();
    wanted[5000..5005].copy_from_slice(b"mmap!");
    let mut child = map(&rig, "nothing");
    child.kill().unwrap();
    child.wait().unwrap();
    rig.umount().unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &wanted);
}
