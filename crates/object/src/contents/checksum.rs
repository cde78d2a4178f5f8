//! Checksums of stored ranges, by blocks.

use crate::format::CHECKSUM_BLOCK_BYTES;

/// The checksums of the blocks of a range that comes in pieces.
pub(crate) fn of_pieces<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u32> {
    let (mut sums, mut sum, mut left) = (Vec::new(), 0, CHECKSUM_BLOCK_BYTES as usize);
    for mut piece in pieces {
        while !piece.is_empty() {
            let (part, rest) = piece.split_at(piece.len().min(left));
            sum = crc32c::crc32c_append(sum, part);
            (piece, left) = (rest, left - part.len());
            if left == 0 {
                sums.push(sum);
                (sum, left) = (0, CHECKSUM_BLOCK_BYTES as usize);
            }
        }
    }
    if left != CHECKSUM_BLOCK_BYTES as usize {
        sums.push(sum);
    }
    sums
}

/// The number of the first block of a range in pieces that does not have its checksum.
pub(crate) fn first_wrong<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, sums: &[u32]) -> Option<usize> {
    of_pieces(pieces).iter().zip(sums).position(|(found, sum)| found != sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksums_do_not_depend_on_the_pieces() {
        let bytes: Vec<u8> = (0..200_000_u32).map(|at| (at * 7 + at / 251) as u8).collect();
        let whole = of_pieces([bytes.as_slice()]);
        assert_eq!(whole.len(), 4);
        for len in [1, 4096, 65_535, 65_536, 65_537, 131_072] {
            assert_eq!(of_pieces(bytes.chunks(len)), whole, "pieces of {len}");
        }
        assert_eq!(of_pieces([]), Vec::<u32>::new());
        assert_eq!(first_wrong([bytes.as_slice()], &whole), None);
        let mut wrong = bytes;
        wrong[131_072] ^= 1;
        assert_eq!(first_wrong(wrong.chunks(1000), &whole), Some(2));
    }
}
