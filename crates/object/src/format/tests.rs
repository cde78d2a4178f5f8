//! Every record survives its encoding; nothing else is read as one; the order of keys is that of their bytes.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use slackwater::Timestamp;

use super::*;

fn segment() -> impl Strategy<Value = SegmentId> {
    any::<[u8; 16]>().prop_map(SegmentId::from_bytes)
}

fn key() -> impl Strategy<Value = Key> {
    // Small numbers too, so that keys share beginnings.
    let number = || prop_oneof![any::<u64>(), 0..4_u64, 250..260_u64];
    let segment = || prop_oneof![segment(), number().prop_map(|ms| SegmentId::new(ms, 1, 1))];
    prop_oneof![
        segment().prop_map(Key::Blob),
        (number(), number()).prop_map(|(ino, index)| Key::Chunk { ino, index }),
        (number(), number()).prop_map(|(dir, hash)| Key::Entries { dir, hash }),
        number().prop_map(Key::Inode),
        number().prop_map(Key::Orphan),
        segment().prop_map(Key::Segment),
        Just(Key::Volume(VolumeKey::Counters)),
        Just(Key::Volume(VolumeKey::Collected)),
        (number(), number()).prop_map(|(ino, number)| Key::Xattr { ino, number }),
    ]
}

fn name() -> impl Strategy<Value = OsString> {
    vec(any::<u8>(), 0..40).prop_map(OsString::from_vec)
}

fn inode() -> impl Strategy<Value = Inode> {
    let xattr =
        prop_oneof![vec(any::<u8>(), 0..50).prop_map(|v| Xattr::Here(v.into())), any::<u64>().prop_map(Xattr::Apart)];
    (any::<[u32; 5]>(), any::<[u64; 5]>(), any::<[i64; 4]>(), name(), vec((name(), xattr), 0..5)).prop_map(
        |([mode, uid, gid, nlink, flags], numbers, times, target, xattrs)| {
            let [rdev, size_bytes, allocated_bytes, parent, next_xattr] = numbers;
            let [size_bytes, allocated_bytes, next_xattr] =
                [size_bytes, allocated_bytes, next_xattr].map(|number| number % (FILE_BYTES_MAX + 1));
            let [atime, mtime, ctime, created] = times.map(Timestamp);
            Inode {
                mode,
                uid,
                gid,
                nlink,
                rdev,
                size_bytes,
                allocated_bytes,
                atime,
                mtime,
                ctime,
                created,
                flags,
                parent,
                target,
                xattrs,
                next_xattr,
            }
        },
    )
}

fn entries() -> impl Strategy<Value = Entries> {
    let entry = (name(), any::<u64>(), any::<u32>()).prop_map(|(name, ino, type_bits)| Entry { name, ino, type_bits });
    vec(entry, 0..5).prop_map(Entries)
}

fn chunk() -> impl Strategy<Value = Chunk> {
    let source = |len: u32| {
        let stored = (segment(), any::<u16>(), 0..CHECKSUM_BLOCK_BYTES, 0..100_000_u32).prop_flat_map(
            move |(segment, offset, skip, more)| {
                let stored_len = skip + len + more;
                let blocks = stored_len.div_ceil(CHECKSUM_BLOCK_BYTES) as usize;
                vec(any::<u32>(), blocks).prop_map(move |crc32c| {
                    Source::Segment(Stored { segment, offset: offset.into(), stored_len, skip, crc32c })
                })
            },
        );
        prop_oneof![Just(Source::Zero), stored]
    };
    let extent = (0..50_000_u32, 1..50_000_u32).prop_flat_map(move |(gap, len)| (Just(gap), Just(len), source(len)));
    vec(extent, 0..10).prop_map(|parts| {
        let mut end = 0;
        let extents = parts.into_iter().map(|(gap, len, source)| {
            let at = end + gap;
            end = at + len;
            Extent { at, len, source }
        });
        Chunk { extents: extents.collect() }
    })
}

fn survives<T: Encode + Decode + PartialEq + std::fmt::Debug>(value: &T) -> Result<(), TestCaseError> {
    let bytes = value.encode();
    prop_assert_eq!(&T::decode(&bytes).expect("it was encoded"), value);
    let mut newer = bytes.to_vec();
    newer[0] += 1;
    prop_assert_eq!(T::decode(&newer).expect_err("newer").0, "written by a newer version");
    let longer = [&bytes[..], b"x"].concat();
    prop_assert!(T::decode(&longer).is_err(), "a byte too many");
    for len in 0..bytes.len() {
        prop_assert!(T::decode(&bytes[..len]).is_err(), "{len} of {} bytes", bytes.len());
    }
    Ok(())
}

