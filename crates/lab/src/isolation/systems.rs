//! The cgroups of the writers, and the directories with the files that they overwrite.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{Advice, fadvise};

use super::Amounts;
use super::client::VICTIM_FILE_BYTES;
use crate::cgroups::{Cgroup, Hierarchy};
use crate::fuse::{MERGERFS, OURS, RCLONE, Server, Subject};
use crate::harness::rounds;
use crate::interrupt;
use crate::scratch::Scratch;

/// The files of the victims, the hogs and the direct writers.
pub(super) const SYNCED: &str = "synced";
pub(super) const WRITTEN: &str = "written";
pub(super) const HOGS: [&str; 2] = ["hog-0", "hog-1"];
pub(super) const DIRECT: [&str; 2] = ["direct-0", "direct-1"];

/// A top-level cgroup for each process: one below another would be no tenant of its own without a limit.
pub(super) struct Tenants {
    pub(super) syncing: Cgroup,
    pub(super) writing: Cgroup,
    pub(super) hogs: [Cgroup; 2],
    pub(super) limited: Cgroup,
}

impl Tenants {
    pub(super) fn new() -> Result<Self> {
        let hierarchy = Hierarchy::of_tenants()?;
        let (hogs, limited) = ([hierarchy.top("hog-a")?, hierarchy.top("hog-b")?], hierarchy.top("limited")?);
        Ok(Self { syncing: hierarchy.top("syncing")?, writing: hierarchy.top("writing")?, hogs, limited })
    }

    /// Whether the kernel's cgroup writeback applies to them.
    pub(super) fn about(&self) -> &str {
        self.limited.about()
    }
}

/// The disk, this project's mount, and another FUSE file system if one is installed.
pub(super) struct Systems(Vec<Subject>);

impl Systems {
    /// Mounts them in `home` and makes all files.
    pub(super) fn new(home: &Scratch, amounts: Amounts) -> Result<Self> {
        let servers = Server::keepers()?;
        let named = |name| servers.iter().find(|server: &&Server| server.name == name);
        let ours = named(OURS).context("there is no mount of ours")?;
        let mut chosen = vec![ours.with_options(&["--tenant-by", "cgroup"])];
        // With the kernel's writeback cache.
        let options = "cache.files=auto-full,cache.writeback=true,category.create=ff,minfreespace=0,fsname=lab";
        let mergerfs = named(MERGERFS).map(|server| server.with_options(&["-o", options]));
        chosen.extend(mergerfs.or_else(|| named(RCLONE).cloned()));

        let disk = home.subdirectory("disk")?;
        let bar = rounds::bar("files", 2 + chosen.len() as u64);
        make_files(&disk, &HOGS[..1], amounts)?;
        bar.inc(1);
        for name in DIRECT {
            make_file(&disk.join(name), amounts.direct_bytes)?;
        }
        bar.inc(1);
        let mut subjects = vec![Subject::disk(disk)];
        for server in chosen {
            let home = home.subdirectory(server.name)?;
            let source = home.join("source");
            fs::create_dir(&source).with_context(|| format!("cannot create {}", source.display()))?;
            make_files(&source, if server.name == OURS { &HOGS } else { &HOGS[..1] }, amounts)?;
            subjects.push(Subject::mounted(&server, home, amounts.cache_bytes)?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(Self(subjects))
    }

    pub(super) fn all(&self) -> &[Subject] {
        &self.0
    }

    pub(super) fn named(&self, name: &str) -> Result<&Subject> {
        self.0.iter().find(|subject| subject.name() == name).with_context(|| format!("{name} is not mounted"))
    }

    /// Whether no other FUSE file system is installed.
    pub(super) fn lacks_peer(&self) -> bool {
        self.0.len() < 3
    }

    pub(super) fn end(self) -> Result<()> {
        self.0.into_iter().try_for_each(Subject::end)
    }
}

fn make_files(folder: &Path, hogs: &[&str], amounts: Amounts) -> Result<()> {
    for name in hogs {
        make_file(&folder.join(name), amounts.hog_bytes)?;
    }
    [SYNCED, WRITTEN].into_iter().try_for_each(|name| make_file(&folder.join(name), VICTIM_FILE_BYTES))
}

/// A file whose blocks are all allocated, and which is not in the kernel's cache.
pub(crate) fn make_file(path: &Path, bytes: u64) -> Result<()> {
    let make = || -> Result<()> {
        let (mut file, block) = (File::create_new(path)?, vec![1; 1 << 20]);
        for _ in 0..bytes / block.len() as u64 {
            interrupt::check()?;
            file.write_all(&block)?;
        }
        file.sync_all()?;
        Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
    };
    make().with_context(|| format!("cannot create {}", path.display()))
}
