//! Making, looking at and removing empty files, one after another.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use super::placement::Placement;
use super::subject::Subject;
use crate::options::Options;
use crate::series::Series;

pub(crate) const CREATE: &str = "create per s";
pub(crate) const STAT: &str = "stat per s";
pub(crate) const STAT_OF_SERVER: &str = "stat, forced, per s";
pub(crate) const UNLINK: &str = "unlink per s";

/// Files of a turn.
pub(crate) fn files(options: &Options) -> usize {
    options.pick(1000, 400)
}

/// What is done to the files of all turns before the next is begun. Among others because ext4 without a journal looks
/// at every inode that was removed in the last minute when it makes a file, whoever asks.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Phase {
    /// Each name is new, so that nobody knows it from before.
    Create,
    /// Each file is looked at twice: by attributes that the kernel may keep for as long as the file system says, and by
    /// such as the server is asked for each time.
    Stat,
    Unlink,
}

impl Phase {
    pub(crate) const ALL: [Self; 3] = [Self::Create, Self::Stat, Self::Unlink];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Stat => "stat",
            Self::Unlink => "unlink",
        }
    }

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
                fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
                time(CREATE, &|path| File::create_new(path).map(drop))
            }
            Self::Stat => {
                paths.iter().try_for_each(|path| look(path)).context("cannot look at what was made")?;
                time(STAT, &look)?;
                let force = |path: &Path| statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
                time(STAT_OF_SERVER, &|path| Ok(force(path).map(drop)?))
            }
            Self::Unlink => {
                paths.iter().try_for_each(|path| look(path)).context("cannot look at what was made")?;
                time(UNLINK, &|path| fs::remove_file(path))?;
                fs::remove_dir(&directory).with_context(|| format!("cannot remove {}", directory.display()))
            }
        }
    }
}
