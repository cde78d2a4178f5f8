//! A service supervisor that stores descriptors, as systemd does: the keeper may die too.
//!
//! The supervisor is a process of its own. A program is started by a fork, which has the descriptors of its parent for a
//! moment: if some are of files on the mount, closing them waits for a server, and the supervisor is to start that.

mod mount_unit;
mod supervisor;
mod sys;
mod systemd;

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use super::kept::{children, end_registered};
use super::load::Load;
use super::process::{is_mounted, table};
use crate::rig::{Process, Scratch, need_fuse, wait_until};

/// A service, and the process that is its supervisor.
struct Service<'s> {
    scratch: &'s Scratch,
    supervisor: Process,
    mountpoints: [PathBuf; 2],
}

impl<'s> Service<'s> {
    #[track_caller]
    fn start(scratch: &'s Scratch, config: &str, mountpoints: [&Path; 2]) -> Self {
        fs::write(scratch.path.join("daemon.toml"), config).unwrap();
        let mut command = supervisor::command(scratch);
        let supervisor = Process::spawn(command.stdout(Stdio::null()));
        Self { scratch, supervisor, mountpoints: mountpoints.map(Path::to_path_buf) }
    }

    fn list(&self) -> serde_json::Value {
        let socket = self.scratch.path.join("run/daemon.sock");
        let output = self.scratch.run(["ls", "--json", "--socket", socket.to_str().unwrap()]);
        serde_json::from_str(&output.text).unwrap_or_default()
    }

    /// How often a server has taken over.
    fn takeovers(&self) -> Option<u64> {
        self.list()["kept"]["takeovers"].as_u64()
    }

    /// The main process, which is the keeper.
    fn keeper(&self) -> Option<Pid> {
        children(Pid::from_child(&self.supervisor.0)).first().copied()
    }
}

impl Drop for Service<'_> {
    fn drop(&mut self) {
        let keeper = self.keeper();
        // It would start another one. The connections in its store keep programs waiting.
        let _ = self.supervisor.0.kill();
        for process in keeper.into_iter().chain(keeper.into_iter().flat_map(children)) {
            let _ = kill_process(process, Signal::KILL);
        }
        end_registered(self.scratch);
        for mountpoint in &self.mountpoints {
            let _ = unmount(mountpoint, UnmountFlags::FORCE | UnmountFlags::DETACH);
        }
    }
}

#[test]
fn a_service_whose_processes_are_all_killed_goes_on_from_the_descriptor_store() {
    need_fuse();
    let scratch = Scratch::new();
    let (a, b) = (scratch.pair("a"), scratch.pair("b"));
    let config = format!("dirty-expire = \"1h\"\n{}{}", table("a", &a.0, &a.1), table("b", &b.0, &b.1));
    // Closing it needs a server, or the end of the mount.
    let mut removed;
    let mut service = Service::start(&scratch, &config, [&a.1, &b.1]);
    wait_until("both volumes are mounted", || is_mounted(&a.1) && is_mounted(&b.1) && service.takeovers() == Some(0));
    let load = Load::start(&b.1);
    removed = File::options().read(true).write(true).create_new(true).open(a.1.join("removed")).unwrap();
    removed.write_all(b"without a name").unwrap();
    fs::remove_file(a.1.join("removed")).unwrap();
    for life in 1..=3 {
        thread::sleep(Duration::from_millis(50 * life));
        // The server ends itself.
        kill_process(service.keeper().unwrap(), Signal::KILL).unwrap();
        wait_until("it has taken over", || service.takeovers() == Some(life));
        load.check(|| format!("{}", service.list()));
    }
    removed.rewind().unwrap();
    let mut content = String::new();
    removed.read_to_string(&mut content).unwrap();
    assert_eq!(content, "without a name");
    drop(removed);
    load.finish(&b.0, || {
        kill_process(service.keeper().unwrap(), Signal::TERM).unwrap();
        // It fails if something is left in the store.
        assert!(service.supervisor.wait().success());
    });
    assert!(!is_mounted(&a.1) && !is_mounted(&b.1));
}
