//! The conformance suite on volumes as their users open them: in memory, and in a directory.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use slackwater_backends::conformance_tests;
use slackwater_object::{Location, ObjectBackend, OpenOptions};

conformance_tests!(memory, |rule| rule.check(volume(&format!("memory:{}", rule.name()))));

conformance_tests!(directory, |rule| {
    let folder = Folder::new();
    rule.check(volume(&format!("file://{}", folder.0.display())));
});

fn volume(url: &str) -> ObjectBackend {
    let location = Location::parse(url).expect("a valid location");
    ObjectBackend::mkfs(&location).expect("a volume can be made");
    ObjectBackend::open(&location, &OpenOptions::default()).expect("it can be opened")
}

/// A folder that is removed with its value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("conformance-{}-{number}", std::process::id());
        let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Files that the volume writes while it closes may be in the way; the system cleans the rest.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
