//! A daemon with `--keep`: all its volumes outlive it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use super::kept::{children, end_registered};
use super::load::Load;
use super::process::{Daemon, ask, command, is_mounted, table};
use crate::cgroups::{Cgroup, memory, unified};
use crate::rig::{Output, PATIENCE, Process, Scratch, need_fuse, run, wait_for, wait_until};

/// Data stays in the cache until an unmount.
pub(super) const LATE: &str = "dirty-expire = \"1h\"\n";

/// A daemon with a keeper. Dropping it ends all its processes, whatever state they are in, and its mounts.
pub(super) struct KeptDaemon<'s> {
    daemon: Option<Daemon<'s>>,
    pub(super) scratch: &'s Scratch,
    mountpoints: Vec<PathBuf>,
}

impl<'s> KeptDaemon<'s> {
    #[track_caller]
    pub(super) fn start(scratch: &'s Scratch, config: &str, mountpoints: &[&Path]) -> Self {
        Self::start_with(scratch, config, mountpoints, |_| {})
    }

    /// Starts a daemon with changes to the command by `more`.
    #[track_caller]
    pub(super) fn start_with(
        scratch: &'s Scratch,
        config: &str,
        mountpoints: &[&Path],
        more: impl FnOnce(&mut Command),
    ) -> Self {
        let daemon = Daemon::start_with(scratch, config, |command| {
            command.arg("--keep");
            more(command);
        });
        let mountpoints = mountpoints.iter().map(|path| path.to_path_buf()).collect();
        Self { daemon: Some(daemon), scratch, mountpoints }
    }

    pub(super) fn get(&self) -> &Daemon<'s> {
        self.daemon.as_ref().unwrap()
    }

    pub(super) fn keeper(&self) -> Pid {
        Pid::from_child(&self.get().process.0)
    }

    /// How often it was taken over, and the pid of the process that serves it.
    #[track_caller]
    pub(super) fn lives(&self) -> (u64, u64) {
        let mut list = serde_json::Value::Null;
        // A takeover may take longer than the command waits for an answer.
        wait_until("the daemon answers", || {
            let output = self.run(&["ls", "--json"]);
            if output.code == Some(0) {
                list = serde_json::from_str(&output.text).unwrap();
            }
            output.code == Some(0)
        });
        (list["kept"]["takeovers"].as_u64().unwrap(), list["pid"].as_u64().unwrap())
    }

    /// Kills the process that serves, whether it has taken over or not.
    #[track_caller]
    pub(super) fn kill(&self) {
        let server = wait_for(
            || children(self.keeper()).first().copied(),
            || format!("the keeper starts no server:\n{}", self.get().all_said()),
        );
        // It may have died by itself.
        let _ = kill_process(server, Signal::KILL);
    }

    /// Kills the process that serves, and waits until another one does.
    #[track_caller]
    pub(super) fn replace(&self) {
        let (before, _) = self.lives();
        self.kill();
        wait_until("another process serves", || self.lives().0 > before);
    }

    /// Kills processes that serve, some of them before they do, under these loads.
    #[track_caller]
    fn kill_often(&self, times: u64, loads: &[Load]) {
        for nth in 0..times {
            thread::sleep(Duration::from_millis(nth * 37 % 150));
            if nth % 3 == 2 {
                self.kill()
            } else {
                self.replace()
            }
            loads.iter().for_each(|load| load.check(|| self.get().all_said()));
        }
    }

    pub(super) fn run(&self, words: &[&str]) -> Output {
        self.get().run(words)
    }

    #[track_caller]
    pub(super) fn umount(&self, volume: &str) {
        self.get().umount(volume);
    }

    #[track_caller]
    pub(super) fn end(mut self) {
        let daemon = self.daemon.take().unwrap();
        daemon.process.signal(Signal::TERM);
        let mut process = daemon.process;
        let status = process.wait();
        assert_eq!(status.code(), Some(0));
        assert!(!daemon.socket.exists());
    }
}

