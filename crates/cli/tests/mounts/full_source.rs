//! P11: accepted data can be written to a source that fills up, whatever else takes space meanwhile.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::bytes;
use crate::needs;
use crate::programs::wait;
use crate::rig::{Mount, Scratch, need_fuse, run, wait_until};

const MIB: usize = 1 << 20;
const ACCEPTED: usize = 15 * MIB;

/// A file system of 32 MiB that contains a source.
pub(crate) struct Small {
    pub(crate) scratch: Scratch,
    pub(crate) root: PathBuf,
}

impl Small {
    fn tmpfs() -> Self {
        let (scratch, root) = Self::place();
        mount("tmpfs", &root, "tmpfs", MountFlags::empty(), Some(c"size=32m")).unwrap();
        Self { scratch, root }
    }

    /// An ext4 file system in a file. `None` if the machine has no loop devices or no mkfs.ext4.
    pub(crate) fn ext4(more: &[&str]) -> Option<Self> {
        let (scratch, root) = Self::place();
        let image = scratch.path.join("image");
        File::create(&image).unwrap().set_len(32 << 20).unwrap();
        let run = |program: &str, arguments: &[&str], last: &[&Path]| {
            let ran = Command::new(program).args(arguments).args(last).output();
            ran.is_ok_and(|output| output.status.success())
        };
        let made = run("mkfs.ext4", &[&["-q", "-F", "-m", "0", "-b", "4096", "-N", "9000"], more].concat(), &[&image])
            && run("mount", &["-o", "loop"], &[&image, &root]);
        if !made {
            eprintln!("skipped: no ext4 on a loop device here");
            return None;
        }
        Some(Self { scratch, root })
    }

    fn place() -> (Scratch, PathBuf) {
        need_fuse();
        let scratch = Scratch::new();
        let root = scratch.dir("small", 0o755);
        (scratch, root)
    }

    /// A mount that writes nothing back on its own, with [`ACCEPTED`] bytes in one file.
    fn mount_and_write(&self) -> (PathBuf, Mount, File) {
        let source = self.root.join("source");
        fs::create_dir(&source).unwrap();
        let mountpoint = self.scratch.dir("mount", 0o755);
        let mount = self.scratch.mount(&source, &mountpoint, &["--dirty-ratio", "90", "--dirty-expire", "10m"]);
        let mut file = File::create(mountpoint.join("data")).unwrap();
        file.write_all(&bytes(1, ACCEPTED)).unwrap();
        (mountpoint, mount, file)
    }

    /// Checks that everything accepted is written back.
    fn finish(self, mountpoint: &Path, mut mount: Mount, file: File) {
        file.sync_all().unwrap();
        drop(file);
        self.scratch.umount(mountpoint);
        mount.wait().expect(0, &[]);
        assert!(fs::read(self.root.join("source/data")).unwrap() == bytes(1, ACCEPTED), "other bytes than accepted");
        wait_until("no process uses it", || unmount(&self.root, UnmountFlags::empty()).is_ok());
    }
}

fn errno(error: &std::io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}

#[test]
fn p11_directories_take_no_space_from_accepted_bytes() {
    let Some(small) = Small::ext4(&[]) else { return };
    let (mountpoint, mount, file) = small.mount_and_write();
    let refused = (0..9000).find_map(|nth| fs::create_dir(mountpoint.join(format!("d{nth}"))).err());
    assert_eq!(errno(&refused.expect("the source has less space")), Some(Errno::NOSPC));
    small.finish(&mountpoint, mount, file);
}

fn allocate_too_much(small: Small) {
    let (mountpoint, mount, file) = small.mount_and_write();
    let other = File::create(mountpoint.join("other")).unwrap();
    let refused = fallocate(&other, FallocateFlags::empty(), 0, 20 * MIB as u64);
    assert_eq!(refused, Err(Errno::NOSPC));
    drop(other);
    small.finish(&mountpoint, mount, file);
}

#[test]
fn p11_an_allocation_takes_no_space_from_accepted_bytes() {
    allocate_too_much(Small::tmpfs());
}

#[test]
fn p11_an_allocation_on_ext4_takes_no_space_from_accepted_bytes() {
    Small::ext4(&[]).map(allocate_too_much).unwrap_or_default();
}

/// The blocks that the source needs for metadata are not accepted as data either.
fn fill(small: Small) {
    let (mountpoint, mount, file) = small.mount_and_write();
    let mut other = File::create(mountpoint.join("other")).unwrap();
    let refused = loop {
        if let Err(error) = other.write_all(&bytes(2, MIB / 4)) {
            break error;
        }
    };
    assert_eq!(errno(&refused), Some(Errno::NOSPC));
    other.sync_all().unwrap();
    drop(other);
    small.finish(&mountpoint, mount, file);
}

#[test]
fn p11_space_for_metadata_blocks_is_held_back() {
    Small::ext4(&[]).map(fill).unwrap_or_default();
}

