//! The subjects: a directory on the disk, and directories that servers have mounted.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::mounted::Mounted;
use super::programs::{DISK, Server};

/// A directory to work in, and its server.
pub(crate) struct Subject {
    name: &'static str,
    home: PathBuf,
    server: Option<Server>,
    mounted: Option<Mounted>,
}

impl Subject {
    /// The disk itself, in the new directory `home`.
    pub(crate) fn disk(home: PathBuf) -> Self {
        Self { name: DISK, home, server: None, mounted: None }
    }

    /// `server` on the new directory `home`.
    pub(crate) fn mounted(server: &Server, home: PathBuf, cache_bytes: u64) -> Result<Self> {
        let mounted = Mounted::new(server, &home, cache_bytes)?;
        Ok(Self { name: server.name, home, server: Some(server.clone()), mounted: Some(mounted) })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn path(&self) -> &Path {
        self.mounted.as_ref().map_or(&self.home, Mounted::path)
    }

    /// The path of a file. The bare server has a single file for everything.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(if self.keeps_files() { name } else { "bare" })
    }

    pub(crate) fn is_mounted(&self) -> bool {
        self.mounted.is_some()
    }

    /// The process of the server, if there is one.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.mounted.as_ref().map(Mounted::pid)
    }

    /// Whether written data can be read back.
    pub(crate) fn keeps_files(&self) -> bool {
        self.server.as_ref().is_none_or(Server::keeps_files)
    }

    /// Makes everything durable, so that nothing is left to do in the background.
    pub(crate) fn settle(&self) -> Result<()> {
        let Some(mounted) = &self.mounted else { return super::access::sync(self) };
        if self.keeps_files() {
            super::access::sync(self)?;
        }
        mounted.settle()
    }

    pub(crate) fn end(self) -> Result<()> {
        let name = self.name;
        self.mounted
            .map_or(Ok(()), |mounted| mounted.umount().map(drop))
            .with_context(|| format!("cannot unmount {name}"))
    }
}
