//! The conformance suite on volumes as their users open them: in memory, and in a directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use slackwater::backend::{Backend, Call, Limits};
use slackwater_object::{Location, ObjectBackend, OpenOptions};
use slackwater_testkit::conformance_tests;

conformance_tests!(memory, |rule| rule.check(Volume::new(&format!("memory:{}", rule.name()))));

conformance_tests!(directory, |rule| {
    let folder = Folder::new();
    rule.check(Volume::new(&format!("file://{}", folder.0.display())));
});

/// A volume that is closed when the rule drops it, so that nothing writes to its store afterwards.
struct Volume(ObjectBackend);

impl Volume {
    fn new(url: &str) -> Self {
        let location = Location::parse(url).expect("a valid location");
        ObjectBackend::mkfs(&location).expect("a volume can be made");
        Self(ObjectBackend::open(&location, &OpenOptions::default()).expect("it can be opened"))
    }
}

impl Backend for Volume {
    fn submit(&self, call: Call) {
        self.0.submit(call);
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let closed = self.0.close();
        assert!(closed.is_ok() || std::thread::panicking(), "cannot close the volume: {closed:?}");
    }
}

/// A folder that is removed with its value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("conformance-{}-{number}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).expect("a folder can be made");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let removed = fs::remove_dir_all(&self.0);
        assert!(removed.is_ok() || std::thread::panicking(), "{}: {removed:?}", self.0.display());
    }
}
