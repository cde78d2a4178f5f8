//! Files of blocks, and trees of small files.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::fs::{Advice, fadvise};

use crate::harness::rounds;
use crate::interrupt;
use crate::scratch::make_directory;

/// The size of a block.
pub(crate) const BLOCK_BYTES: usize = 1 << 20;
/// The byte that blocks consist of.
const FILLING: u8 = 5;

/// A file whose blocks are all allocated, and which is not in the kernel's cache.
pub(crate) fn make_file(path: &Path, bytes: u64) -> Result<()> {
    let file = write_file(path, bytes)?;
    file.sync_all().with_context(|| format!("cannot sync {}", path.display()))?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}

/// Writes a file of so many bytes, and returns it.
pub(crate) fn write_file(path: &Path, bytes: u64) -> Result<File> {
    let file = writable(path)?;
    let (blocks, rest) = (bytes / BLOCK_BYTES as u64, bytes as usize % BLOCK_BYTES);
    write_blocks(&file, blocks)
        .and_then(|()| Ok(file.write_all_at(&vec![FILLING; rest], blocks * BLOCK_BYTES as u64)?))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(file)
}

/// A file to overwrite, which is made if it does not exist.
pub(crate) fn writable(path: &Path) -> Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    file.with_context(|| format!("cannot open {} for writing", path.display()))
}

/// Writes blocks from the start of a file.
pub(crate) fn write_blocks(file: &File, blocks: u64) -> Result<()> {
    let block = vec![FILLING; BLOCK_BYTES];
    for number in 0..blocks {
        interrupt::check()?;
        file.write_all_at(&block, number * BLOCK_BYTES as u64)?;
    }
    Ok(())
}

/// Reads what [`write_blocks`] has written.
pub(crate) fn read_blocks(file: &File, blocks: u64) -> Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    for number in 0..blocks {
        file.read_exact_at(&mut block, number * BLOCK_BYTES as u64)?;
        let is_same = block[0] == FILLING && block[BLOCK_BYTES - 1] == FILLING;
        ensure!(is_same, "the bytes that were read differ from those that were written");
    }
    Ok(())
}

/// Makes `files` files of so many bytes in the new directory `folder`, `each` in a directory of their own. Returns the number of
/// these directories.
pub(crate) fn make_tree(folder: &Path, files: usize, each: usize, bytes: usize) -> Result<usize> {
    let (bar, content) = (rounds::bar("files", files as u64), vec![FILLING; bytes]);
    make_directory(folder)?;
    for number in 0..files {
        let directory = folder.join(format!("directory-{}", number / each));
        if number % each == 0 {
            interrupt::check()?;
            make_directory(&directory)?;
        }
        File::create_new(directory.join(format!("file-{}", number % each)))?.write_all_at(&content, 0)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(files.div_ceil(each))
}