impl Drop for KeptDaemon<'_> {
    fn drop(&mut self) {
        let mut servers = Vec::new();
        if let Some(daemon) = &mut self.daemon {
            servers = children(Pid::from_child(&daemon.process.0));
            // Without the keeper nothing starts another one.
            let _ = daemon.process.0.kill();
        }
        for server in servers {
            let _ = kill_process(server, Signal::KILL);
        }
        end_registered(self.scratch);
        for mountpoint in &self.mountpoints {
            let _ = unmount(mountpoint, UnmountFlags::FORCE | UnmountFlags::DETACH);
        }
    }
}

/// The keeper of a daemon takes no descriptors of nodes.
#[test]
fn a_daemon_refuses_to_keep_a_source_without_file_handles() {
    need_fuse();
    let (scratch, below) = (Scratch::new(), Scratch::new());
    let (source, middle) = below.pair("lower");
    let _lower = below.mount(&source, &middle, &[]);
    let top = scratch.dir("top", 0o755);
    let kept = KeptDaemon::start(&scratch, "", &[&top]);
    let refused = kept.run(&["mount", "--daemon", middle.to_str().unwrap(), top.to_str().unwrap()]);
    refused.expect(1, &["no file handles", "without a daemon"]);
    kept.end();
    below.umount(&middle);
}

#[test]
fn programs_notice_nothing_when_their_daemon_is_killed() {
    need_fuse();
    let scratch = Scratch::new();
    let (a, b, c) = (scratch.pair("a"), scratch.pair("b"), scratch.pair("c"));
    let config = format!("dirty-expire = \"100ms\"\n{}{}", table("a", &a.0, &a.1), table("b", &b.0, &b.1));
    let daemon = KeptDaemon::start(&scratch, &config, &[&a.1, &b.1, &c.1]);
    daemon.get().mount(&c.0, &c.1, "c");
    let loads = [Load::start(&a.1), Load::start(&c.1)];
    daemon.kill_often(8, &loads);
    fs::write(b.1.join("file"), "of the last daemon").unwrap();
    wait_until("the last one serves", || daemon.get().states().len() == 3);
    assert!(daemon.lives().0 >= 6, "{}", daemon.get().all_said());
    let [of_a, of_c] = loads;
    of_a.finish(&a.0, || daemon.umount("a"));
    of_c.finish(&c.0, || daemon.end());
    assert_eq!(fs::read_to_string(b.0.join("file")).unwrap(), "of the last daemon");
    assert!([&a, &b, &c].iter().all(|(_, mountpoint)| !is_mounted(mountpoint)));
}

/// The URL of a new volume in a directory.
#[cfg(feature = "object")]
fn object_volume(scratch: &Scratch) -> String {
    let url = format!("file://{}", scratch.path.join("objects").display());
    scratch.run(["mkfs", &url]).expect(0, &[]);
    url
}

#[test]
#[cfg(feature = "object")]
fn a_kept_daemon_serves_object_volumes_beside_directories() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, of_directory) = scratch.pair("a");
    let [of_object, first_reader, second_reader] = ["o", "r1", "r2"].map(|name| scratch.dir(name, 0o755));
    let daemon = KeptDaemon::start(&scratch, LATE, &[&of_directory, &of_object, &first_reader, &second_reader]);
    let url = object_volume(&scratch);
    daemon.get().mount(&source, &of_directory, "a");
    daemon.get().mount(Path::new(&url), &of_object, "o");
    let read = |mountpoint: &Path, name: &str| {
        let words = ["mount", "--daemon", "--read-only", &url, mountpoint.to_str().unwrap(), "--name", name];
        daemon.run(&words).expect(0, &[]);
    };
    read(&first_reader, "r1");
    let loads = [Load::start(&of_directory), Load::start(&of_object)];
    daemon.kill_often(6, &loads);
    // The name of a reader in the arena is not that of one of an earlier process.
    wait_until("all are served", || daemon.get().states().len() == 3);
    read(&second_reader, "r2");
    wait_until("the readers see the load", || {
        second_reader.join("fixed").exists() && first_reader.join("fixed").exists()
    });
    daemon.umount("r1");
    let [of_a, of_o] = loads;
    of_a.finish(&source, || daemon.umount("a"));
    of_o.finish(&first_reader, || {
        daemon.umount("o");
        read(&first_reader, "r1");
    });
    daemon.end();
    scratch.run(["fsck", &url, "--data"]).expect(0, &["No errors."]);
}

