//! A program that makes data durable in every possible way, and records what was acknowledged.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{ReadWriteFlags, pwritev2};

use crate::model::{Model, SLOT_BYTES, SLOT_FILE, SLOT_STRIDE, SLOTS, Version};
use crate::sys;

/// Works until an operation fails. `seed` decides what it does.
pub(crate) fn work(directory: &Path, seed: u64) -> Model {
    let mut writer =
        Writer { directory: directory.to_path_buf(), model: Model::default(), random: seed | 1, number: 0 };
    while writer.step().is_ok() {}
    writer.model
}

struct Writer {
    directory: PathBuf,
    model: Model,
    random: u64,
    number: u64,
}

impl Writer {
    fn below(&mut self, end: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % end
    }

    fn version(&mut self) -> Version {
        self.number += 1;
        Version { number: self.number, words: 1 + self.below(3000) as usize }
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }

    fn step(&mut self) -> io::Result<()> {
        match self.below(9) {
            0 => self.new_file(),
            1 => self.new_file_by_name(),
            2 => self.new_file_by_open_flag(),
            3 => self.replaced(),
            4 => self.written_anew(),
            5 => self.removed(),
            _ => self.slot(),
        }
    }

    /// A random file name of this kind, from a few, with its path.
    fn pick(&mut self, kind: &str) -> (String, PathBuf) {
        let name = format!("{kind}{}", self.below(6));
        let path = self.directory.join(&name);
        (name, path)
    }

    /// `fsync` of a new file.
    fn new_file(&mut self) -> io::Result<()> {
        let version = self.version();
        let name = format!("new{}", version.number);
        self.model.begin(&name, version);
        let mut file = File::create_new(self.directory.join(&name))?;
        file.write_all(&version.bytes())?;
        file.sync_all()?;
        self.model.durable(&name);
        Ok(())
    }

    /// `fdatasync` of a new file, a rename, and `fsync` of the directory.
    fn new_file_by_name(&mut self) -> io::Result<()> {
        let version = self.version();
        let name = format!("moved{}", version.number);
        self.model.begin(&name, version);
        let under = self.directory.join("unnamed");
        let mut file = File::create(&under)?;
        file.write_all(&version.bytes())?;
        file.sync_data()?;
        fs::rename(&under, self.directory.join(&name))?;
        self.sync_directory()?;
        self.model.durable(&name);
        Ok(())
    }

    /// Creates a file with `O_SYNC` or `O_DSYNC`, or writes it with `RWF_DSYNC`, in parts. Some are preallocated.
    fn new_file_by_open_flag(&mut self) -> io::Result<()> {
        let version = self.version();
        let name = format!("flag{}", version.number);
        self.model.begin(&name, version);
        let how = self.below(4);
        let flags = [libc::O_SYNC, libc::O_DSYNC, libc::O_DSYNC, 0][how as usize];
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).custom_flags(flags).open(self.directory.join(&name))?;
        let bytes = version.bytes();
        if how == 2 {
            fallocate(&file, FallocateFlags::KEEP_SIZE, 0, bytes.len() as u64)?;
        }
        let mut at = 0;
        for part in bytes.chunks(9000) {
            if how == 3 {
                let written = pwritev2(&file, &[IoSlice::new(part)], at, ReadWriteFlags::DSYNC)?;
                assert_eq!(written, part.len());
            } else {
                file.write_all_at(part, at)?;
            }
            at += part.len() as u64;
        }
        self.model.durable(&name);
        Ok(())
    }

    /// A file replaced by a rename without a sync: the old one or the new one remains.
    fn replaced(&mut self) -> io::Result<()> {
        let (name, path) = self.pick("replaced");
        let version = self.version();
        self.model.begin(&name, version);
        let under = self.directory.join("under");
        File::create(&under)?.write_all(&version.bytes())?;
        fs::rename(&under, path)
    }

    /// Truncates a file with `O_TRUNC`, writes it and closes it. An operation that makes another file durable makes the
    /// truncation durable too, but ext4 does not wait for the new bytes, which were sent before.
    fn written_anew(&mut self) -> io::Result<()> {
        let (name, path) = self.pick("anew");
        let version = self.version();
        self.model.begin_anew(&name, version);
        let is_new = !path.exists();
        let mut file = File::create(&path)?;
        file.write_all(&version.bytes())?;
        if is_new {
            file.sync_all()?; // without it nothing is promised for a new file
        }
        drop(file);
        File::create(self.directory.join("other"))?.sync_all()?;
        match is_new {
            true => self.model.durable(&name),
            false => self.model.sent(&name),
        }
        Ok(())
    }

    fn removed(&mut self) -> io::Result<()> {
        let (name, path) = self.pick("removed");
        if path.exists() {
            self.model.begin(&name, Version::NONE);
            fs::remove_file(&path)?;
            self.sync_directory()?;
        } else {
            let version = self.version();
            self.model.begin(&name, version);
            let mut file = File::create(&path)?;
            file.write_all(&version.bytes())?;
            file.sync_all()?;
        }
        self.model.durable(&name);
        Ok(())
    }

    /// Bytes within a file: over others, into holes, and beyond the end.
    fn slot(&mut self) -> io::Result<()> {
        let slot = self.below(SLOTS as u64) as usize;
        self.number += 1;
        let version = Version { number: self.number, words: SLOT_BYTES / 10 };
        let (at, bytes) = (slot * SLOT_STRIDE, version.bytes());
        self.model.begin_slot(slot, version);
        let how = self.below(4);
        let flags = if how == 0 { libc::O_DSYNC } else { 0 };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).custom_flags(flags);
        let file = options.open(self.directory.join(SLOT_FILE))?;
        match how {
            1 => assert_eq!(pwritev2(&file, &[IoSlice::new(&bytes)], at as u64, ReadWriteFlags::DSYNC)?, bytes.len()),
            2 => {
                if file.metadata()?.len() < (at + bytes.len()) as u64 {
                    file.set_len((at + bytes.len()) as u64)?;
                }
                sys::store(&file, at, &bytes)?;
            }
            _ => file.write_all_at(&bytes, at as u64)?,
        }
        if how == 3 {
            file.sync_data()?;
        }
        self.model.durable_slot(slot);
        Ok(())
    }
}