#[test]
fn p11_everything_accepted_for_a_tmpfs_source_is_written_back() {
    fill(Small::tmpfs());
}

#[test]
fn p11_space_for_metadata_blocks_is_held_back_without_extents() {
    Small::ext4(&["-O", "^extent,^64bit"]).map(fill).unwrap_or_default();
}

/// Fills a mapping of a file for which the source has too little space, and makes each call that waits for its pages.
/// Prints the number of each error, or 0.
const CALLS: &str = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 60 << 20)
m = mmap.mmap(fd, 60 << 20)
def fill():
    for at in range(0, len(m), 4096): m[at] = 1
def call(what, f):
    try: f(); print(what, 0, flush=True)
    except OSError as e: print(what, e.errno, flush=True)
fill(); call('msync', m.flush)
fill(); call('fsync', lambda: os.fsync(fd))
fill(); call('munmap', m.close)
call('close', lambda: os.close(fd))
";

/// Stores to such a mapping until it is killed.
const STORES: &str = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 60 << 20)
m = mmap.mmap(fd, 60 << 20)
while True:
    for at in range(0, len(m), 4096): m[at] = 1
";

fn refused_bytes(scratch: &Scratch) -> u64 {
    let status: serde_json::Value = serde_json::from_str(&scratch.run(["status", "--json"]).text).unwrap();
    status["mounts"][0]["writers"]["refused_mapped_bytes"].as_u64().unwrap()
}

/// Programs that store to mappings of a full source hung in the kernel, where no signal ends them. So did every program
/// that synced or truncated such a file.
fn store_to_mappings(scratch: &Scratch, mountpoint: &Path) {
    let file = mountpoint.join("mapped");
    let python = |program: &str| {
        let mut command = Command::new("python3");
        command.args(["-I", "-c", program]).arg(&file).current_dir("/").stdin(Stdio::null());
        command
    };
    let calls = run(python(CALLS));
    calls.expect(0, &["msync 28\n", "fsync 28\n", "munmap 0\n", "close "]);
    let refused = refused_bytes(scratch);
    assert!(refused > 0, "lost stores are not counted");
    scratch.run(["status"]).expect(0, &["STORES LOST: "]);

    // A truncation by another program, which also ends the one that stores: by SIGBUS.
    let mut stores = python(STORES).spawn().unwrap();
    wait_until("stores are refused", || refused_bytes(scratch) > refused);
    run(python("import os, sys; os.truncate(sys.argv[1], 1 << 20)")).expect(0, &[]);
    assert!(wait(&mut stores).is_some(), "a program hangs whose mapping was truncated");

    let refused = refused_bytes(scratch);
    let mut stores = python(STORES).spawn().unwrap();
    wait_until("stores are refused", || refused_bytes(scratch) > refused);
    stores.kill().unwrap();
    assert!(wait(&mut stores).is_some(), "a killed program hangs");

    // An unmount returns as well. The data in the cache may fit into the source by now.
    let umount = ["umount", mountpoint.to_str().unwrap(), "--deadline", "1s"];
    if scratch.run(umount).code == Some(0) {
        return;
    }
    fs::remove_file(&file).unwrap();
    let output = scratch.run_when_free(["umount", mountpoint.to_str().unwrap()]);
    // A store may be so full that it takes not even the removal.
    if output.code != Some(0) {
        output.expect(4, &["no space left on the backend"]);
        scratch.run_when_free([&umount[..], &["--discard", "--yes"]].concat()).expect(0, &[]);
    }
}

#[test]
fn p02_stores_to_mappings_end_with_an_error_on_a_full_source() {
    if needs::are_missing(&["python3"]) {
        return;
    }
    let small = Small::tmpfs();
    let (source, mountpoint) = (small.root.join("source"), small.scratch.dir("mount", 0o755));
    fs::create_dir(&source).unwrap();
    let mut mount = small.scratch.mount(&source, &mountpoint, &[]);
    store_to_mappings(&small.scratch, &mountpoint);
    mount.wait().expect(0, &["stores to a mapping are lost"]);
    wait_until("no process uses it", || unmount(&small.root, UnmountFlags::empty()).is_ok());
}

#[test]
fn p02_stores_to_mappings_end_with_an_error_on_a_full_object_store() {
    if !cfg!(feature = "object") || needs::are_missing(&["python3"]) {
        return;
    }
    let small = Small::tmpfs();
    let (store, mountpoint) = (small.root.join("store"), small.scratch.dir("mount", 0o755));
    let url = format!("file://{}", store.display());
    small.scratch.run(["mkfs", &url]).expect(0, &[]);
    let mut mount = small.scratch.mount(Path::new(&url), &mountpoint, &[]);
    store_to_mappings(&small.scratch, &mountpoint);
    mount.wait().expect(0, &["stores to a mapping are lost"]);
    wait_until("no process uses it", || unmount(&small.root, UnmountFlags::empty()).is_ok());
}
