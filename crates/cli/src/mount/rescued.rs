//! What the recovery kept apart, said to people.

use std::path::Path;

use slackwater::{Rescued, RescuedFrom};
use slackwater_fuse::Printable as _;
use slackwater_size as size;

use crate::terminal::say;

/// Says where each piece of data is.
pub(crate) fn say_all(rescued: &[Rescued], source: &Path) {
    rescued.iter().for_each(|rescued| say!("{}", line(rescued, source)));
}

fn line(rescued: &Rescued, source: &Path) -> String {
    let (bytes, number) = (size::text(rescued.bytes), rescued.id.ino);
    let file = source.join(&rescued.name);
    let what = match rescued.from {
        RescuedFrom::Removed => "which somebody removed or replaced",
        RescuedFrom::Changed | _ => "which somebody changed",
    };
    format!(
        "{bytes} belonged to inode {number} of {}, {what} after the crash: the source stays as it is, the data is in {}.",
        source.printable(),
        file.printable()
    )
}
