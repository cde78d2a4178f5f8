//! The file of an arena, as another program might damage it.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

const PAGE_BYTES: usize = 4096;
const RECORD_BYTES: usize = 32;

fn word(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

/// Flips a bit in the record of the dirty frame that holds `page`. Returns the number of the frame.
#[track_caller]
pub(crate) fn damage_record(arena: &Path, page: &[u8]) -> usize {
    let bytes = fs::read(arena).unwrap();
    let [frames, table] = [4, 14].map(|field| word(&bytes, field * 8));
    let holds =
        |frame: &usize| bytes[table + frame * RECORD_BYTES..].starts_with(b"dirt") && frame_of(&bytes, *frame) == page;
    let found: Vec<_> = (0..frames).filter(holds).collect();
    let [frame] = found[..] else { panic!("frames with the page: {found:?}") };
    let at = table + frame * RECORD_BYTES + 8;
    let file = OpenOptions::new().write(true).open(arena).unwrap();
    file.write_all_at(&[bytes[at] ^ 4], at as u64).unwrap();
    frame
}

/// The bytes of a frame, from those of the file.
pub(crate) fn frame_of(bytes: &[u8], frame: usize) -> &[u8] {
    let at = word(bytes, 15 * 8) + frame * PAGE_BYTES;
    &bytes[at..at + PAGE_BYTES]
}
