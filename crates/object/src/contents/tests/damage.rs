//! Objects that are corrupt, cut off or missing.

use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use slackwater::ErrorKind;

use crate::contents::tests::rig::{Rig, Volume, block_on};
use crate::segments::id_of;

const MIB: usize = 1 << 20;
/// Files with a segment each.
const FILES: [u64; 2] = [5, 6];
/// Files of one pack, of 40,000 bytes each.
const SMALL_FILES: [u64; 3] = [7, 8, 9];
const SMALL_BYTES: usize = 40_000;

/// A volume with all files, and the objects of its segments: those of `FILES`, and the pack.
async fn filled(rig: &Rig) -> (Vec<Path>, Path) {
    let volume = rig.open().await;
    let mut objects = Vec::new();
    for ino in FILES {
        volume.make(ino).await;
        volume.write(ino, 0, &vec![ino as u8; MIB]).await;
        let found = segments(rig).await;
        objects.extend(found.into_iter().filter(|path| !objects.contains(path)).collect::<Vec<_>>());
    }
    for ino in SMALL_FILES {
        volume.make(ino).await;
        volume.write(ino, 0, &vec![ino as u8; SMALL_BYTES]).await;
    }
    volume.commit().await;
    let pack = segments(rig).await.into_iter().find(|path| !objects.contains(path));
    (objects, pack.expect("the pack is an object"))
}

async fn segments(rig: &Rig) -> Vec<Path> {
    let found: Vec<_> = rig.store.list(Some(&Path::from("seg"))).try_collect().await.expect("the store works");
    found.into_iter().map(|meta| meta.location).collect()
}

async fn bytes_of(rig: &Rig, path: &Path) -> Vec<u8> {
    rig.store.get(path).await.expect("it exists").bytes().await.expect("it can be read").to_vec()
}

async fn put(rig: &Rig, path: &Path, bytes: Vec<u8>) {
    rig.store.put(path, bytes.into()).await.expect("the store works");
}

async fn assert_whole(volume: &Volume, files: &[u64]) {
    for ino in files {
        let len = if FILES.contains(ino) { MIB } else { SMALL_BYTES };
        let read = volume.read(*ino, 0, MIB).await.expect("it is whole");
        assert!(read == vec![*ino as u8; len], "file {ino}");
    }
}

/// Asserts that the file cannot be read, and that the error names the object.
async fn assert_damaged(volume: &Volume, ino: u64, path: &Path) {
    let error = volume.read(ino, 0, MIB).await.expect_err("it is damaged");
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains(path.as_ref()), "{error} does not name {path}");
}

#[test]
fn a_wrong_byte_fails_the_reads_of_its_block_alone() {
    block_on(async {
        let rig = Rig::new();
        let (objects, pack) = filled(&rig).await;
        let mut bytes = bytes_of(&rig, &objects[0]).await;
        bytes[300_000] ^= 1;
        put(&rig, &objects[0], bytes).await;
        let mut bytes = bytes_of(&rig, &pack).await;
        bytes[SMALL_BYTES + 7] ^= 0x80;
        put(&rig, &pack, bytes).await;
        let volume = rig.open().await;
        assert_damaged(&volume, FILES[0], &objects[0]).await;
        assert_eq!(volume.read(FILES[0], 0, 262_144).await.expect("these blocks are whole"), vec![5; 262_144]);
        assert_eq!(volume.read(FILES[0], 327_680, 65_536).await.expect("this block is whole"), vec![5; 65_536]);
        assert_damaged(&volume, SMALL_FILES[1], &pack).await;
        assert_whole(&volume, &[FILES[1], SMALL_FILES[0], SMALL_FILES[2]]).await;
    });
}

#[test]
fn an_object_that_is_cut_off_fails_the_reads_behind_the_cut_alone() {
    block_on(async {
        let rig = Rig::new();
        let (objects, pack) = filled(&rig).await;
        let mut bytes = bytes_of(&rig, &objects[0]).await;
        bytes.truncate(700_000);
        put(&rig, &objects[0], bytes).await;
        let mut bytes = bytes_of(&rig, &pack).await;
        bytes.truncate(SMALL_BYTES + 100);
        put(&rig, &pack, bytes).await;
        let volume = rig.open().await;
        assert_damaged(&volume, FILES[0], &objects[0]).await;
        assert_eq!(volume.read(FILES[0], 0, 655_360).await.expect("this part is whole"), vec![5; 655_360]);
        assert_damaged(&volume, SMALL_FILES[1], &pack).await;
        assert_damaged(&volume, SMALL_FILES[2], &pack).await;
        assert_whole(&volume, &[FILES[1], SMALL_FILES[0]]).await;
    });
}

#[test]
fn a_missing_object_fails_the_reads_of_its_files_alone() {
    block_on(async {
        let rig = Rig::new();
        let (objects, pack) = filled(&rig).await;
        rig.store.delete(&objects[1]).await.expect("it exists");
        rig.store.delete(&pack).await.expect("it exists");
        let volume = rig.open().await;
        assert_damaged(&volume, FILES[1], &objects[1]).await;
        for ino in SMALL_FILES {
            assert_damaged(&volume, ino, &pack).await;
        }
        assert_whole(&volume, &[FILES[0]]).await;
    });
}

#[test]
fn the_footer_of_an_object_says_what_it_holds() {
    block_on(async {
        let rig = Rig::new();
        let (objects, pack) = filled(&rig).await;
        let volume = rig.open().await;
        let (footer, len) = volume.segments.footer(id_of(&objects[1]).expect("a segment")).await.expect("it is whole");
        assert_eq!((footer.entries.len(), len), (MIB / 65_536, MIB as u64));
        let at = |number: u64| (FILES[1], number * 65_536, number * 65_536, 65_536);
        for (number, entry) in (0..).zip(&footer.entries) {
            let found = (entry.ino, entry.file_offset_bytes, entry.segment_offset_bytes.into(), entry.len_bytes);
            assert_eq!(found, at(number));
            assert_eq!(entry.crc32c, crc32c::crc32c(&vec![6; 65_536]));
        }
        let (footer, len) = volume.segments.footer(id_of(&pack).expect("a segment")).await.expect("it is whole");
        assert_eq!(footer.entries.iter().map(|entry| entry.ino).collect::<Vec<_>>(), SMALL_FILES);
        assert_eq!(len, 3 * SMALL_BYTES as u64);
        for (cut, object) in [(1, &objects[0]), (30, &objects[1])] {
            let mut bytes = bytes_of(&rig, object).await;
            bytes.truncate(bytes.len() - cut);
            put(&rig, object, bytes).await;
            let error = volume.segments.footer(id_of(object).expect("a segment")).await.expect_err("it is cut off");
            assert!(error.to_string().contains(object.as_ref()));
        }
    });
}
