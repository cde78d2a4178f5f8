//! Folders and the files in them, with errors that name the path.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The message for a file operation that failed.
pub(crate) fn cannot(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// The entries of a folder, sorted.
pub(crate) fn children(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| cannot(folder, &error))? {
        paths.push(entry.map_err(|error| cannot(folder, &error))?.path());
    }
    paths.sort();
    Ok(paths)
}

/// All files below a folder, sorted.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for path in children(folder)? {
        if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
    }
    found.sort();
    Ok(found)
}

/// Removes a folder that may not exist.
pub(crate) fn remove(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(cannot(folder, &error)),
        _ => Ok(()),
    }
}

/// Copies a file, and makes the folders above it.
pub(crate) fn copy_file(from: &Path, to: &Path) -> Result<(), String> {
    let above = to.parent().map_or(Ok(()), fs::create_dir_all);
    above.and_then(|()| fs::copy(from, to)).map(drop).map_err(|error| cannot(from, &error))
}
