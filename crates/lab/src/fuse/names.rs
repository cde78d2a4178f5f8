//! Making, looking at and removing empty files, one after another.

use std::fs::{self, File};
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

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

/// One turn. Each name is new, so that nobody knows it from before. Each file is looked at twice: by attributes that the
/// kernel may keep for as long as the file system says, and by such as the server is asked for each time.
pub(crate) fn measure(subject: &Subject, files: usize, round: u32, series: &mut Series) -> Result<()> {
    let directory = subject.path().join(format!("names-{round}"));
    fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let paths: Vec<_> = (0..files).map(|number| directory.join(format!("file-{number}"))).collect();
    let mut time = |row, work: &dyn Fn(&std::path::Path) -> std::io::Result<()>| -> Result<()> {
        let start = Instant::now();
        paths.iter().try_for_each(|path| work(path)).with_context(|| format!("{row} in {}", directory.display()))?;
        series.add(row, subject.name(), files as f64 / start.elapsed().as_secs_f64());
        Ok(())
    };
    time(CREATE, &|path| File::create_new(path).map(drop))?;
    time(STAT, &|path| fs::metadata(path).map(drop))?;
    time(STAT_OF_SERVER, &|path| Ok(statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).map(drop)?))?;
    time(UNLINK, &|path| fs::remove_file(path))?;
    fs::remove_dir(&directory).with_context(|| format!("cannot remove {}", directory.display()))
}
