//! Files that another program changes in the source.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use crate::rig::Rig;

/// A time longer than the kernel caches attributes, for a loaded machine.
const SEEN_WITHIN: Duration = Duration::from_secs(30);

/// The kernel has the file's last page, with zeroes behind the old end.
#[test]
fn bytes_appended_in_the_source_are_read() {
    let rig = Rig::new();
    fs::write(rig.stored("file"), "one").unwrap();
    assert_eq!(fs::read(rig.file("file")).unwrap(), b"one");
    let mut file = OpenOptions::new().append(true).open(rig.stored("file")).unwrap();
    file.write_all(b" and two").unwrap();
    let since = Instant::now();
    while fs::read(rig.file("file")).unwrap() != b"one and two" {
        assert!(since.elapsed() < SEEN_WITHIN, "{:?}", fs::read(rig.file("file")));
        thread::sleep(Duration::from_millis(20));
    }
    rig.umount().unwrap();
}
