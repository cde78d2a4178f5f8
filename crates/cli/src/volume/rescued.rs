//! Messages about rescue files: data that could not be written to its own file.

use std::path::{Path, PathBuf};

use slackwater::{Rescued, RescuedFrom, SuperBlock};
use slackwater_control::errln;
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::protocol::Status;
use slackwater_host::Printable as _;
use slackwater_host::size;

/// Number of files that a message names.
const NAMED_MAX: usize = 10;

/// Prints where each rescued piece of data is.
pub(crate) fn print_all(rescued: &[Rescued], source: &Path) {
    rescued.iter().for_each(|rescued| errln!("{}", line(rescued, source)));
}

/// Files that other programs removed in the source while they were dirty, and that no file there has the data of yet.
pub(crate) struct Removed {
    pub(crate) bytes: u64,
    pub(crate) text: String,
    files: u64,
    paths: Vec<PathBuf>,
    source: String,
}

/// Where the first of the files of a volume were that other programs removed.
pub(crate) fn removed_paths(volume: &SuperBlock) -> Vec<PathBuf> {
    volume.removed_paths(NAMED_MAX).into_iter().map(|(_, path)| path).collect()
}

impl Removed {
    /// The removed files of a mount, if there are any.
    pub(crate) fn of(status: &Status) -> Option<Self> {
        let new = || {
            let (files, bytes, paths) = (status.removed_files, status.removed_bytes, status.removed_paths.clone());
            Self::new(files, bytes, paths, &status.source)
        };
        (status.removed_files > 0).then(new)
    }

    pub(crate) fn new(files: u64, bytes: u64, paths: Vec<PathBuf>, source: &Path) -> Self {
        let source = source.printable().to_string();
        let text = format!("{} with {} had been removed in {source}", count(files), size::text(bytes));
        Self { bytes, text, files, paths, source }
    }

    /// Lines about them for a message: what they are, and what to do.
    pub(crate) fn advice(&self) -> Vec<String> {
        let mut lines = vec![self.text.clone()];
        lines.extend(self.paths.iter().map(|path| format!("  {}", path.printable())));
        if let more @ 1.. = self.files.saturating_sub(self.paths.len() as u64) {
            lines.push(format!("  and {more} more"));
        }
        lines.push(format!("the next sync or unmount copies them to slackwater-conflict-* files in {}", self.source));
        lines.push(
            "if that directory itself was removed, they have no place left: umount --discard lists them, and drops them"
                .to_owned(),
        );
        lines
    }
}

fn count(files: u64) -> String {
    if files == 1 { "1 file".to_owned() } else { format!("{files} files") }
}

/// The outcome of a sync or an unmount, as `done` says, that rescued data.
///
/// # Errors
/// `Rescued`, if there are rescue files.
pub(crate) fn after(done: &str, rescued: &[Rescued], source: &Path) -> Result<(), Failure> {
    if rescued.is_empty() {
        return Ok(());
    }
    let files = count(rescued.len() as u64);
    let what = format!("{done}, but {files} with unwritten data had been removed in {}", source.printable());
    let failure = Failure::new(Reason::Rescued, what);
    let named = rescued.iter().take(NAMED_MAX).fold(failure, |failure, rescued| failure.advise(line(rescued, source)));
    Err(match rescued.len().saturating_sub(NAMED_MAX) {
        0 => named,
        more => named.advise(format!("and {more} more: slackwater-conflict-* in {}", source.printable())),
    })
}

fn line(rescued: &Rescued, source: &Path) -> String {
    let bytes = size::text(rescued.bytes);
    let owner = match &rescued.path {
        Some(path) => path.printable().to_string(),
        None => format!("inode {} of {}", rescued.id.ino, source.printable()),
    };
    let file = source.join(&rescued.name);
    let what = match rescued.from {
        RescuedFrom::Removed => "which was removed or replaced in the source",
        RescuedFrom::Changed | _ => "which was changed in the source",
    };
    format!("{bytes} belonged to {owner}, {what}: the source stays as it is, the data is in {}.", file.printable())
}
