//! Kernel handles as numbers of 64 bits.
//!
//! A kernel handle is opaque. The forms of a few file systems are part of their disk format or were sent to NFS
//! clients, and will not change. They hold number and generation of the inode, usually of 32 bits each, beside words
//! that are the same for all files of a volume. Number and generation are then the whole handle. A large XFS has
//! numbers of more bits: there 24 bits of the generation are kept, and the others are read from the file system.
//! Nothing here is trusted: after opening by such a handle, the caller reads the handle of the file again and compares.
//!
//! # Kernel counterpart
//! `FILEID_INO32_GEN` (ext2, ext3, ext4, F2FS, small XFS), `shmem_encode_fh`, `struct xfs_fid64`, `struct btrfs_fid`.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io;
use slackwater::backend::FileHandle;

use super::sys::{KernelHandle, xfs_generation};

/// The position of number and generation in a kind of handle, in words of 32 bits.
#[derive(Copy, Clone)]
struct Form {
    kind: i32,
    words: usize,
    ino: usize,
    generation: usize,
    /// How many bits of a short form belong to the number; the upper ones belong to the generation.
    ino_bits: u32,
}

const FORMS: [Form; 4] = [
    Form { kind: 1, words: 2, ino: 0, generation: 1, ino_bits: 32 },
    // tmpfs. The last word is the upper half of the number.
    Form { kind: 1, words: 3, ino: 1, generation: 0, ino_bits: 32 },
    // XFS with numbers of 64 bits. The second word is the upper half.
    Form { kind: XFS, words: 3, ino: 0, generation: 2, ino_bits: 40 },
    // btrfs. The second word is the upper half; then the number of the subvolume, which has a device number of its own.
    Form { kind: 0x4d, words: 5, ino: 0, generation: 4, ino_bits: 32 },
];

/// The kind of XFS handles with 64-bit numbers.
const XFS: i32 = 0x81;

const WORD_BYTES: usize = 4;
/// The position of the upper half of a number in XFS handles.
const UPPER: usize = 1;

/// The handles of a volume whose files are identified by number and generation.
pub(super) struct Numbers {
    form: Form,
    /// An example of such a handle.
    like: Vec<[u8; WORD_BYTES]>,
}

impl Numbers {
    /// The handles like `handle`, which is that of `root`, if its form is known and the conversion works in both
    /// directions.
    pub(super) fn like(root: &OwnedFd, handle: &KernelHandle) -> Option<Self> {
        let numbers = Self::of_form(handle)?;
        let number = numbers.short(handle)?.number()?;
        numbers.whole(root, number).is_ok_and(|whole| whole == *handle).then_some(numbers)
    }

    fn of_form(handle: &KernelHandle) -> Option<Self> {
        let like = words(handle);
        let form = FORMS.into_iter().find(|form| form.kind == handle.kind && form.words == like.len())?;
        Some(Self { form, like })
    }

    /// The short form of `handle`, if it differs from the others in number and generation only.
    pub(super) fn short(&self, handle: &KernelHandle) -> Option<FileHandle> {
        let mut words = words(handle);
        let (low, generation) = (*words.get(self.form.ino)?, *words.get(self.form.generation)?);
        let mut ino = u64::from(u32::from_le_bytes(low));
        for place in [self.form.ino, self.form.generation] {
            words[place] = self.like[place];
        }
        if self.has_upper_half() {
            ino |= u64::from(u32::from_le_bytes(words[UPPER])) << 32;
            words[UPPER] = self.like[UPPER];
        }
        let is_alike = handle.kind == self.form.kind && words == self.like && ino >> self.form.ino_bits == 0;
        let generation = u64::from(u32::from_le_bytes(generation));
        is_alike.then(|| FileHandle::from_number(ino | generation << self.form.ino_bits))
    }

    /// The kernel's handle whose short form is `number`.
    pub(super) fn whole(&self, root: &OwnedFd, number: u64) -> io::Result<KernelHandle> {
        let ino = number & ((1 << self.form.ino_bits) - 1);
        let generation = match self.has_upper_half() {
            true => xfs_generation(root.as_fd(), ino)?,
            false => (number >> self.form.ino_bits) as u32,
        };
        Ok(self.of(ino, generation))
    }

    fn of(&self, ino: u64, generation: u32) -> KernelHandle {
        let mut words = self.like.clone();
        words[self.form.ino] = (ino as u32).to_le_bytes();
        words[self.form.generation] = generation.to_le_bytes();
        if self.has_upper_half() {
            words[UPPER] = ((ino >> 32) as u32).to_le_bytes();
        }
        KernelHandle { kind: self.form.kind, bytes: words.concat() }
    }

    fn has_upper_half(&self) -> bool {
        self.form.kind == XFS
    }
}

fn words(handle: &KernelHandle) -> Vec<[u8; WORD_BYTES]> {
    handle.bytes.as_chunks().0.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(kind: i32, words: &[u32]) -> KernelHandle {
        KernelHandle { kind, bytes: words.iter().flat_map(|word| word.to_le_bytes()).collect() }
    }

    #[test]
    fn a_number_leads_back_to_the_handle() {
        let forms: [(i32, &[u32], &[u32]); 4] = [
            (1, &[2, 0], &[12, 77]),
            (1, &[99, 1, 0], &[77, 12, 0]),
            (0x81, &[128, 0, 5], &[12, 0, 77]),
            (0x4d, &[256, 0, 5, 0, 9], &[12, 0, 5, 0, 77]),
        ];
        for (kind, root, words) in forms {
            let numbers = Numbers::of_form(&handle(kind, root)).expect("the form is known");
            let file = handle(kind, words);
            let short = numbers.short(&file).expect("it is like the root");
            assert_eq!(short.number(), Some(77 << numbers.form.ino_bits | 12), "{kind:#x}");
            assert_eq!(numbers.of(12, 77), file);
        }
    }

    #[test]
    fn a_handle_that_does_not_fit_has_no_number() {
        let numbers = Numbers::of_form(&handle(0x81, &[128, 0, 5])).expect("the form is known");
        let large = handle(0x81, &[12, 0x12, 0x3400_0077]);
        assert_eq!(numbers.short(&large).and_then(|short| short.number()), Some(0x77 << 40 | 0x12 << 32 | 12));
        assert_eq!(numbers.of(0x12 << 32 | 12, 0x3400_0077), large);
        assert_eq!(numbers.short(&handle(0x81, &[12, 0x100, 77])), None, "a number of more than 40 bits");
        assert_eq!(numbers.short(&handle(0x81, &[12, 0, 77, 1])), None);
        assert_eq!(numbers.short(&handle(1, &[12, 0, 77])), None);
        assert!(Numbers::of_form(&handle(7, &[1, 2])).is_none());
    }
}