#[test]
fn the_next_daemon_has_the_settings_and_volumes_of_the_one_before() {
    need_fuse();
    let scratch = Scratch::new();
    let (a, b, c) = (scratch.pair("a"), scratch.pair("b"), scratch.pair("c"));
    let config = format!("{LATE}tenant-by = \"uid\"\n{}{}", table("a", &a.0, &a.1), table("b", &b.0, &b.1));
    let daemon = KeptDaemon::start(&scratch, &config, &[&a.1, &b.1, &c.1]);
    daemon.get().mount(&c.0, &c.1, "c");
    daemon.run(&["set", "--tenant", "uid:0", "limit=48MiB"]).expect(0, &[]);
    daemon.run(&["set", "c", "dontcache=on", "dirty-limit=3MiB"]).expect(0, &[]);
    daemon.umount("b");
    fs::write(a.1.join("file"), "unwritten").unwrap();
    // The configuration is the one of the first start.
    fs::write(scratch.path.join("daemon.toml"), "this is no configuration").unwrap();
    for _ in 0..2 {
        daemon.replace();
        // A tenant exists from its first write on.
        fs::write(a.1.join("other"), "more").unwrap();
        assert_eq!(daemon.get().states(), [("a".into(), "mounted".into()), ("c".into(), "mounted".into())]);
        assert_eq!(daemon.get().share_of("c"), 3 << 20);
        let tenants = daemon.get().json("tenants");
        let root = tenants["tenants"].as_array().unwrap().iter().find(|tenant| tenant["name"] == "uid:0");
        assert_eq!(root.unwrap()["limit_bytes"], 48 << 20, "{tenants}");
        assert_eq!(fs::read_to_string(a.1.join("file")).unwrap(), "unwritten");
    }
    // A mount point in a daemon that has been taken over is freed as any other.
    daemon.umount("c");
    daemon.get().mount(&c.0, &c.1, "c");
    daemon.end();
    assert_eq!(fs::read_to_string(a.0.join("file")).unwrap(), "unwritten");
}

#[test]
fn the_next_daemon_knows_the_names_of_pods_and_a_later_one_does_not() {
    need_fuse();
    let Some(hierarchy) = unified().or_else(memory) else { return };
    let top = Cgroup::top(&hierarchy);
    let uid = format!("{:032x}", std::process::id());
    let pod = top.below(&format!("pod{uid}"));
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let config = format!("{LATE}tenant-by = \"cgroup\"\n{}", table("a", &source, &mountpoint));
    let name = |daemon: &Daemon<'_>| {
        // A tenant exists from its first write on.
        let file = format!("of={}", mountpoint.join("file").display());
        assert!(pod.command("dd", &["if=/dev/zero", "count=1", &file]).status().unwrap().success());
        let tenants = daemon.json("tenants");
        let found = tenants["tenants"].as_array().unwrap().iter().find(|tenant| tenant["pod_uid"] == *uid);
        found.unwrap_or_else(|| panic!("{tenants}"))["pod"].clone()
    };
    let daemon = KeptDaemon::start(&scratch, &config, &[&mountpoint]);
    daemon.run(&["set", "--tenant", &pod.path, "limit=4MiB"]).expect(0, &[]);
    daemon.run(&["set", "--tenant", &format!("pod:{uid}"), "name=default/web-0"]).expect(0, &[]);
    for _ in 0..2 {
        daemon.replace();
        assert_eq!(name(daemon.get()), "web-0");
    }
    daemon.end();
    let daemon = KeptDaemon::start(&scratch, &config, &[&mountpoint]);
    daemon.run(&["set", "--tenant", &pod.path, "limit=4MiB"]).expect(0, &[]);
    assert!(name(daemon.get()).is_null());
    daemon.end();
}

/// Together they are longer than a message between the keeper and a server.
#[test]
fn any_number_of_limits_outlives_a_daemon() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let config = format!("{LATE}tenant-by = \"cgroup\"\n{}", table("a", &source, &mountpoint));
    let daemon = KeptDaemon::start(&scratch, &config, &[&mountpoint]);
    for number in 0..30 {
        let tenant = format!("/slackwater-{number}{}", format!("/{}", "x".repeat(250)).repeat(12));
        daemon.run(&["set", "--tenant", &tenant, "limit=4MiB"]).expect(0, &[]);
    }
    fs::write(mountpoint.join("file"), "content").unwrap();
    for _ in 0..2 {
        daemon.replace();
        assert_eq!(fs::read_to_string(mountpoint.join("file")).unwrap(), "content");
    }
    daemon.end();
    assert_eq!(fs::read_to_string(source.join("file")).unwrap(), "content");
}

