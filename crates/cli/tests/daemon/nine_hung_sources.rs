//! Nine of ten volumes hang with everything that can pile up on them; the tenth works.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::process::{Daemon, is_mounted, table};
use crate::rig::{Process, Scratch, need_fuse, wait_until};
use crate::sys::Mapped;

const HUNG: usize = 9;
/// Small enough that no write-back is in progress when the source stops: the kernel does not end a thread whose request
/// the source has already read.
const BYTES: usize = 256 << 10;
/// Files open at the same time on each volume.
const OPEN_FILES: usize = 50;

/// A volume whose source is about to hang, with unwritten data, open files and a mapping.
struct Volume {
    top: PathBuf,
    _open: Vec<File>,
    mapped: Mapped,
}

impl Volume {
    fn begin(top: PathBuf) -> Self {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(top.join("mapped")).unwrap();
        file.write_all_at(&[1; BYTES], 0).unwrap();
        file.sync_all().unwrap();
        let mut mapped = Mapped::new(&file);
        mapped.store(&[2; BYTES]);
        let open = (0..OPEN_FILES).map(|nth| options.open(top.join(nth.to_string())).unwrap()).collect();
        fs::write(top.join("data"), [3; BYTES]).unwrap();
        Self { top, _open: open, mapped }
    }

    /// Starts programs that need the source, and kills them.
    fn probe(&self) {
        let probers = [("cat", "unknown"), ("ls", ""), ("mkdir", "new")].map(|(program, name)| {
            let mut command = Command::new(program);
            Process::spawn(command.arg(self.top.join(name)).stdout(Stdio::null()).stderr(Stdio::null()))
        });
        for mut prober in probers {
            prober.0.kill().unwrap();
            prober.wait();
        }
    }
}

/// The work of a program on the healthy volume.
fn work(mountpoint: &Path, round: usize) {
    let path = mountpoint.join(round.to_string());
    let mut file = File::create(&path).unwrap();
    file.write_all(&vec![round as u8; BYTES]).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(&path).unwrap(), vec![round as u8; BYTES]);
    assert!(fs::read_dir(mountpoint).unwrap().count() > round);
}

#[test]
fn p04_nine_hung_volumes_affect_neither_a_tenth_nor_a_restart() {
    need_fuse();
    let scratch = Scratch::new();
    let (base, middle) = scratch.pair("base");
    let server = scratch.mount_to_be_stopped(&base, &middle);
    let healthy = scratch.pair("healthy");
    let config = "dirty-expire = \"1h\"\n".to_owned() + &table("healthy", &healthy.0, &healthy.1);
    let mut daemon = Daemon::start(&scratch, &config);
    let mut volumes: Vec<_> = (0..HUNG)
        .map(|nth| {
            let source = middle.join(nth.to_string());
            fs::create_dir(&source).unwrap();
            let top = scratch.dir(&format!("top-{nth}"), 0o755);
            daemon.mount(&source, &top, &format!("hung-{nth}"));
            Volume::begin(top)
        })
        .collect();
    // Closing a file that was open for writing sends a request that no kill ends, whether or not the server has read it.
    wait_until("the daemon closes no file", || !daemon.process.has_thread("slackwater-clos"));
    server.stop_at_rest();
    for round in 0..10 {
        for volume in &mut volumes {
            volume.mapped.store(&[4; BYTES]);
            volume.probe();
        }
        work(&healthy.1, round);
    }
    assert_eq!(daemon.states().len(), HUNG + 1);
    daemon.run(["sync", "healthy"]).expect(0, &[]);

    // The daemon ends without waiting for the hung volumes, and the next one serves the tenth beside them.
    daemon.process.signal(Signal::TERM);
    wait_until("the healthy volume is unmounted", || !is_mounted(&healthy.1));
    assert_eq!(daemon.process.wait().code(), Some(7), "{}", daemon.all_said());
    assert!(volumes.iter().all(|volume| !is_mounted(&volume.top)));
    drop(volumes);
    let daemon = Daemon::start(&scratch, &config);
    let mounted = [("healthy".to_owned(), "mounted".to_owned())];
    wait_until("the healthy volume is mounted", || daemon.states() == mounted);
    (10..20).for_each(|round| work(&healthy.1, round));
    server.process.signal(Signal::CONT);
    wait_until("everything is written back", || daemon.said("Wrote back") == HUNG);
    daemon.end();
    for nth in 0..HUNG {
        assert_eq!(fs::read(middle.join(nth.to_string()).join("data")).unwrap(), [3; BYTES]);
    }
    scratch.umount(&middle);
    drop(server);
}
