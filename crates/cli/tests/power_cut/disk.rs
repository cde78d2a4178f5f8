//! An ext4 in a file whose power can be cut.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::rig::{Output, Scratch, run};
use crate::sys;

const BYTES: u64 = 256 << 20;

/// A disk, mounted until it is dropped.
pub(crate) struct Disk {
    image: PathBuf,
    pub(crate) path: PathBuf,
}

impl Disk {
    pub(crate) fn new(scratch: &Scratch) -> Self {
        // In memory: only what reaches the image matters, not how long it takes.
        let (image, path) = (scratch.arena("disk"), scratch.dir("disk", 0o755));
        File::create(&image).unwrap().set_len(BYTES).unwrap();
        shell(&["mkfs.ext4", "-q", "-F", "-m", "0", text(&image)]).expect(0, &[]);
        let disk = Self { image, path };
        disk.mount();
        disk
    }

    fn mount(&self) {
        shell(&["mount", "-o", "loop,commit=1", text(&self.image), text(&self.path)]).expect(0, &[]);
    }

    /// Cuts the power: only what is in the image now remains. A copy of it is mounted, so that processes that hold the
    /// dead one are not in the way.
    pub(crate) fn cut_power(&self) {
        let root = File::open(&self.path).unwrap();
        sys::cut_off(&root).unwrap();
        drop(root);
        let copy = self.image.with_extension("copy");
        shell(&["cp", "--sparse=always", text(&self.image), text(&copy)]).expect(0, &[]);
        shell(&["umount", "-l", text(&self.path)]).expect(0, &[]);
        fs::rename(&copy, &self.image).unwrap();
        self.mount();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = shell(&["umount", "-l", text(&self.path)]);
        let _ = fs::remove_file(&self.image);
    }
}

fn shell(words: &[&str]) -> Output {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    run(command)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