#[test]
fn a_daemon_without_volumes_is_kept() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let daemon = KeptDaemon::start(&scratch, "web = \"127.0.0.1:0\"\n", &[&mountpoint]);
    let page = daemon.get().web_address();
    daemon.replace();
    daemon.get().mount(&source, &mountpoint, "a");
    fs::write(mountpoint.join("file"), "content").unwrap();
    daemon.replace();
    assert_eq!(fs::read_to_string(mountpoint.join("file")).unwrap(), "content");
    // The port was open all the time.
    wait_until("the page shows the volume", || ask(&page, "GET /status.json", &[]).contains("\"name\":\"a\""));
    daemon.end();
    assert_eq!(fs::read_to_string(source.join("file")).unwrap(), "content");
}

#[test]
fn a_restart_replaces_the_daemon_of_all_volumes_once() {
    need_fuse();
    let scratch = Scratch::new();
    let (a, b) = (scratch.pair("a"), scratch.pair("b"));
    let config = format!("{LATE}{}{}", table("a", &a.0, &a.1), table("b", &b.0, &b.1));
    let daemon = KeptDaemon::start(&scratch, &config, &[&a.1, &b.1]);
    let mut file = File::create(a.1.join("file")).unwrap();
    file.write_all(b"before ").unwrap();
    let (events, heard) = events(&daemon);
    let (_, first) = daemon.lives();
    scratch.run(["restart", "--all"]).expect(0, &["Restarted the daemon of", "programs waited for"]);
    let (takeovers, second) = daemon.lives();
    assert!(takeovers == 1 && first != second);
    // Earlier lines may come late.
    let mut lines = std::iter::repeat_with(|| heard.recv_timeout(PATIENCE).unwrap());
    let line = lines.find(|line| line.contains("taken over")).unwrap();
    assert!(line.contains(&second.to_string()), "{line}");
    scratch.run(["restart", b.1.to_str().unwrap()]).expect(0, &["Restarted the daemon of b"]);
    scratch.run(["upgrade", "--all"]).expect(0, &["Upgraded the daemon of"]);
    assert_eq!(daemon.lives().0, 3);
    file.write_all(b"after").unwrap();
    drop(file);
    drop(events);
    daemon.end();
    assert_eq!(fs::read_to_string(a.0.join("file")).unwrap(), "before after");
}

/// The lines of `slackwater events`, from when it listens.
fn events(daemon: &KeptDaemon<'_>) -> (Process, std::sync::mpsc::Receiver<String>) {
    let mut command = daemon.scratch.command(["events", "--socket", daemon.get().socket.to_str().unwrap()]);
    let mut process = Process::spawn(command.stdout(Stdio::piped()));
    let lines = BufReader::new(process.0.stdout.take().unwrap());
    let (sender, heard) = channel();
    thread::spawn(move || {
        for line in lines.lines().map_while(Result::ok).filter(|line| !line.contains("warning")) {
            let _ = sender.send(line);
        }
    });
    // Any event shows that it listens.
    let (source, mountpoint) = daemon.scratch.pair("listens");
    let listens = || {
        daemon.get().mount(&source, &mountpoint, "listens");
        daemon.umount("listens");
        heard.recv_timeout(Duration::from_millis(100)).is_ok_and(|line| line.contains("mounted"))
    };
    wait_until("events are followed", listens);
    (process, heard)
}

