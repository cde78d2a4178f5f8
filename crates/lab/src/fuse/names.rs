//! Creating empty files, reading their attributes and removing them, one after another.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use super::subject::Subject;
use crate::harness::placement::Placement;
use crate::harness::{Options, Series, axis};

pub(crate) const CREATE: &str = "create per s";
pub(crate) const STAT: &str = "stat per s";
pub(crate) const STAT_OF_SERVER: &str = "stat, forced, per s";
pub(crate) const UNLINK: &str = "unlink per s";
pub(crate) const RATES: [&str; 4] = [CREATE, STAT, STAT_OF_SERVER, UNLINK];

/// Files of a turn.
pub(crate) fn files(options: &Options) -> usize {
    options.pick(1000, 400)
}

axis! {
    /// The operation on the files. Each phase runs for the files of all rounds before the next one begins. One reason is ext4
    /// without a journal: when it creates a file, it looks at every inode that any process has removed in the last minute.
    pub(crate) enum Phase {
        /// Each name is new, so it is in no cache.
        Create = "create",
        /// Reads the attributes of each file twice: once as the kernel may cache them, and once forced, so that the server
        /// has to answer.
        Stat = "stat",
        Unlink = "unlink",
    }
}

impl Phase {
    /// One turn.
    pub(crate) fn measure(self, subject: &Subject, files: usize, round: u32, series: &mut Series) -> Result<()> {
        let directory = subject.path().join(format!("names-{round}"));
        let paths: Vec<PathBuf> = (0..files).map(|number| directory.join(format!("file-{number}"))).collect();
        let _placed = Placement::Together.place(subject.pid())?;
        let mut time = |row, work: &dyn Fn(&Path) -> io::Result<()>| -> Result<()> {
            let start = Instant::now();
            paths
                .iter()
                .try_for_each(|path| work(path))
                .with_context(|| format!("{row} in {}", directory.display()))?;
            series.add(row, subject.name(), files as f64 / start.elapsed().as_secs_f64());
            Ok(())
        };
        let look = |path: &Path| fs::metadata(path).map(drop);
        match self {
            Self::Create => {
                fs::create_dir(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
                time(CREATE, &|path| File::create_new(path).map(drop))
            }
            Self::Stat => {
                paths.iter().try_for_each(|path| look(path)).context("cannot read the attributes of a new file")?;
                time(STAT, &look)?;
                let force = |path: &Path| statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
                time(STAT_OF_SERVER, &|path| Ok(force(path).map(drop)?))
            }
            Self::Unlink => {
                paths.iter().try_for_each(|path| look(path)).context("cannot read the attributes of a new file")?;
                time(UNLINK, &|path| fs::remove_file(path))?;
                fs::remove_dir(&directory).with_context(|| format!("cannot remove {}", directory.display()))
            }
        }
    }
}
