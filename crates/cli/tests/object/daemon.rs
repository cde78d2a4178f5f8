//! Object volumes in a daemon, from its configuration and by `mount --daemon`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::thread;

use rustix::process::Signal;

use crate::rig::{Process, Scratch, need_fuse, umount_when_free, wait_until};
use crate::store::{Store, stores};

/// A daemon that listens.
pub(crate) fn daemon(scratch: &Scratch, store: &Store, config: &Path) -> Process {
    let arena = store.arena("daemon");
    let words = ["daemon", "--cache", "64MiB", "--arena", arena.to_str().unwrap(), "--config"];
    let mut command = store.command(scratch, &[&words[..], &[config.to_str().unwrap()]].concat());
    let mut daemon = Process::spawn(command.stdout(Stdio::piped()));
    let mut lines = BufReader::new(daemon.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("End with")), "the daemon has not started");
    // It keeps writing until its end.
    thread::spawn(move || lines.for_each(drop));
    daemon
}

#[test]
fn a_daemon_serves_object_volumes_and_continues_after_a_kill() {
    need_fuse();
    let scratch = Scratch::new();
    for store in stores(&scratch) {
        let [configured, other, readers @ ..] = store.mountpoints::<4>(&scratch);
        let second = Store::directory(&scratch);
        store.mkfs(&scratch);
        second.mkfs(&scratch);
        let config = scratch.path.join("config.toml");
        let table = format!(
            "[volumes.one]\nsource = \"{}\"\nmountpoint = \"{}\"\nupload-limit = \"100MiB\"\n",
            store.url,
            configured.display()
        );
        fs::write(&config, table).unwrap();

        let mut process = daemon(&scratch, &store, &config);
        let mount = ["mount", "--daemon", &second.url, other.to_str().unwrap(), "--name", "two"];
        store.run(&scratch, &mount).expect(0, &["Mounted", &second.url]);
        let busy =
            store.run(&scratch, &["mount", "--daemon", &second.url, configured.to_str().unwrap(), "--name", "x"]);
        busy.expect(3, &[]);
        // Readers of the same volume, beside its writer and in the same process.
        fs::write(configured.join("seen"), "seen").unwrap();
        scratch.run(["sync", "one"]).expect(0, &[]);
        for reader in &readers {
            let words = ["mount", "--daemon", &store.url, reader.to_str().unwrap(), "--read-only"];
            store.run(&scratch, &words).expect(0, &["Mounted", &store.url]);
        }
        for reader in &readers {
            assert_eq!(fs::read(reader.join("seen")).unwrap(), b"seen");
            scratch.umount(reader);
        }
        for at in [&configured, &other] {
            fs::create_dir(at.join("dir")).unwrap();
            fs::write(at.join("dir/file"), "kept").unwrap();
        }
        scratch.run(["ls"]).expect(0, &["one", "two", "mounted", &store.url, &second.url]);
        process.0.kill().unwrap();
        process.wait();

        // The volume that is not in the configuration is brought to its store without a mount.
        let mut process = daemon(&scratch, &store, &config);
        assert_eq!(fs::read(configured.join("dir/file")).unwrap(), b"kept");
        wait_until("the other volume is free", || store.run(&scratch, &mount).code == Some(0));
        assert_eq!(fs::read(other.join("dir/file")).unwrap(), b"kept");
        umount_when_free(|| scratch.run(["umount", "two"])).expect(0, &[]);
        process.signal(Signal::TERM);
        assert!(process.wait().success());
        assert_eq!(store.left(), Vec::<String>::new());
        store.fsck(&scratch);
        second.fsck(&scratch);
    }
}
