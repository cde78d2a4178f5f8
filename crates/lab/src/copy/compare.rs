//! Compares two trees by ordinary system calls, without the engine.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

use super::plan::{Entry, Kind, Plan, mtime_of};
use crate::harness::threads::at_once;
use crate::interrupt;

/// Bytes compared at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// A difference, with its path below the two roots.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Debug)]
pub(crate) struct Difference {
    pub(crate) path: PathBuf,
    pub(crate) what: String,
}

/// Compares every entry of `plan` with `destination`: type, mode, time, link target, contents. Also finds entries at the
/// destination that should not exist. Counts bytes in `compared`. The result is ordered by path.
///
/// # Errors
/// A file or directory cannot be read, or an interrupt.
pub(crate) fn compare(
    plan: &Plan,
    destination: &Path,
    threads: usize,
    compared: &AtomicU64,
) -> Result<Vec<Difference>> {
    let found = Mutex::new(surplus(plan, destination)?);
    let note = |path: &Path, what: String| {
        let difference = Difference { path: path.to_path_buf(), what };
        found.lock().unwrap_or_else(PoisonError::into_inner).push(difference);
    };
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        let mut buffers = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
        while let Some(entry) = plan.entries.get(next.fetch_add(1, Ordering::Relaxed)) {
            interrupt::check()?;
            if let Some(what) = difference(plan, destination, entry, &mut buffers, compared)? {
                note(&entry.path, what);
            }
        }
        Ok(())
    };
    at_once(vec![(); threads], |_, ()| work()).into_iter().collect::<Result<()>>()?;
    let root = fs::metadata(destination).with_context(|| format!("cannot read {}", destination.display()))?;
    if let Some(what) = attribute_difference((plan.root_mode, plan.root_mtime.0), &root) {
        note(Path::new("."), what);
    }
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort();
    Ok(found)
}

/// Entries of the destination that are not in the plan.
fn surplus(plan: &Plan, destination: &Path) -> Result<Vec<Difference>> {
    let wanted: HashSet<&Path> = plan.entries.iter().map(|entry| entry.path.as_path()).collect();
    let there = Plan::of(destination)?;
    let surplus = there.entries.into_iter().filter(|entry| !wanted.contains(entry.path.as_path()));
    Ok(surplus.map(|entry| Difference { path: entry.path, what: "should not exist".into() }).collect())
}

fn difference(
    plan: &Plan,
    destination: &Path,
    entry: &Entry,
    buffers: &mut (Vec<u8>, Vec<u8>),
    compared: &AtomicU64,
) -> Result<Option<String>> {
    let path = destination.join(&entry.path);
    let metadata = match fs::symlink_metadata(&path) {
        Ok(metadata) => metadata,
        Err(error) => return Ok(Some(format!("cannot be read: {error}"))),
    };
    let is_right_type = match &entry.kind {
        Kind::Directory => metadata.is_dir(),
        Kind::File { .. } => metadata.is_file(),
        Kind::Symlink { .. } => metadata.is_symlink(),
    };
    if !is_right_type {
        return Ok(Some("has another type".into()));
    }
    if let Kind::Symlink { target } = &entry.kind {
        let found = fs::read_link(&path).with_context(|| format!("cannot read {}", path.display()))?;
        if found.as_os_str() != target {
            return Ok(Some(format!("points to {} instead of {}", found.display(), target.display())));
        }
    }
    if let Kind::File { .. } = entry.kind {
        let source = plan.source.join(&entry.path);
        let differing = content_difference(&source, &path, buffers, compared);
        if let Some(what) = differing.with_context(|| format!("cannot compare {}", path.display()))? {
            return Ok(Some(what));
        }
    }
    // All links have the same mode.
    let mode = if metadata.is_symlink() { metadata.mode() & 0o7777 } else { entry.mode };
    Ok(attribute_difference((mode, entry.mtime.0), &metadata))
}

