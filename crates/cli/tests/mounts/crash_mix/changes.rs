//! Files that are changed in the source between the death of a mount and the next one: both versions are kept.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::model::{Foreign, Found, SET_ID, State};
use super::{DIRS, World, find, make_anew};
use crate::bytes;

const HOUR: Duration = Duration::from_secs(3600);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

impl World {
    /// Changes up to two files in the source of a mount that may be dead. Another mount may also die there before and
    /// after.
    pub(super) fn change_behind(&mut self) {
        for _ in 0..self.random.below(3) {
            let nth = self.random.below(self.files.len() as u64) as usize;
            let name = self.files.keys().nth(nth).unwrap().clone();
            let path = self.source.join(&name);
            let Some((before, _)) = find(&path) else { continue };
            let ino = fs::metadata(&path).unwrap().ino();
            let theirs = self.change(&path);
            let was = self.files.remove(&name).unwrap();
            let state = match was {
                State::Foreign(foreign) => State::Foreign(Foreign { theirs, ..foreign }),
                was @ (State::Slotted(_) | State::Saved(_)) => {
                    State::Foreign(Foreign { theirs, before, ino, was: Box::new(was) })
                }
            };
            self.files.insert(name, state);
            self.figures.changed += 1;
        }
        if self.chance(5) {
            self.start_and_kill();
        }
    }

    /// The content of the file after the change.
    fn change(&mut self, path: &Path) -> Option<Vec<u8>> {
        let theirs = bytes(self.random.below(u64::MAX), self.random.below(100_000) as usize);
        let how = self.random.below(6);
        match how {
            0 => {
                let new = path.with_extension("theirs");
                fs::write(&new, &theirs).unwrap();
                fs::rename(&new, path).unwrap();
            }
            // Its inode number is likely to be that of the old file.
            1 => {
                fs::remove_file(path).unwrap();
                fs::write(path, &theirs).unwrap();
            }
            2 => fs::remove_file(path).unwrap(),
            3 => fs::write(path, &theirs).unwrap(),
            4 => OpenOptions::new().append(true).open(path).unwrap().write_all(&theirs).unwrap(),
            _ => {
                let file = OpenOptions::new().write(true).open(path).unwrap();
                file.set_len(file.metadata().unwrap().len() / 2).unwrap();
            }
        }
        if how >= 3 {
            // A change within seconds of the last write-back may go unnoticed; a restored backup has its old time.
            let now = SystemTime::now();
            let modified = if self.chance(2) { now + HOUR } else { now - YEAR };
            File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
        }
        find(path).map(|(bytes, _)| bytes)
    }

    /// After a mount, checks that everything acknowledged of changed files is somewhere. Then creates these files anew;
    /// the contents of the others become the expected ones.
    pub(super) fn settle_changes(&mut self, shown: &dyn Fn(&str) -> Option<PathBuf>) {
        let kept = self.kept_beside();
        for (name, state) in &mut self.files {
            let path = shown(name).unwrap_or_else(|| self.source.join(name));
            let State::Foreign(foreign) = state else {
                state.settle(find(&path));
                continue;
            };
            let beginning = format!("slackwater-conflict-{}-", foreign.ino);
            let is_of_it = |path: &&PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&beginning);
            let beside: Vec<_> = kept.iter().filter(is_of_it).map(|path| find(path).unwrap()).collect();
            assert!(beside.iter().all(|(_, mode)| mode & SET_ID == 0), "{name}: kept beside with set-user-id");
            self.figures.kept_beside += beside.len() as u64;
            let in_the_source = foreign.check_kept(None);
            let is_beside = |(bytes, _): &Found| foreign.check_kept(Some(bytes)).is_ok();
            if let Err(wrong) = in_the_source
                && !beside.iter().any(is_beside)
            {
                panic!("{name}, changed by others, beside it {}: {wrong}", beside.len());
            }
            make_anew(&path);
            *state = match name.contains("saved-") {
                true => State::saved(0),
                false => State::slotted(0, super::FOR_ALL),
            };
        }
        self.seen.extend(kept);
    }

    /// Rescue files that were created since the last check.
    fn kept_beside(&self) -> Vec<PathBuf> {
        let entries = DIRS.iter().flat_map(|dir| fs::read_dir(self.source.join(dir)).unwrap());
        let paths = entries.map(|entry| entry.unwrap().path());
        let is_kept = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("slackwater-conflict-");
        paths.filter(|path| is_kept(path) && !self.seen.contains(path)).collect()
    }
}
