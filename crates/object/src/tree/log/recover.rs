//! The logs that a dead process left.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::clock;
use crate::format::{Input, SegmentId};
use crate::tree::counters::Counters;
use crate::tree::log::{HEADER_BYTES, Header, Log, MAGIC, prefix_of, record};
use crate::tree::transaction::Transaction;

/// The changes that the logs of a volume hold beyond its stored state.
#[derive(Default)]
pub(in crate::tree) struct Recovered {
    /// In the order of their commits: at most one that was committing, and the one that was running.
    pub(in crate::tree) replayed: Vec<Replayed>,
    /// Logs that do not continue the stored state.
    pub(in crate::tree) foreign: Vec<PathBuf>,
}

/// A transaction from a log.
pub(in crate::tree) struct Replayed {
    pub(in crate::tree) transaction: Transaction,
    /// The transaction's log, to go on with.
    pub(in crate::tree) log: Log,
}

/// Reads the logs of a volume in `folder`, and removes those that are in the store already.
///
/// # Errors
/// The folder or a file cannot be read.
///
/// # Blocking
/// On the file system.
pub(in crate::tree) fn recover(folder: &Path, volume: [u8; 16], stored: &Counters) -> io::Result<Recovered> {
    let mut recovered = Recovered::default();
    let mut found = Vec::new();
    for path in logs(folder, volume)? {
        let bytes = fs::read(&path)?;
        match header(&bytes) {
            Some(header) => found.push((header, path, bytes)),
            // The process died while it began the log.
            None if bytes.len() <= HEADER_BYTES => fs::remove_file(&path)?,
            None => recovered.foreign.push(path),
        }
    }
    found.sort_by_key(|(header, ..)| header.commit);
    let mut reached = *stored;
    for (header, path, bytes) in found {
        if header.commit.1 == stored.writer_epoch && header.commit.0 <= stored.commit {
            fs::remove_file(&path)?;
        } else if header.base == (reached.commit, reached.writer_epoch) {
            let mut transaction = Transaction::new(&reached, header.commit.1, header.pack);
            let mut rest = &bytes[HEADER_BYTES..];
            while let Some((effects, after)) = record::decode(rest) {
                transaction.apply(effects, clock::monotonic_ms());
                rest = after;
            }
            if transaction.is_empty() {
                fs::remove_file(&path)?;
                continue;
            }
            reached = transaction.counters;
            let log = Log::resume(folder, &header, (bytes.len() - rest.len()) as u64)?;
            recovered.replayed.push(Replayed { transaction, log });
        } else {
            recovered.foreign.push(path);
        }
    }
    Ok(recovered)
}

/// Whether a volume has logs with changes in `folder`. One that cannot be looked at counts.
pub(crate) fn has_changes(folder: &Path, volume: [u8; 16]) -> bool {
    let is_longer = |path: PathBuf| fs::metadata(path).map_or(true, |file| file.len() > HEADER_BYTES as u64);
    logs(folder, volume).map_or(true, |logs| logs.into_iter().any(is_longer))
}

/// The logs of a volume.
fn logs(folder: &Path, volume: [u8; 16]) -> io::Result<Vec<PathBuf>> {
    let prefix = prefix_of(&volume);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(&prefix) && name.ends_with(".log") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Renames a log so that it is kept and not looked at again.
pub(super) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = path.with_extension(format!("{}.set-aside", clock::unix_ms()));
    fs::rename(path, &aside)?;
    Ok(aside)
}

fn header(bytes: &[u8]) -> Option<Header> {
    let (header, _) = bytes.split_at_checked(HEADER_BYTES)?;
    let (body, crc) = header.split_at(HEADER_BYTES - 4);
    let mut input = Input(body);
    let is_intact = Input(crc).u32().ok()? == crc32c::crc32c(body);
    if !is_intact || input.array().ok()? != MAGIC {
        return None;
    }
    let volume = input.array().ok()?;
    let base = (input.u64().ok()?, input.u64().ok()?);
    let commit = (input.u64().ok()?, input.u64().ok()?);
    Some(Header { volume, base, commit, pack: SegmentId::from_bytes(input.array().ok()?) })
}
