//! Messages about rescue files: data that could not be written to its own file.

use std::path::Path;

use slackwater::{Rescued, RescuedFrom};
use slackwater_arena::size;
use slackwater_fuse::Printable as _;

use crate::exit::{Failure, Reason};
use crate::output::terminal::errln;

/// Number of files that a message names.
const NAMED_MAX: usize = 10;

/// Prints where each rescued piece of data is.
pub(crate) fn print_all(rescued: &[Rescued], source: &Path) {
    rescued.iter().for_each(|rescued| errln!("{}", line(rescued, source)));
}

/// The outcome of an unmount that rescued data.
///
/// # Errors
/// `Rescued`, if there are rescue files.
pub(crate) fn after_unmount(rescued: &[Rescued], source: &Path) -> Result<(), Failure> {
    if rescued.is_empty() {
        return Ok(());
    }
    let files = if rescued.len() == 1 { "1 file".to_owned() } else { format!("{} files", rescued.len()) };
    let what = format!("unmounted, but {files} with unwritten data had been removed in {}", source.printable());
    let failure = Failure::new(Reason::Rescued, what);
    let named = rescued.iter().take(NAMED_MAX).fold(failure, |failure, rescued| failure.advise(line(rescued, source)));
    Err(match rescued.len().saturating_sub(NAMED_MAX) {
        0 => named,
        more => named.advise(format!("and {more} more: slackwater-conflict-* in {}", source.printable())),
    })
}

fn line(rescued: &Rescued, source: &Path) -> String {
    let (bytes, number) = (size::text(rescued.bytes), rescued.id.ino);
    let file = source.join(&rescued.name);
    let what = match rescued.from {
        RescuedFrom::Removed => "which was removed or replaced in the source",
        RescuedFrom::Changed | _ => "which was changed in the source",
    };
    format!(
        "{bytes} belonged to inode {number} of {}, {what}: the source stays as it is, the data is in {}.",
        source.printable(),
        file.printable()
    )
}
