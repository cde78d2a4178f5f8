//! A daemon that dies loses nothing, and the next one starts without obstacles.

use std::fs;
use std::path::Path;

use crate::process::{Daemon, command, is_mounted, table};
use crate::rig::arena::{damage_record, frame_of};
use crate::rig::{Scratch, bytes, need_fuse, run, wait_until};

/// Writes data that no flusher takes for a while, so that it is only in the cache.
fn write(mountpoint: &Path, text: &str) {
    fs::write(mountpoint.join("file"), text).unwrap();
}

fn read(source: &Path) -> String {
    fs::read_to_string(source.join("file")).unwrap_or_default()
}

const LATE: &str = "dirty-expire = \"1h\"\n";

#[test]
fn the_next_daemon_writes_back_what_a_killed_one_left() {
    need_fuse();
    let scratch = Scratch::new();
    let (configured, other, gone) = (scratch.pair("configured"), scratch.pair("other"), scratch.pair("gone"));
    let config = LATE.to_owned() + &table("configured", &configured.0, &configured.1);
    let mut daemon = Daemon::start(&scratch, &config);
    daemon.mount(&other.0, &other.1, "other");
    daemon.mount(&gone.0, &gone.1, "gone");
    write(&configured.1, "one");
    write(&other.1, "two");
    write(&gone.1, "three");
    daemon.kill();
    assert_ne!(read(&other.0), "two", "it is only in the cache");
    let away = scratch.path.join("away");
    fs::rename(&gone.0, &away).unwrap();

    let daemon = Daemon::start(&scratch, &config);
    for words in ["died: taking over its socket", "Wrote back", "Cannot write back"] {
        daemon.wait_said(words, 1);
    }
    daemon.wait_said("Freed ", 3);
    assert_eq!(read(&configured.1), "one", "its volume is there again, with what was written");
    assert_eq!(read(&other.0), "two");
    assert!(!is_mounted(&other.1) && !is_mounted(&gone.1));
    assert_eq!(daemon.json("ls")["left"].as_array().unwrap().len(), 1);
    // No other process may mount the source now: it would write older data over this.
    fs::rename(&away, &gone.0).unwrap();
    let mount = ["mount", gone.0.to_str().unwrap(), gone.1.to_str().unwrap(), "--cache", "16MiB"];
    scratch.run(mount).expect(1, &["unwritten data", "mount --daemon"]);
    daemon.mount(&gone.0, &gone.1, "gone");
    assert_eq!(read(&gone.1), "three");
    daemon.end();
    assert_eq!((read(&configured.0), read(&gone.0)), ("one".into(), "three".into()));
    assert!(!scratch.arena("daemon").exists());
}

#[test]
fn a_damaged_record_costs_no_other_volume_its_data() {
    need_fuse();
    let scratch = Scratch::new();
    let (sound, torn) = (scratch.pair("sound"), scratch.pair("torn"));
    let mut daemon = Daemon::start(&scratch, LATE);
    daemon.mount(&sound.0, &sound.1, "sound");
    daemon.mount(&torn.0, &torn.1, "torn");
    let page = bytes(7, 4096);
    write(&sound.1, "one");
    fs::write(torn.1.join("file"), &page).unwrap();
    daemon.kill();
    let arena = scratch.arena("daemon");
    let frame = damage_record(&arena, &page);
    for _ in 0..2 {
        let mut daemon = Daemon::start(&scratch, LATE);
        for words in ["has damaged records", &format!("frame[{frame}].check is 0x"), "arena.damaged"] {
            wait_until(words, || daemon.said(words) > 0);
        }
        wait_until("the sound volume is written back", || read(&sound.0) == "one");
        daemon.mount(&sound.0, &sound.1, "sound");
        write(&sound.1, "one");
        daemon.kill();
    }
    Daemon::start(&scratch, LATE).end();
    assert_eq!(read(&sound.0), "one");
    let kept = arena.with_extension("arena.damaged");
    assert!(!arena.exists() && frame_of(&fs::read(&kept).unwrap(), frame) == page);
    assert!(!kept.with_extension("damaged.1").exists(), "it is the same file all the time");
}

#[test]
fn a_damaged_or_foreign_arena_keeps_the_daemon_from_starting() {
    need_fuse();
    let scratch = Scratch::new();
    let arena = scratch.arena("daemon");
    fs::write(&arena, "not an arena").unwrap();
    fs::set_permissions(&arena, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    run(command(&scratch, "")).expect(1, &["cannot use the arena", "move the arena away"]);
    assert_eq!(fs::read(&arena).unwrap(), b"not an arena");
}
