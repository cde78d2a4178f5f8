//! Many kills of a kept daemon while volumes come and go beside a stable one. Programs on the stable volume notice nothing, and
//! each command reports what became of its request.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use slackwater_testkit::Random;

use super::daemons::KeptDaemon;
use super::many_kills::{KILLS, KILLS_VARIABLE, finish, start};
use super::process::is_mounted;
use crate::rig::{BUSY, Scratch, need_fuse, run, slackwater};
use crate::sys::Mapped;
use crate::{bytes, runs};

/// The time between two kills: some hit the takeover, and some a mount or an unmount.
const LIFE_US: u64 = 400_000;
/// Volumes that come and go.
const VOLUMES: u64 = 2;

/// A volume that comes and goes.
struct Coming {
    name: String,
    source: PathBuf,
    mountpoint: PathBuf,
    run: PathBuf,
}

impl Coming {
    fn command(&self, words: &[&str]) -> io::Result<()> {
        let mut command = Command::new(slackwater());
        command.args(words).stdin(Stdio::null());
        command.env("SLACKWATER_RUNTIME_DIR", &self.run).env("SLACKWATER_SOCKET", self.run.join("daemon.sock"));
        let output = run(command);
        match output.code {
            Some(0) => Ok(()),
            // A child that another test starts may have a copy of the file.
            Some(BUSY) if words[0] == "umount" => self.command(words),
            code => Err(io::Error::other(format!("{words:?}: status {code:?}: {}", output.text))),
        }
    }

    /// Mounts it, changes it, and unmounts it. Then everything is in its source.
    fn come_and_go(&self, nth: u64) -> io::Result<()> {
        let (source, mountpoint) = (self.source.to_str().unwrap(), self.mountpoint.to_str().unwrap());
        self.command(&["mount", "--daemon", source, mountpoint, "--name", &self.name])?;
        let content = bytes(nth, 20_000);
        let path = self.mountpoint.join("file");
        fs::write(self.mountpoint.join("new"), &content)?;
        fs::rename(self.mountpoint.join("new"), &path)?;
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let mut mapped = Mapped::new(&file);
        mapped.store_at(100, &nth.to_le_bytes())?;
        drop((mapped, file));
        self.command(&["umount", &self.name])?;
        assert!(!is_mounted(&self.mountpoint), "{} is still mounted", self.name);
        let found = fs::read(self.source.join("file"))?;
        let is_right = found[..100] == content[..100] && found[100..108] == nth.to_le_bytes();
        assert!(is_right && found[108..] == content[108..], "the content of {} after unmount {nth}", self.name);
        Ok(())
    }
}

/// The probe of a new mount waited for its own process, and so did all volumes; and commands reported failures of requests
/// that were carried out.
#[test]
fn volumes_come_and_go_while_their_daemon_is_killed() {
    need_fuse();
    let scratch = Scratch::new();
    let (stable_source, stable) = scratch.pair("stable");
    let coming: Vec<_> = (0..VOLUMES)
        .map(|number| {
            let name = format!("volume{number}");
            let (source, mountpoint) = scratch.pair(&name);
            Coming { name, source, mountpoint, run: scratch.path.join("run") }
        })
        .collect();
    let mountpoints: Vec<_> = coming.iter().map(|volume| volume.mountpoint.clone()).chain([stable.clone()]).collect();
    let mountpoints: Vec<_> = mountpoints.iter().map(PathBuf::as_path).collect();
    let daemon = KeptDaemon::start(&scratch, "", &mountpoints);
    daemon.get().mount(&stable_source, &stable, "stable");

    let stop = Arc::new(AtomicBool::new(false));
    let saved = stable.join("saved");
    let save = move |nth| {
        let content = bytes(nth, 5000);
        fs::write(saved.with_extension("new"), &content)?;
        fs::rename(saved.with_extension("new"), &saved)?;
        assert!(fs::read(&saved)? == content, "version {nth} of the file on the stable volume");
        Ok(())
    };
    let mut programs = vec![start("a program on the stable volume", &stop, save)];
    for volume in coming {
        programs.push(start("a volume that comes and goes", &stop, move |nth| volume.come_and_go(nth)));
    }
    let mut random = Random::new(u64::from(std::process::id()));
    for _ in 0..runs(KILLS_VARIABLE, KILLS) {
        if programs.iter().any(|program| program.thread.is_finished()) {
            break;
        }
        thread::sleep(Duration::from_micros(random.below(LIFE_US)));
        daemon.kill();
    }
    finish(programs, &stop);
    daemon.umount("stable");
    daemon.end();
}
