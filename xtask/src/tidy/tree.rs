//! The text files of a checkout.

use std::fs;
use std::path::Path;

use super::scan::{self, Line};
use crate::folders;

/// All text files, sorted by path.
pub(super) struct Tree {
    pub(super) files: Vec<File>,
    /// Paths of files that are no text.
    others: Vec<String>,
}

/// A text file. `path` is relative to the root and uses `/`.
pub(super) struct File {
    pub(super) path: String,
    pub(super) text: String,
    /// Scanned lines of a Rust file; empty for other files.
    pub(super) lines: Vec<Line>,
}

impl Tree {
    /// Reads the checkout at `root`, without build output and the store of git. Files that are not UTF-8 are no text.
    pub(super) fn read(root: &Path) -> Result<Tree, String> {
        let mut tree = Tree { files: Vec::new(), others: Vec::new() };
        for top in folders::children(root)?.iter().filter(|path| !path.ends_with("target") && !path.ends_with(".git")) {
            for file in if top.is_dir() { folders::files(top)? } else { vec![top.clone()] } {
                let path = file.strip_prefix(root).expect("found below it").to_string_lossy().into_owned();
                match fs::read_to_string(&file) {
                    Ok(text) if path != "Cargo.lock" => tree.files.push(File::new(&path, &text)),
                    _ => tree.others.push(path),
                }
            }
        }
        Ok(tree)
    }

    /// The Rust files.
    pub(super) fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }

    /// The file at exactly this path.
    pub(super) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Whether there is a file or folder with this path, given without a `/` at its end.
    pub(super) fn has(&self, path: &str) -> bool {
        let mut paths = self.files.iter().map(|file| &file.path).chain(&self.others);
        paths.any(|other| other.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    }

    /// A tree of inline sources.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Tree {
        Tree { files: files.iter().map(|(path, text)| File::new(path, text)).collect(), others: Vec::new() }
    }
}

impl File {
    fn new(path: &str, text: &str) -> File {
        let mut lines = if path.ends_with(".rs") { scan::lines(text) } else { Vec::new() };
        if is_test_path(path) {
            lines.iter_mut().for_each(|line| line.is_test = true);
        }
        File { path: path.to_owned(), text: text.to_owned(), lines }
    }

    /// The lines of the file as written, numbered from 1.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }

    /// The scanned lines outside tests, examples and benches, numbered from 1.
    pub(super) fn product_lines(&self) -> impl Iterator<Item = (usize, &Line)> {
        (1..).zip(&self.lines).filter(|(_, line)| !line.is_test)
    }

    /// Whether the whole file is a test, an example or a bench.
    pub(super) fn is_test(&self) -> bool {
        is_test_path(&self.path)
    }

    /// Whether the file lies in one of the `folders`, each given with its last `/`.
    pub(super) fn is_in(&self, folders: &[&str]) -> bool {
        folders.iter().any(|folder| self.path.starts_with(folder))
    }
}

fn is_test_path(path: &str) -> bool {
    path.ends_with("/tests.rs") || ["/tests/", "/examples/", "/benches/"].iter().any(|part| path.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_files_hold_no_product_lines() {
        let source = "//! Doc.\nfn product() {}\n#[cfg(test)]\nmod tests {}\n";
        for (path, lines) in [("crates/a/src/x.rs", 2), ("crates/a/src/x/tests.rs", 0), ("crates/a/tests/x.rs", 0)] {
            assert_eq!(File::new(path, source).product_lines().count(), lines, "{path}");
        }
    }
}
