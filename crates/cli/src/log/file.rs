//! The log file of a mount in the background, which is bounded in size.
//!
//! When it exceeds [`MOST_BYTES`], its older half is dropped, at a line boundary. The file stays the same inode, so
//! every descriptor that is open for appending continues at its new end.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Maximum size of a log.
pub(crate) const MOST_BYTES: u64 = 8 << 20;

/// Opens the log at `path` for appending, accessible to this user only.
///
/// # Errors
/// The file cannot be created.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)
}

/// Drops the older half of `file` if it exceeds `most_bytes`.
///
/// # Errors
/// The file cannot be read or written.
pub(super) fn keep_below(mut file: &File, most_bytes: u64) -> io::Result<()> {
    let len = file.metadata()?.len();
    if len <= most_bytes {
        return Ok(());
    }
    let mut kept = vec![0; (most_bytes / 2) as usize];
    file.read_exact_at(&mut kept, len - most_bytes / 2)?;
    let from = kept.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    file.set_len(0)?;
    file.write_all(b"... earlier lines were dropped: the log was full\n")?;
    file.write_all(&kept[from..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_keeps_its_newer_half() {
        let path = std::env::temp_dir().join(format!("slackwater-log-{}", std::process::id()));
        let mut log = open(&path).unwrap();
        for nth in 0..10_000 {
            writeln!(log, "line {nth}").unwrap();
            keep_below(&log, 1000).unwrap();
            assert!(log.metadata().unwrap().len() <= 1000);
        }
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut lines = text.lines();
        assert!(lines.next().unwrap().starts_with("... earlier"));
        let numbers: Vec<u32> = lines.map(|line| line.strip_prefix("line ").unwrap().parse().unwrap()).collect();
        assert_eq!(numbers.last(), Some(&9999));
        assert!(numbers.len() > 30 && numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
    }
}
