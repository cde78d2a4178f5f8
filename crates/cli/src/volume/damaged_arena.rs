//! Damaged records of an arena: which ones they are, and the file that keeps their bytes.
//!
//! The records are set aside and the rest is used. The file gets a second name before anything else happens, a hard
//! link. So it is still there after the first name is removed, at the end of any process. It needs no space for that,
//! and the frames of the damaged records are never reused.
//!
//! # Invariants
//! D1. An arena is used only after its second name exists. Only if a successor takes a mount over, where programs wait,
//!     a failure is logged instead.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use slackwater_arena::Survivors;
use slackwater_control::errln;
use slackwater_control::output::shell;
use slackwater_host::Printable as _;
use slackwater_host::size;

/// Number of records that a message names.
const NAMED_MAX: usize = 100;

/// The names that a damaged arena can have beside its own, in order.
fn names(path: &Path) -> impl Iterator<Item = PathBuf> {
    let name = |end: String| {
        let mut name: OsString = path.into();
        name.push(end);
        PathBuf::from(name)
    };
    std::iter::once(name(".damaged".to_owned())).chain((1_u32..).map(move |nth| name(format!(".damaged.{nth}"))))
}

/// Gives the file a second name, unless an earlier process has done so.
///
/// # Errors
/// That of the system.
pub(super) fn keep(path: &Path) -> io::Result<PathBuf> {
    for name in names(path) {
        match fs::hard_link(path, &name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !is_same(path, &name)? => {}
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => return Ok(name),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// The second name of a file that has one.
pub(super) fn kept_as(path: &Path) -> Option<PathBuf> {
    if fs::symlink_metadata(path).ok()?.nlink() < 2 {
        return None;
    }
    let mut taken = names(path).take_while(|name| fs::symlink_metadata(name).is_ok());
    taken.find(|name| is_same(path, name).unwrap_or(false))
}

fn is_same(path: &Path, other: &Path) -> io::Result<bool> {
    let [path, other] = [fs::symlink_metadata(path)?, fs::symlink_metadata(other)?];
    Ok((path.dev(), path.ino()) == (other.dev(), other.ino()))
}

/// Names the damaged records on standard error.
pub(super) fn report(path: &Path, kept: &Path, survivors: &Survivors) {
    errln!("The arena {} has damaged records. Everything else in it is used.", path.printable());
    lines(survivors).iter().for_each(|line| errln!("  {line}."));
    errln!("  The file stays as {} with all its memory. To remove it: rm {}", kept.printable(), shell::word(kept));
}

/// As [`report`], in the log.
pub(super) fn log(path: &Path, kept: Option<&Path>, survivors: &Survivors) {
    let (arena, damages) = (path.printable(), lines(survivors).join("; "));
    match kept {
        Some(kept) => tracing::error!(
            %arena, kept = %kept.printable(), damages,
            "the arena has damaged records; everything else in it is used"
        ),
        None => tracing::error!(
            %arena, damages,
            "the arena has damaged records; everything else in it is used. Copy the file before the mount ends"
        ),
    }
}

fn lines(survivors: &Survivors) -> Vec<String> {
    let damages = &survivors.damages;
    let mut lines: Vec<_> = damages
        .iter()
        .take(NAMED_MAX)
        .map(|damage| match (damage.inodes, damage.frames) {
            (0, 0) => damage.to_string(),
            (0, frames) => format!("{damage}; {} of its file", pages(frames)),
            (inodes, frames) => format!("{damage}; {inodes} of its files with {}", pages(frames)),
        })
        .collect();
    if let more @ 1.. = damages.len().saturating_sub(NAMED_MAX) {
        lines.push(format!("and {more} more records"));
    }
    match survivors.frames_set_aside.len() as u64 {
        0 => {}
        frames => lines.push(format!("in total, {} cannot be written back", pages(frames))),
    }
    lines
}

fn pages(count: u64) -> String {
    size::text(count * slackwater_arena::FRAME_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_damaged_file_keeps_a_name_of_its_own() {
        let dir = std::env::temp_dir().join(format!("slackwater-kept-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let path = dir.join("a.arena");
        for (nth, name) in ["a.arena.damaged", "a.arena.damaged.1", "a.arena.damaged.2"].into_iter().enumerate() {
            fs::write(&path, [nth as u8]).unwrap();
            assert_eq!(kept_as(&path), None);
            let kept = [(); 2].map(|()| keep(&path).unwrap());
            assert_eq!(kept, [(); 2].map(|()| dir.join(name)), "the second process finds the name");
            assert_eq!(kept_as(&path).as_ref(), Some(&kept[0]));
            fs::remove_file(&path).unwrap();
            assert_eq!(fs::read(&kept[0]).unwrap(), [nth as u8]);
        }
        assert_eq!(keep(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::remove_dir_all(dir).unwrap();
    }
}
