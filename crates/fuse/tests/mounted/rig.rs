//! A mount of [`MemFs`] in its own directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use slackwater_fuse::abi::init;
use slackwater_fuse::mount::{MountOptions, UnmountError, Uring, mount, unmount};
use slackwater_fuse::{DevFuse, Ended, InitOptions, Pool, Session};

use crate::memory::MemFs;
use crate::transport;

/// Longer than any step takes on a loaded machine; only a failing test waits that long.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) struct Mounted {
    pub(crate) path: PathBuf,
    pub(crate) fs: Arc<MemFs>,
    pub(crate) session: Session,
}

impl Mounted {
    /// Mounts. Without access to /dev/fuse the test fails, since no other tests cover this.
    pub(crate) fn new(pool: &Pool) -> Self {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("slackwater-fuse-{}-{number}", std::process::id()));
        fs::create_dir(&path).expect("a new directory");
        let options = MountOptions { source: "slackwater#test,of mounts".to_owned(), ..MountOptions::default() };
        let fd = mount(&path, &options).expect("these tests mount FUSE file systems: run them as root");
        let fs = Arc::new(MemFs::default());
        let transport = DevFuse::new(fd).expect("a descriptor of /dev/fuse");
        let default = InitOptions::default();
        let uring = if transport::uring() == Uring::Never { 0 } else { init::OVER_IO_URING };
        let options = InitOptions { wanted: default.wanted | uring, ..default };
        let session = Session::start(pool, transport, &options, fs.clone()).expect("a session");
        assert_eq!(session.rings().is_ok(), uring != 0, "{:?}", session.rings());
        Self { path, fs, session }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Unmounts and waits for the end of the session.
    pub(crate) fn umount(&self) -> Ended {
        self.fs.release();
        // A program that another test starts shares the open files until it is executed.
        until("no file is open", || match unmount(&self.path, false) {
            Err(UnmountError::Busy(_)) => false,
            unmounted => unmounted.map(|()| true).expect("the volume is mounted"),
        });
        self.session.wait_ended_timeout(LONG).expect("an unmounted session ends")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.fs.release();
        // Already unmounted, unless the test failed.
        let _ = unmount(&self.path, true);
        let _ = fs::remove_dir(&self.path);
    }
}

/// Waits until `condition` holds.
pub(crate) fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "timed out waiting: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for a child; `None` if it takes too long.
pub(crate) fn wait(child: &mut Child) -> Option<std::process::ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < LONG {
        if let Some(status) = child.try_wait().expect("our own child") {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// `dd` writing one block to an existing file.
pub(crate) fn dd(path: &Path) -> Child {
    let mut dd = std::process::Command::new("dd");
    dd.arg("if=/dev/zero").arg(format!("of={}", path.display())).args(["bs=4096", "count=1", "conv=notrunc"]);
    dd.stdin(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    dd.spawn().expect("dd of coreutils")
}