fn attribute_difference((mode, mtime_ns): (u32, i64), found: &fs::Metadata) -> Option<String> {
    if found.mode() & 0o7777 != mode {
        return Some(format!("has mode {:o} instead of {mode:o}", found.mode() & 0o7777));
    }
    let off_by_ns = mtime_of(found).0 - mtime_ns;
    (off_by_ns != 0).then(|| format!("has a modification time off by {:.9} s", off_by_ns as f64 / 1e9))
}

fn content_difference(
    source: &Path,
    copy: &Path,
    (expected, found): &mut (Vec<u8>, Vec<u8>),
    compared: &AtomicU64,
) -> Result<Option<String>> {
    let (mut source, mut copy) = (File::open(source)?, File::open(copy)?);
    let mut offset_bytes = 0;
    loop {
        let (wanted, got) = (read_full(&mut source, expected)?, read_full(&mut copy, found)?);
        let same = expected[..wanted].iter().zip(&found[..got]).position(|(one, other)| one != other);
        if let Some(at) = same {
            return Ok(Some(format!("differs at byte {}", offset_bytes + at as u64)));
        }
        if wanted != got {
            let (is, should) = (offset_bytes + got as u64, offset_bytes + wanted as u64);
            return Ok(Some(format!("differs in length: {is} bytes instead of {should}, at least")));
        }
        if wanted == 0 {
            return Ok(None);
        }
        offset_bytes += wanted as u64;
        compared.fetch_add(wanted as u64, Ordering::Relaxed);
    }
}

/// Fills `buffer`, or as much of it as the file has.
fn read_full(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read(&mut buffer[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::scratch::Scratch;

    fn tree(scratch: &Scratch, name: &str) -> PathBuf {
        let root = scratch.subdirectory(name).unwrap();
        fs::write(root.join("same"), [7; 5000]).unwrap();
        fs::write(root.join("content"), [7; 5000]).unwrap();
        fs::write(root.join("length"), [7; 5000]).unwrap();
        fs::write(root.join("mode"), "").unwrap();
        fs::write(root.join("time"), "").unwrap();
        symlink("a", root.join("target")).unwrap();
        fs::write(root.join("type"), "").unwrap();
        root
    }

    #[test]
    fn every_kind_of_difference_is_found_and_described() {
        let scratch = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let (one, other) = (tree(&scratch, "one"), tree(&scratch, "other"));
        let plan = Plan::of(&one).unwrap();
        let copied = super::super::plain::copy(&plan, &scratch.subdirectory("copy").unwrap(), 2);
        copied.unwrap();
        let bytes = AtomicU64::new(0);
        let same = compare(&plan, &scratch.path().join("copy"), 2, &bytes).unwrap();
        assert!(same.iter().all(|difference| difference.path == Path::new(".")), "{same:?}");
        assert_eq!(bytes.load(Ordering::Relaxed), 15_000);

        let mut changed = vec![7; 5000];
        changed[4321] = 8;
        fs::write(other.join("content"), changed).unwrap();
        fs::write(other.join("length"), [7; 5001]).unwrap();
        fs::set_permissions(other.join("mode"), Permissions::from_mode(0o751)).unwrap();
        fs::remove_file(other.join("target")).unwrap();
        symlink("b", other.join("target")).unwrap();
        fs::remove_file(other.join("type")).unwrap();
        fs::create_dir(other.join("type")).unwrap();
        File::open(other.join("time")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        fs::write(other.join("zurplus"), "").unwrap();
        let found = compare(&plan, &other, 2, &bytes).unwrap();
        let of = |path: &str| {
            let all = found.iter().filter(|difference| difference.path == Path::new(path));
            all.map(|difference| difference.what.as_str()).collect::<Vec<_>>().join(", ")
        };
        for (path, what) in [
            ("content", "differs at byte 4321"),
            ("length", "differs in length: 5001 bytes instead of 5000"),
            ("mode", "has mode 751 instead of"),
            ("target", "points to b instead of a"),
            ("time", "has a modification time off by"),
            ("type", "has another type"),
            ("zurplus", "should not exist"),
        ] {
            assert!(of(path).contains(what), "{path}: {}", of(path));
        }
    }
}
