//! A volume whose source does not answer affects only itself. The source is another mount of ours, whose server is
//! stopped.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::process::{Daemon, is_mounted, table};
use crate::rig::{Mount, Scratch, need_fuse, wait_until};

const BYTES: usize = 3 << 20;

/// A daemon with the volumes `hung` at `top` and `other`. The source of `hung` is `base`, mounted at `middle` by
/// `server`, which a test can stop.
struct Stage<'s> {
    base: PathBuf,
    middle: PathBuf,
    server: Mount,
    top: PathBuf,
    source: PathBuf,
    mountpoint: PathBuf,
    daemon: Daemon<'s>,
}

impl<'s> Stage<'s> {
    fn new(scratch: &'s Scratch) -> Self {
        let (base, middle) = scratch.pair("base");
        let server = scratch.mount_to_be_stopped(&base, &middle);
        let top = scratch.dir("top", 0o755);
        let (source, mountpoint) = scratch.pair("other");
        let daemon = Daemon::start(scratch, "dirty-expire = \"1h\"\n");
        daemon.mount(&middle, &top, "hung");
        daemon.mount(&source, &mountpoint, "other");
        Self { base, middle, server, top, source, mountpoint, daemon }
    }
}

#[test]
fn a_hung_source_stops_no_other_volume_and_the_daemon_ends_once_it_answers() {
    need_fuse();
    let scratch = Scratch::new();
    let Stage { base, middle, server, top, source, mountpoint, daemon } = Stage::new(&scratch);
    let options = OpenOptions::new().read(true).write(true).create(true).clone();
    let mut file = options.open(top.join("file")).unwrap();
    server.stop_at_rest();
    file.write_all(&vec![7; BYTES]).unwrap();
    // Cached data is available, and closing the file does not wait.
    let mut found = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut found).unwrap();
    assert!(found == vec![7; BYTES]);
    drop(file);

    let late = daemon.run_when_free(["umount", "hung", "--deadline", "1s"]);
    late.expect(4, &["the deadline passed", "nothing is lost"]);
    // The daemon and the other volumes keep working.
    let mounted = |name: &str| (name.to_owned(), "mounted".to_owned());
    assert_eq!(daemon.states(), [mounted("hung"), mounted("other")]);
    assert_eq!(daemon.json("tenants")["tenants"][0]["name"], "root");
    fs::write(mountpoint.join("file"), vec![8; BYTES]).unwrap();
    File::open(mountpoint.join("file")).unwrap().sync_all().unwrap();
    daemon.umount("other");
    daemon.mount(&source, &mountpoint, "again");
    assert_eq!(fs::read(mountpoint.join("file")).unwrap(), vec![8; BYTES]);

    // The shutdown waits for the hung volume, and has unmounted the other one.
    daemon.process.signal(Signal::TERM);
    wait_until("the other is unmounted", || !is_mounted(&mountpoint));
    wait_until("the daemon still answers", || daemon.states().iter().all(|(name, _)| name == "hung"));
    let (late, late_mount) = scratch.pair("late");
    let refused = ["mount", "--daemon", late.to_str().unwrap(), late_mount.to_str().unwrap()];
    daemon.run(refused).expect(3, &["the daemon is shutting down"]);
    server.process.signal(Signal::CONT);
    daemon.ended();
    assert_eq!(fs::read(middle.join("file")).unwrap(), vec![7; BYTES]);
    scratch.umount(&middle);
    drop(server);
    assert_eq!(fs::read(base.join("file")).unwrap(), vec![7; BYTES]);
}

/// Runs `work` with a daemon that has a volume with unwritten data over a hung source, and another volume; and with the
/// open file of that data, since a lookup could wait for the source. Then lets the source answer and checks that the data
/// is written back: by that daemon if it still runs, otherwise by the next one.
fn with_a_hung_source(work: impl for<'s> FnOnce(Daemon<'s>, File, &Path, &Path) -> Option<Daemon<'s>>) {
    need_fuse();
    let scratch = Scratch::new();
    let Stage { base, middle, server, top, source, mountpoint, daemon } = Stage::new(&scratch);
    fs::write(top.join("file"), vec![5; BYTES]).unwrap();
    File::open(top.join("file")).unwrap().sync_all().unwrap();
    // Not truncated: the close of a truncated file starts write-back.
    let mut file = OpenOptions::new().write(true).open(top.join("file")).unwrap();
    file.write_all(&vec![6; BYTES]).unwrap();
    server.stop_at_rest();
    fs::write(mountpoint.join("file"), vec![7; BYTES]).unwrap();
    let daemon = work(daemon, file, &top, &mountpoint);
    assert_eq!(fs::read(source.join("file")).unwrap(), vec![7; BYTES]);
    server.process.signal(Signal::CONT);
    let daemon = match daemon {
        Some(daemon) => {
            wait_until("nothing of the volume is left", || daemon.states().iter().all(|(name, _)| name != "hung"));
            daemon
        }
        None => {
            let daemon = Daemon::start(&scratch, "");
            wait_until("the next daemon has written it back", || daemon.all_said().contains("Wrote back 3.0 MiB"));
            wait_until_nothing_left(&daemon);
            daemon
        }
    };
    assert_eq!(fs::read(middle.join("file")).unwrap(), vec![6; BYTES]);
    daemon.end();
    assert!(!scratch.arena("daemon").exists());
    scratch.umount(&middle);
    drop(server);
    assert_eq!(fs::read(base.join("file")).unwrap(), vec![6; BYTES]);
}

