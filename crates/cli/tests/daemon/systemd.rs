//! Notifications to a service manager, and a shutdown with much dirty data.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::process::Signal;

use crate::process::{Daemon, command, table};
use crate::rig::{Process, Scratch, need_fuse, wait_until};

/// The listening side of a service manager.
struct Supervisor {
    heard: Arc<Mutex<Vec<String>>>,
}

impl Supervisor {
    fn listen(socket: &std::path::Path) -> Self {
        let listening = UnixDatagram::bind(socket).unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hearing = Arc::clone(&heard);
        thread::spawn(move || {
            let mut message = [0; 4096];
            while let Ok(bytes) = listening.recv(&mut message) {
                hearing.lock().unwrap().push(String::from_utf8_lossy(&message[..bytes]).into_owned());
            }
        });
        Self { heard }
    }

    fn has_heard(&self, words: &str) -> usize {
        self.heard.lock().unwrap().iter().filter(|message| message.lines().any(|line| line.starts_with(words))).count()
    }
}

#[test]
fn the_service_manager_is_notified_of_start_watchdog_and_stop() {
    need_fuse();
    let scratch = Scratch::new();
    let notify = scratch.path.join("notify");
    let manager = Supervisor::listen(&notify);
    let (source, mountpoint) = scratch.pair("a");
    let mut command = command(&scratch, &table("a", &source, &mountpoint));
    command.env("NOTIFY_SOCKET", &notify).env("WATCHDOG_USEC", "300000").env_remove("WATCHDOG_PID");
    let mut process = Process::spawn(command.stdout(std::process::Stdio::null()));
    wait_until("it is ready", || manager.has_heard("READY=1") == 1);
    assert!(mountpoint.join(".").exists());
    assert_eq!(manager.has_heard("STATUS=1 volumes"), 1);
    wait_until("it answers the watchdog", || manager.has_heard("WATCHDOG=1") >= 3);
    assert_eq!(manager.has_heard("STOPPING=1"), 0);
    process.signal(Signal::TERM);
    assert!(process.wait().success());
    // Messages are read by a thread.
    wait_until("it has announced its end", || manager.has_heard("STOPPING=1") == 1);
}

#[test]
fn a_shutdown_with_a_gigabyte_of_dirty_data_asks_for_time_and_loses_nothing() {
    const BYTES: u64 = 1 << 30;
    need_fuse();
    let scratch = Scratch::new();
    let notify = scratch.path.join("notify");
    let manager = Supervisor::listen(&notify);
    let (source, mountpoint) = scratch.pair("a");
    // Nothing is written back below half of the cache.
    let config = "cache = \"2400MiB\"\ndirty-ratio = 100\ndirty-expire = \"1h\"\n";
    let config = config.to_owned() + &table("a", &source, &mountpoint);
    let daemon = Daemon::start_with(&scratch, &config, |command| {
        command.env("NOTIFY_SOCKET", &notify);
    });
    let block = |number: u64| {
        let mut block = vec![number as u8; 1 << 20];
        block[..8].copy_from_slice(&number.to_le_bytes());
        block
    };
    let mut file = File::create(mountpoint.join("large")).unwrap();
    (0..BYTES >> 20).for_each(|number| file.write_all(&block(number)).unwrap());
    drop(file);
    let left = daemon.json("ls")["volumes"][0]["bytes_left"].as_u64().unwrap();
    // Under memory pressure some of it is written back at once.
    assert!(left >= BYTES / 2, "{left} bytes are dirty");
    daemon.end();
    wait_until("it has asked for time: the shutdown takes longer than one interval", || {
        manager.has_heard("EXTEND_TIMEOUT_USEC=") >= 1
    });
    let mut written = File::open(source.join("large")).unwrap();
    assert_eq!(written.metadata().unwrap().len(), BYTES);
    let mut found = vec![0; 1 << 20];
    for number in 0..BYTES >> 20 {
        written.read_exact(&mut found).unwrap();
        assert!(found == block(number), "block {number}");
    }
    fs::remove_file(source.join("large")).unwrap();
}
