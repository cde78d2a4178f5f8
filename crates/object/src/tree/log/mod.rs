//! The local log: what the running and the committing transaction are made of, in files that survive the process.
//!
//! Each transaction has one file, beside the arena and like it on tmpfs, so nothing is synced. A record is what one
//! call did; it is written with one system call before the call is answered. The file goes when its transaction is in
//! the store.
//!
//! # Invariants
//! L1. A log names the state on which it builds, as the number and the writer of the last commit, and the state that it
//!     makes. It is replayed only on that very state. So if another writer has committed since, it is set aside.
//! L2. Records are valid up to the first that is short or has a wrong checksum; there the process died in the middle of
//!     a write, and the call was not answered.
//! L3. A log is replayed into a transaction with its own number and writer, so that a second crash finds it unchanged.

mod record;
mod recover;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bytes::{BufMut, BytesMut};
use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::Arc;

use crate::format::SegmentId;
use crate::tree::counters::Counters;
use crate::tree::state::State;
use crate::tree::view::Effects;
pub(crate) use recover::has_changes;
use recover::{Recovered, Replayed, recover};

/// The last byte is [`FORMAT`].
const MAGIC: [u8; 8] = *b"SWOBJLG1";
/// The format of logs.
pub(crate) const FORMAT: u32 = (MAGIC[7] - b'0') as u32;
const HEADER_BYTES: usize = 8 + 16 + 4 * 8 + 16 + 4;
/// Memory for the record of a call that is kept for the next.
const BUFFER_BYTES: usize = 256 << 10;

/// The volume and the commit to which a log belongs (L1).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct Header {
    pub(super) volume: [u8; 16],
    /// The commit on which it builds, and its writer.
    pub(super) base: (u64, u64),
    /// The commit that will store it, and its writer.
    pub(super) commit: (u64, u64),
    /// The segment of its small writes.
    pub(super) pack: SegmentId,
}

/// Where the logs of a volume are.
#[derive(Clone, Debug)]
pub(crate) struct LogPlace {
    pub(crate) folder: PathBuf,
    pub(crate) volume: [u8; 16],
    /// Refuse logs that do not continue the stored state, instead of setting them aside.
    pub(crate) must_continue: bool,
}

/// Why logs were not replayed.
pub(super) enum ReplayError {
    Io(io::Error),
    /// Another writer has committed since ([`LogPlace::must_continue`]). Nothing has changed.
    Overtaken,
}

impl From<io::Error> for ReplayError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The log of the running transaction.
pub(super) struct Log {
    folder: PathBuf,
    volume: [u8; 16],
    file: File,
    /// Length of the valid records.
    len: u64,
    buffer: BytesMut,
}

impl State {
    /// Makes what dead processes left the committing and the running transaction, and begins a log if there is none. Returns
    /// the logs that do not continue the stored state, under their new names.
    ///
    /// # Errors
    /// The folder or a file in it cannot be used, or a log must continue the stored state and does not.
    pub(super) fn replay(&mut self, place: &LogPlace, stored: &Counters) -> Result<Vec<PathBuf>, ReplayError> {
        let LogPlace { folder, volume, must_continue } = place;
        let Recovered { mut replayed, foreign } = recover(folder, *volume, stored)?;
        if *must_continue && !foreign.is_empty() {
            return Err(ReplayError::Overtaken);
        }
        let set_aside = foreign.iter().map(|path| recover::set_aside(path)).collect::<io::Result<_>>()?;
        if let Some(Replayed { transaction, log }) = replayed.pop() {
            tracing::info!(calls = transaction.calls, "changes of a process that ended are replayed from its log");
            self.running = transaction;
            self.log = Some(log);
            self.committing = replayed.pop().map(|earlier| Arc::new(earlier.transaction));
        } else {
            let Counters { commit, writer_epoch, .. } = self.running.counters;
            let base = (stored.commit, stored.writer_epoch);
            let header =
                Header { volume: *volume, base, commit: (commit, writer_epoch), pack: self.running.pack.segment };
            self.log = Some(Log::create(folder, &header)?);
        }
        if replayed.is_empty() {
            Ok(set_aside)
        } else {
            Err(io::Error::other("more transactions than one process has").into())
        }
    }
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.put_slice(&MAGIC);
        out.put_slice(&self.volume);
        for number in [self.base.0, self.base.1, self.commit.0, self.commit.1] {
            out.put_u64_le(number);
        }
        out.put_slice(&self.pack.to_bytes());
        out.put_u32_le(crc32c::crc32c(&out));
        out
    }
}

impl Log {
    /// Begins the log of a transaction.
    pub(super) fn create(folder: &Path, header: &Header) -> io::Result<Self> {
        let path = path_of(folder, &header.volume, header.commit.0);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all_at(&header.encode(), 0)?;
        let (folder, volume) = (folder.to_owned(), header.volume);
        Ok(Self { folder, volume, file, len: HEADER_BYTES as u64, buffer: BytesMut::new() })
    }

    /// Continues a log that was replayed, behind its valid records.
    fn resume(folder: &Path, header: &Header, len: u64) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).open(path_of(folder, &header.volume, header.commit.0))?;
        file.set_len(len)?;
        let (folder, volume) = (folder.to_owned(), header.volume);
        Ok(Self { folder, volume, file, len, buffer: BytesMut::new() })
    }

    /// The length of the file, with the header.
    pub(super) fn len_bytes(&self) -> u64 {
        self.len
    }

    /// Writes what a call did.
    ///
    /// # Errors
    /// The file could not be written. Nothing counts of what may have been written.
    pub(super) fn append(&mut self, effects: &Effects) -> Result<(), BackendError> {
        self.buffer.clear();
        record::encode(effects, &mut self.buffer);
        if let Err(error) = self.file.write_all_at(&self.buffer, self.len) {
            // A part of it ends at a wrong checksum (L2), or is overwritten by the next record.
            let _ = self.file.set_len(self.len);
            return Err(failed(&error));
        }
        self.len += self.buffer.len() as u64;
        if self.buffer.capacity() > BUFFER_BYTES {
            self.buffer = BytesMut::new();
        }
        Ok(())
    }

    /// Begins the log of the next transaction. That of this one stays until its commit is durable.
    ///
    /// # Errors
    /// The file could not be made; this one goes on.
    pub(super) fn next(&mut self, base: &Counters, commit: (u64, u64), pack: SegmentId) -> Result<(), BackendError> {
        let header = Header { volume: self.volume, base: (base.commit, base.writer_epoch), commit, pack };
        *self = Self::create(&self.folder, &header).map_err(|error| {
            // An attempt that failed half-way.
            let _ = std::fs::remove_file(path_of(&self.folder, &self.volume, commit.0));
            failed(&error)
        })?;
        Ok(())
    }

    /// Where the log of a transaction is.
    pub(super) fn path_of(&self, commit: u64) -> PathBuf {
        path_of(&self.folder, &self.volume, commit)
    }
}

fn path_of(folder: &Path, volume: &[u8; 16], commit: u64) -> PathBuf {
    folder.join(format!("{}{commit:020}.log", prefix_of(volume)))
}

fn prefix_of(volume: &[u8; 16]) -> String {
    format!("object-{:032x}-", u128::from_be_bytes(*volume))
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the library has more kinds, and adds some")]
fn failed(error: &io::Error) -> BackendError {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    };
    BackendError::new(kind, format!("the local log cannot be written: {error}"))
}

#[cfg(test)]
mod tests;
