//! Kernel handles as numbers of 64 bits.
//!
//! A kernel handle is opaque. The forms of a few file systems are part of what they have on disk or sent to NFS clients,
//! and will not change: number and generation of the inode, both of 32 bits as a rule, beside words that are
//! the same for all files of a volume. Number and generation are then the whole handle. Nothing here is trusted: whoever opens
//! by such a handle asks the file that it leads to for its handle again and compares.
//!
//! # Kernel counterpart
//! `FILEID_INO32_GEN` (ext2, ext3, ext4, F2FS, small XFS), `shmem_encode_fh`, `struct xfs_fid64`, `struct btrfs_fid`.

use slackwater::backend::FileHandle;

use super::sys::KernelHandle;

/// Where a kind of handle has its number and generation, in words of 32 bits.
#[derive(Copy, Clone)]
struct Form {
    kind: i32,
    words: usize,
    ino: usize,
    generation: usize,
}

const FORMS: [Form; 4] = [
    Form { kind: 1, words: 2, ino: 0, generation: 1 },
    // tmpfs. The last word is the upper half of the number.
    Form { kind: 1, words: 3, ino: 1, generation: 0 },
    // XFS with numbers of 64 bits. The second word is the upper half.
    Form { kind: 0x81, words: 3, ino: 0, generation: 2 },
    // btrfs. The second word is the upper half; then the number of the subvolume, which has a device number of its own.
    Form { kind: 0x4d, words: 5, ino: 0, generation: 4 },
];

const WORD_BYTES: usize = 4;

/// The handles of a volume that number and generation tell apart.
pub(super) struct Numbers {
    form: Form,
    /// One of them.
    like: Vec<[u8; WORD_BYTES]>,
}

impl Numbers {
    /// Those like `root`, if its form is known.
    pub(super) fn like(root: KernelHandle) -> Option<Self> {
        let like = words(&root);
        let form = FORMS.into_iter().find(|form| form.kind == root.kind && form.words == like.len())?;
        Some(Self { form, like })
    }

    /// The short form of `handle`, if it differs from the others in number and generation only.
    pub(super) fn short(&self, handle: &KernelHandle) -> Option<FileHandle> {
        let mut words = words(handle);
        let (ino, generation) = (*words.get(self.form.ino)?, *words.get(self.form.generation)?);
        for place in [self.form.ino, self.form.generation] {
            words[place] = self.like[place];
        }
        let number = |word| u32::from_le_bytes(word);
        let is_alike = handle.kind == self.form.kind && words == self.like;
        is_alike.then(|| FileHandle::numbered(number(ino), number(generation)))
    }

    /// The kernel's handle of which `number` is the short form.
    pub(super) fn whole(&self, number: u64) -> KernelHandle {
        let mut words = self.like.clone();
        words[self.form.ino] = (number as u32).to_le_bytes();
        words[self.form.generation] = ((number >> 32) as u32).to_le_bytes();
        KernelHandle { kind: self.form.kind, bytes: words.concat() }
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
            let numbers = Numbers::like(handle(kind, root)).expect("the form is known");
            let file = handle(kind, words);
            let short = numbers.short(&file).expect("it is like the root");
            assert_eq!(short.number(), Some(77 << 32 | 12), "{kind:#x}");
            assert_eq!(numbers.whole(77 << 32 | 12), file);
        }
    }

    #[test]
    fn what_does_not_fit_has_no_number() {
        let numbers = Numbers::like(handle(0x81, &[128, 0, 5])).expect("the form is known");
        assert_eq!(numbers.short(&handle(0x81, &[12, 1, 77])), None, "a number of more than 32 bits");
        assert_eq!(numbers.short(&handle(0x81, &[12, 0, 77, 1])), None);
        assert_eq!(numbers.short(&handle(1, &[12, 0, 77])), None);
        assert!(Numbers::like(handle(7, &[1, 2])).is_none());
    }
}