/// Waits until a daemon is done with the data of the one before.
#[track_caller]
fn wait_until_nothing_left(daemon: &Daemon<'_>) {
    wait_until("nothing is left", || daemon.json("ls")["left"].as_array().unwrap().is_empty());
}

#[test]
fn p03_force_frees_the_mount_point_over_a_hung_source_and_the_daemon_continues_the_flush() {
    with_a_hung_source(|daemon, mut file, top, mountpoint| {
        let force = ["umount", "hung", "--force", "--deadline", "1s"];
        daemon.run(force).expect(7, &["3.0 MiB could not be written back", "the daemon continues writing it back"]);
        assert!(fs::read_dir(top).unwrap().next().is_none(), "the mount point is free");
        file.write_all(b"late").unwrap_err();
        let states = daemon.states();
        assert_eq!(states, [("hung", "flushing"), ("other", "mounted")].map(|(a, b)| (a.to_owned(), b.to_owned())));
        daemon.run(["sync", "other"]).expect(0, &[]);
        assert_eq!(fs::read(mountpoint.join("file")).unwrap(), vec![7; BYTES]);
        Some(daemon)
    });
}

#[test]
fn p03_sigterm_ends_a_daemon_with_a_hung_source() {
    with_a_hung_source(|mut daemon, _file, top, mountpoint| {
        daemon.process.signal(Signal::TERM);
        wait_until("the other volume is unmounted", || !is_mounted(mountpoint));
        assert_eq!(daemon.process.wait().code(), Some(7));
        daemon.wait_said("3.0 MiB not written back", 1);
        assert!(fs::read_dir(top).unwrap().next().is_none(), "the mount point is free");
        None
    });
}

#[test]
fn p04_a_daemon_starts_while_a_source_of_its_dead_predecessor_hangs() {
    need_fuse();
    let scratch = Scratch::new();
    let (base, middle) = scratch.pair("base");
    let server = scratch.mount_to_be_stopped(&base, &middle);
    let top = scratch.dir("top", 0o755);
    let (left, configured) = (scratch.pair("left"), scratch.pair("configured"));
    let config = "dirty-expire = \"1h\"\n".to_owned() + &table("configured", &configured.0, &configured.1);
    let mut daemon = Daemon::start(&scratch, &config);
    daemon.mount(&middle, &top, "hung");
    daemon.mount(&left.0, &left.1, "left");
    for path in [&top, &left.1, &configured.1] {
        fs::write(path.join("file"), vec![5; BYTES]).unwrap();
    }
    daemon.kill();
    server.stop_at_rest();
    // The configured volume and the other leftover do not wait for the hung one.
    let daemon = Daemon::start(&scratch, &config);
    let mounted = [("configured".to_owned(), "mounted".to_owned())];
    wait_until("the configured volume is mounted", || daemon.states() == mounted);
    assert_eq!(fs::read(configured.1.join("file")).unwrap(), vec![5; BYTES]);
    let is_written_back = |dir: &Path| fs::read(dir.join("file")).is_ok_and(|found| found == vec![5; BYTES]);
    wait_until("the other leftover is written back", || is_written_back(&left.0));
    daemon.wait_said("Some source directories do not answer yet", 1);
    // A daemon that ends without waiting for the hung source keeps its data.
    daemon.end();
    assert!(scratch.arena("daemon").exists());
    server.process.signal(Signal::CONT);
    let daemon = Daemon::start(&scratch, &config);
    wait_until_nothing_left(&daemon);
    assert!(is_written_back(&middle));
    daemon.end();
    assert!(!scratch.arena("daemon").exists());
    scratch.umount(&middle);
    drop(server);
}
