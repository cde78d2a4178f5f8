//! The functions of the interface, as methods of its three handles.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use slackwater::backend::NewNode;
use slackwater::{Engine, ErrorKind, InodeRef, SuperBlock, Tunables, UmountOptions};
use slackwater_arena::{Arena, ArenaConfig, Survivors};
use slackwater_backends::{DirBackend, SystemClock};

use crate::failure::Failure;

/// Flags of [`Volume::open`], as in the header.
pub(crate) const CREATE: u32 = 1;
pub(crate) const EXCLUSIVE: u32 = 2;
pub(crate) const TRUNCATE: u32 = 4;

/// A cache, with the file that holds it.
pub(crate) struct Cache {
    engine: Engine,
    arena: Option<PathBuf>,
}

/// A directory behind the cache.
pub(crate) struct Volume(Arc<SuperBlock>);

/// An open file.
pub(crate) struct File(slackwater::File);

impl Cache {
    pub(crate) fn open(bytes: u64, arena: Option<&Path>) -> Result<Self, Failure> {
        let (opened, survivors) = match arena {
            Some(path) if path.exists() => Arena::open(path)?,
            Some(path) => (Arena::create(&ArenaConfig::file(path, bytes))?, Survivors::default()),
            None => (Arena::create(&ArenaConfig::memfd(bytes))?, Survivors::default()),
        };
        let engine = Engine::recover(opened, survivors, Arc::new(SystemClock), Tunables::default());
        Ok(Self { engine, arena: arena.map(Path::to_path_buf) })
    }

    /// Whether it can end.
    pub(crate) fn check_idle(&self) -> Result<(), Failure> {
        match self.engine.volumes().first() {
            Some(volume) => {
                Err(Failure::new(libc::EBUSY, format!("the volume {} is mounted: unmount it first", volume.name())))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn close(self) -> Result<(), Failure> {
        let keeps_data = !self.engine.surviving_volumes().is_empty();
        drop(self.engine);
        match self.arena.filter(|_| !keeps_data) {
            Some(path) => fs::remove_file(&path).map_err(|error| {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                Failure::new(errno, format!("cannot remove {}: {error}", path.to_string_lossy()))
            }),
            None => Ok(()),
        }
    }

    pub(crate) fn mount(&self, name: &str, directory: &Path) -> Result<Volume, Failure> {
        let backend = DirBackend::open(directory)?;
        Ok(Volume(self.engine.mount(name, Arc::new(backend))?))
    }
}

impl Volume {
    pub(crate) fn sync(&self) -> Result<(), Failure> {
        Ok(self.0.sync()?)
    }

    pub(crate) fn umount(&self, deadline: Option<Duration>) -> Result<(), Failure> {
        Ok(self.0.umount(UmountOptions { deadline, ..UmountOptions::default() })?)
    }

    pub(crate) fn open(&self, path: &[u8], flags: u32, mode: u32) -> Result<File, Failure> {
        if flags & !(CREATE | EXCLUSIVE | TRUNCATE) != 0 {
            return Err(Failure::new(libc::EINVAL, format!("unknown flags: {flags:#x}")));
        }
        let inode = if flags & CREATE == 0 {
            self.0.walk(std::ffi::OsStr::from_bytes(path))?
        } else {
            self.create(path, flags & EXCLUSIVE != 0, mode)?
        };
        let file = slackwater::File::open(&inode)?;
        if flags & TRUNCATE != 0 {
            file.set_len(0)?;
        }
        Ok(File(file))
    }

    fn create(&self, path: &[u8], is_exclusive: bool, mode: u32) -> Result<InodeRef, Failure> {
        let path = std::ffi::OsStr::from_bytes(path);
        let slash = path.as_bytes().iter().rposition(|byte| *byte == b'/');
        let (folder, name) = slash.map_or((&b""[..], path.as_bytes()), |at| path.as_bytes().split_at(at + 1));
        let folder = self.0.walk(std::ffi::OsStr::from_bytes(folder))?;
        let name = std::ffi::OsStr::from_bytes(name);
        match self.0.make(&folder, name, NewNode::File, mode) {
            Err(error) if error.kind() == ErrorKind::Exists && !is_exclusive => Ok(self.0.lookup(&folder, name)?),
            made => Ok(made?),
        }
    }
}

impl File {
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Failure> {
        Ok(self.0.read_at(offset, buffer)?)
    }

    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> Result<usize, Failure> {
        self.0.write_at(offset, bytes)?;
        Ok(bytes.len())
    }

    pub(crate) fn size(&self) -> u64 {
        self.0.inode().size_bytes()
    }

    pub(crate) fn fsync(&self) -> Result<(), Failure> {
        Ok(self.0.fsync()?)
    }

    pub(crate) fn close(self) -> Result<(), Failure> {
        self.0.take_write_error().map_or(Ok(()), |kind| Err(kind.into()))
    }
}