proptest! {
    #[test]
    fn keys_are_ordered_as_their_bytes(one in key(), other in key()) {
        let (one_bytes, other_bytes) = (one.encode(), other.encode());
        prop_assert_eq!(one.cmp(&other), one_bytes.as_ref().cmp(other_bytes.as_ref()));
        prop_assert_eq!(Key::decode(one_bytes.as_ref()).expect("it was encoded"), one);
    }

    #[test]
    fn bytes_that_are_read_as_a_key_are_its_bytes(bytes in vec(any::<u8>(), 0..20), tag in prop::sample::select(b"bcdiosvx".to_vec())) {
        let bytes: Vec<u8> = std::iter::once(tag).chain(bytes).collect();
        if let Ok(key) = Key::decode(&bytes) {
            let encoded = key.encode();
            prop_assert_eq!(encoded.as_ref(), &bytes[..]);
        }
    }

    #[test]
    fn inodes_survive(value in inode()) { survives(&value)?; }

    #[test]
    fn entries_survive(value in entries()) { survives(&value)?; }

    #[test]
    fn chunks_survive(value in chunk()) { survives(&value)?; }

    #[test]
    fn small_records_survive(total in any::<u64>(), live in any::<u64>(), dead in any::<u64>(), flag in any::<bool>()) {
        let place = if flag { SegmentPlace::Blob } else { SegmentPlace::Object };
        survives(&SegmentRecord { live_bytes: live, dead_unix_ms: dead, ..SegmentRecord::new(place, total) })?;
        survives(&Orphan { never_named: flag })?;
    }

    #[test]
    fn garbage_is_an_error_or_a_valid_value(mut bytes in vec(any::<u8>(), 0..200)) {
        if let Some(version) = bytes.first_mut() {
            *version = 1;
        }
        if let Ok(chunk) = Chunk::decode(&bytes) {
            let ends = chunk.extents.iter().map(|extent| extent.at + extent.len);
            prop_assert!(ends.clone().all(|end| u64::from(end) <= CHUNK_BYTES));
            prop_assert!(chunk.extents.iter().skip(1).zip(ends).all(|(next, end)| next.at >= end));
        }
        let _ = (Inode::decode(&bytes), Entries::decode(&bytes), SegmentRecord::decode(&bytes), Footer::from_bytes(&bytes));
    }

    #[test]
    fn damaged_records_are_never_a_panic(value in inode(), chunk in chunk(), at in any::<prop::sample::Index>(), bit in 0..8_u32) {
        for bytes in [value.encode(), chunk.encode()] {
            let mut bytes = bytes.to_vec();
            let at = at.index(bytes.len());
            bytes[at] ^= 1_u8 << bit;
            let _ = (Inode::decode(&bytes), Chunk::decode(&bytes));
        }
    }

    #[test]
    fn hashes_are_cookies(salt in any::<u64>(), name in name()) {
        let hash = hash_of_name(salt, &name);
        prop_assert_eq!(hash & 3, 0);
        prop_assert!(hash >= 4 && hash <= i64::MAX as u64);
    }

    #[test]
    fn segments_are_ordered_by_time(ms in 0..1_u64 << 47, epoch in any::<u32>(), number in 0..1_u64 << 48) {
        let id = SegmentId::new(ms, epoch, number);
        prop_assert_eq!((id.unix_ms(), id.writer_epoch()), (ms, epoch));
        prop_assert!(id < SegmentId::new(ms + 1, 0, 0));
        prop_assert_eq!(SegmentId::from_bytes(id.to_bytes()), id);
    }
}

/// The bytes that docs/FORMAT.md shows.
#[test]
fn the_examples_of_the_description_are_right() {
    assert_eq!(Key::Inode(1).encode().as_ref(), b"i\0\0\0\0\0\0\0\x01");
    assert_eq!(Key::Chunk { ino: 2, index: 1 }.encode().as_ref(), b"c\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x01");
    let entry = Entry { name: "a".into(), ino: 300, type_bits: 0o100_000 };
    assert_eq!(Entries(vec![entry]).encode(), Bytes::from_static(b"\x01\x01\xac\x02\x00\x80\x00\x00\x01a"));
    let zeroes = Extent { at: 0, len: 4096, source: Source::Zero };
    assert_eq!(Chunk { extents: vec![zeroes] }.encode(), Bytes::from_static(b"\x01\x00\x01\x00\x80\x20\x00"));
    assert_eq!(hash_of_name(7, "a".as_ref()), 0x24d6_2d9e_cdf9_9410);
}