#[test]
fn a_volume_that_ended_while_nobody_served_it_is_written_back() {
    need_fuse();
    let scratch = Scratch::new();
    let (a, b) = (scratch.pair("a"), scratch.pair("b"));
    let config = format!("{LATE}{}{}", table("a", &a.0, &a.1), table("b", &b.0, &b.1));
    let daemon = KeptDaemon::start(&scratch, &config, &[&a.1, &b.1]);
    fs::write(a.1.join("file"), "of a").unwrap();
    fs::write(b.1.join("file"), "of b").unwrap();
    assert!(!a.0.join("file").exists() || fs::read(a.0.join("file")).unwrap().is_empty());
    kill_and_unmount(&daemon, &a.1);
    wait_until("its data is in the source", || fs::read(a.0.join("file")).is_ok_and(|bytes| bytes == b"of a"));
    assert_eq!(fs::read_to_string(b.1.join("file")).unwrap(), "of b");
    wait_until("the other volume is left", || daemon.get().states() == [("b".into(), "mounted".into())]);
    daemon.get().mount(&a.0, &a.1, "a");
    assert_eq!(fs::read_to_string(a.1.join("file")).unwrap(), "of a");
    daemon.end();
}

/// Kills the process that serves, and unmounts before another one does.
fn kill_and_unmount(daemon: &KeptDaemon<'_>, mountpoint: &Path) {
    kill_process(daemon.keeper(), Signal::STOP).unwrap();
    daemon.kill();
    unmount(mountpoint, UnmountFlags::FORCE | UnmountFlags::DETACH).unwrap();
    kill_process(daemon.keeper(), Signal::CONT).unwrap();
}

#[test]
#[cfg(feature = "object")]
fn an_object_volume_that_ended_while_nobody_served_it_is_written_back() {
    need_fuse();
    let scratch = Scratch::new();
    let mountpoint = scratch.dir("o", 0o755);
    let daemon = KeptDaemon::start(&scratch, LATE, &[&mountpoint]);
    let url = object_volume(&scratch);
    daemon.get().mount(Path::new(&url), &mountpoint, "o");
    fs::write(mountpoint.join("file"), "content").unwrap();
    kill_and_unmount(&daemon, &mountpoint);
    wait_until("the daemon has left it", || daemon.lives().0 == 1 && daemon.get().states().is_empty());
    daemon.get().mount(Path::new(&url), &mountpoint, "o");
    assert_eq!(fs::read_to_string(mountpoint.join("file")).unwrap(), "content");
    daemon.end();
    scratch.run(["fsck", &url, "--data"]).expect(0, &["No errors."]);
}

#[test]
fn a_volume_whose_source_is_gone_is_given_up_alone() {
    need_fuse();
    let scratch = Scratch::new();
    let (a, b) = (scratch.pair("a"), scratch.pair("b"));
    let config = format!("{LATE}{}{}", table("a", &a.0, &a.1), table("b", &b.0, &b.1));
    let daemon = KeptDaemon::start(&scratch, &config, &[&a.1, &b.1]);
    fs::write(a.1.join("file"), "of a").unwrap();
    fs::write(b.1.join("file"), "of b").unwrap();
    let away = scratch.path.join("away");
    fs::rename(&a.0, &away).unwrap();
    daemon.kill();
    assert_eq!(fs::read_to_string(b.1.join("file")).unwrap(), "of b");
    wait_until("the volume is given up", || daemon.get().said("the volume is given up") == 1);
    wait_until("the other volume is left", || daemon.get().states() == [("b".into(), "mounted".into())]);
    assert!(!is_mounted(&a.1));
    fs::rename(&away, &a.0).unwrap();
    daemon.get().mount(&a.0, &a.1, "a");
    assert_eq!(fs::read_to_string(a.1.join("file")).unwrap(), "of a");
    daemon.replace();
    daemon.end();
    assert_eq!(fs::read_to_string(a.0.join("file")).unwrap(), "of a");
}

#[test]
fn volumes_that_cannot_be_kept_are_refused() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let daemon = KeptDaemon::start(&scratch, "", &[&mountpoint]);
    let mount = |source: &str, more: &[&str]| {
        daemon.run(&[&["mount", "--daemon", source, mountpoint.to_str().unwrap()], more].concat())
    };
    mount("memory:bucket", &[]).expect(2, &["this daemon has --keep", "in memory", "without --daemon"]);
    mount(source.to_str().unwrap(), &["--transport", "uring"]).expect(2, &["this daemon has --keep", "io_uring"]);
    daemon.end();
    // A daemon that cannot start is not started again.
    let mut command = command(&scratch, "cahce = \"1GiB\"");
    command.arg("--keep");
    run(command).expect(2, &["invalid configuration", "cahce"]);
}
