//! Damage of inodes, names and counters.

use bytes::Bytes;

use super::rig::{BIG_BYTES, Rig, block_on, change_inode, take_name};
use crate::check::Severity;
use crate::format::{Chunk, Decode, Encode, Entries, Entry, Key, ROOT, SegmentId, VolumeKey};
use crate::tree::Counters;

#[test]
fn a_sound_volume_has_no_errors_and_is_counted() {
    block_on(async {
        let rig = Rig::new().await;
        let report = rig.check().await;
        assert_eq!(report.findings, []);
        assert_eq!((report.files, report.directories, report.names, report.orphans), (4, 3, 6, 1));
        assert_eq!((report.segments, report.live_bytes), (2, u64::from(BIG_BYTES) + 5_000));
        assert_eq!(report.verified_bytes, report.live_bytes);
        assert_eq!(report.garbage_objects, 0);
        let before = rig.tree().await;
        assert_eq!(rig.repair().await.findings, []);
        assert_eq!(rig.tree().await, before, "there was nothing to repair");
    });
}

#[test]
fn a_name_without_inode_goes() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, rig| {
            view.delete(Key::Inode(rig.symlink));
            Ok(())
        })
        .await;
        rig.is_repaired(Severity::Structure, "name \"symlink\" in directory 1 names inode 6, which does not exist")
            .await;
        assert!(!rig.tree().await.contains_key("/symlink"));
    });
}

#[test]
fn an_inode_that_is_lost_is_made_anew_for_its_data() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, rig| {
            view.delete(Key::Inode(rig.small));
            view.delete(Key::Inode(rig.big));
            take_name(view, ROOT, "big")?;
            take_name(view, rig.dir, "link").map(drop)
        })
        .await;
        rig.is_repaired(Severity::Structure, "inode 4 does not exist, and there is data of it up to byte 5000").await;
        let tree = rig.tree().await;
        assert_eq!(tree.get("/dir/small"), Some(&rig.small), "its name leads to it again");
        assert_eq!(tree.get(&format!("/lost+found/#{}", rig.big)), Some(&rig.big));
        for (ino, len) in [(rig.small, 5_000), (rig.big, u64::from(BIG_BYTES))] {
            let inode = rig.inode(ino).await;
            assert_eq!((inode.size_bytes, inode.allocated_bytes, inode.nlink), (len, len, 1));
        }
        assert_eq!(rig.check().await.verified_bytes, u64::from(BIG_BYTES) + 5_000);
    });
}

/// The number that the next inode would get is that of an inode without a name: `lost+found` must get another.
#[test]
fn a_new_directory_does_not_take_the_number_of_another_inode() {
    block_on(async {
        let rig = Rig::new().await;
        let small = rig.inode(rig.small).await;
        rig.damage(|view, rig| {
            let next = view.counters().next_ino;
            let inode = view.get(Key::Inode(rig.symlink))?.expect("it exists");
            view.put(Key::Inode(next), inode);
            Ok(())
        })
        .await;
        rig.is_repaired(Severity::Structure, "inode 8 has no name").await;
        let symlink = rig.inode(rig.symlink).await;
        assert_eq!(rig.inode(8).await.target, symlink.target);
        assert_eq!(rig.tree().await.get("/lost+found/#8"), Some(&8));
        assert_eq!(rig.inode(rig.small).await, small);
    });
}

#[test]
fn names_of_no_directory_go_and_their_inodes_are_found() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, rig| {
            view.delete(Key::Inode(rig.dir));
            Ok(())
        })
        .await;
        rig.is_repaired(Severity::Structure, "of inode 3, which is no directory").await;
        let tree = rig.tree().await;
        assert_eq!(tree.get(&format!("/lost+found/#{}", rig.small)), Some(&rig.small));
        assert_eq!(tree.get(&format!("/lost+found/#{}", rig.sub)), Some(&rig.sub));
        assert_eq!(rig.inode(rig.small).await.size_bytes, 5_000);
    });
}

#[test]
fn an_inode_without_name_gets_one_with_all_that_is_below_it() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, _| take_name(view, ROOT, "dir").map(drop)).await;
        rig.is_repaired(Severity::Structure, "inode 3 has no name").await;
        let tree = rig.tree().await;
        assert_eq!(tree.get("/lost+found/#3/small"), Some(&rig.small));
        assert_eq!(tree.get("/lost+found/#3/sub"), Some(&rig.sub));
    });
}

#[test]
fn a_name_under_a_wrong_hash_is_moved() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, _| {
            let entries = take_name(view, ROOT, "big")?;
            view.put(Key::Entries { dir: ROOT, hash: 4 }, entries.encode());
            Ok(())
        })
        .await;
        rig.is_repaired(Severity::Structure, "where it cannot be found").await;
        assert_eq!(rig.tree().await.get("/big"), Some(&rig.big));
    });
}

#[test]
fn a_repeated_name_goes_and_the_first_stays() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, rig| {
            let mut entries = take_name(view, ROOT, "symlink")?;
            entries.0.push(Entry { ino: rig.big, type_bits: 0o100_000, ..entries.0[0].clone() });
            view.put(Key::Entries { dir: ROOT, hash: Rig::hash("symlink") }, entries.encode());
            Ok(())
        })
        .await;
        rig.is_repaired(Severity::Structure, "where it cannot be found").await;
        assert_eq!(rig.tree().await.get("/symlink"), Some(&rig.symlink));
    });
}

#[test]
fn a_wrong_type_in_an_entry_is_set_right() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, _| {
            let mut entries = take_name(view, ROOT, "symlink")?;
            entries.0[0].type_bits = 0o100_000;
            view.put(Key::Entries { dir: ROOT, hash: Rig::hash("symlink") }, entries.encode());
            Ok(())
        })
        .await;
        rig.is_repaired(Severity::Structure, "name \"symlink\" in directory 1 has another type than inode 6 (120000)")
            .await;
    });
}

#[test]
fn a_further_name_of_a_directory_goes() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, rig| {
            let entry = Entry { name: "again".into(), ino: rig.sub, type_bits: 0o040_000 };
            view.put(Key::Entries { dir: ROOT, hash: Rig::hash("again") }, Entries(vec![entry]).encode());
            Ok(())
        })
        .await;
        rig.is_repaired(Severity::Structure, "is a further name of directory 5").await;
        assert!(rig.tree().await.values().filter(|ino| **ino == rig.sub).count() == 1);
    });
}

#[test]
fn a_wrong_parent_is_set_right() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, rig| change_inode(view, rig.sub, |inode| inode.parent = ROOT)).await;
        rig.is_repaired(Severity::Structure, "/dir/sub: directory 5 is in directory 3, but names 1 as its parent")
            .await;
        assert_eq!(rig.inode(rig.sub).await.parent, rig.dir);
    });
}

#[test]
fn directories_below_themselves_are_found_again() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, rig| {
            let entries = take_name(view, ROOT, "dir")?;
            view.put(Key::Entries { dir: rig.sub, hash: Rig::hash("dir") }, entries.encode());
            change_inode(view, ROOT, |inode| inode.nlink -= 1)?;
            change_inode(view, rig.sub, |inode| inode.nlink += 1)?;
            change_inode(view, rig.dir, |inode| inode.parent = rig.sub)
        })
        .await;
        rig.is_repaired(Severity::Structure, "is below itself").await;
        let tree = rig.tree().await;
        assert!(tree.values().any(|ino| *ino == rig.dir) && tree.values().any(|ino| *ino == rig.sub), "{tree:?}");
        assert!(tree.values().any(|ino| *ino == rig.small), "{tree:?}");
    });
}

#[test]
fn marks_of_orphans_match_names() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, rig| {
            let mark = view.get(Key::Orphan(rig.orphan))?.expect("it is one");
            view.put(Key::Orphan(rig.big), mark.clone());
            view.put(Key::Orphan(99), mark);
            Ok(())
        })
        .await;
        let found = rig.check().await;
        assert!(found.findings.iter().any(|finding| finding.text.contains("inode 99 is marked")), "{found:#?}");
        rig.is_repaired(Severity::Structure, "inode 2 has a name and is marked as having none").await;
    });
}

#[test]
fn an_orphan_without_mark_gets_a_name() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, rig| {
            view.delete(Key::Orphan(rig.orphan));
            Ok(())
        })
        .await;
        rig.is_repaired(Severity::Structure, "inode 7 has no name").await;
        assert_eq!(rig.inode(rig.orphan).await.nlink, 1);
    });
}

#[test]
fn wrong_counts_of_an_inode_are_set_right() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, rig| {
            change_inode(view, rig.big, |inode| (inode.nlink, inode.allocated_bytes) = (7, 1))?;
            change_inode(view, rig.dir, |inode| inode.nlink = 2)
        })
        .await;
        let texts: Vec<_> = rig.check().await.findings.into_iter().map(|finding| finding.text).collect();
        assert_eq!(
            texts,
            [
                "/dir/link: inode 2 counts 1 allocated bytes and has 200000",
                "/dir/link: inode 2 counts 7 links and has 2",
                "/dir: inode 3 counts 2 links and has 3"
            ]
        );
        rig.is_repaired(Severity::Count, "counts 7 links and has 2").await;
    });
}

#[test]
fn chunks_and_values_of_nothing_go() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, rig| {
            let chunk = view.get(Key::Chunk { ino: rig.small, index: 0 })?.expect("it has data");
            view.put(Key::Chunk { ino: rig.symlink, index: 3 }, chunk);
            view.put(Key::Chunk { ino: rig.big, index: 9 }, Chunk::default().encode());
            view.put(Key::Xattr { ino: 99, number: 0 }, Bytes::from_static(b"x"));
            view.put(Key::Xattr { ino: rig.big, number: 9 }, Bytes::from_static(b"x"));
            view.put(Key::Blob(SegmentId::new(1, 1, 1)), Bytes::from_static(b"x"));
            Ok(())
        })
        .await;
        assert_eq!(rig.check().await.findings.len(), 5);
        rig.is_repaired(Severity::Count, "chunk 3 of inode 6, which is no file").await;
    });
}

#[test]
fn names_that_cannot_be_read_make_no_inode_nameless() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, _| {
            view.put(Key::Entries { dir: ROOT, hash: Rig::hash("dir") }, Bytes::from_static(&[2; 8]));
            Ok(())
        })
        .await;
        let before = rig.inode(rig.dir).await;
        let report = rig.repair().await;
        assert_eq!((report.findings.len(), report.errors_left), (1, 1), "{report:#?}");
        assert!(report.findings[0].text.contains("cannot be read"), "{report:#?}");
        assert_eq!(rig.inode(rig.dir).await, before);
    });
}

#[test]
fn a_lost_attribute_goes() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, rig| {
            view.delete(Key::Xattr { ino: rig.big, number: 0 });
            Ok(())
        })
        .await;
        rig.is_repaired(Severity::Data, "inode 2 has lost the value of its attribute user.large").await;
        assert_eq!(rig.inode(rig.big).await.xattrs, []);
    });
}

#[test]
fn wrong_counters_are_set_right() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, rig| {
            view.count(-3, 1_000);
            // A number that was never given out.
            let inode = view.get(Key::Inode(rig.small))?.expect("it exists");
            view.put(Key::Inode(50), inode);
            Ok(())
        })
        .await;
        let texts: Vec<_> = rig.check().await.findings.into_iter().map(|finding| finding.text).collect();
        assert!(texts.iter().any(|text| text.starts_with("the volume counts 4 inodes and has 8")), "{texts:?}");
        assert!(texts.iter().any(|text| text.contains("206000 bytes of data and has 205000")), "{texts:?}");
        rig.is_repaired(Severity::Structure, "the next inode would get number 8, and 51 is the first free one").await;
    });
}

#[test]
fn a_missing_root_is_made_anew() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, _| {
            view.delete(Key::Inode(ROOT));
            Ok(())
        })
        .await;
        rig.is_repaired(Severity::Structure, "there is no root directory").await;
        assert_eq!(rig.tree().await.get("/dir/small"), Some(&rig.small), "its names are kept");
    });
}

#[test]
fn records_that_cannot_be_read_are_left_alone() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, rig| {
            let mut newer = view.get(Key::Inode(rig.symlink))?.expect("it exists").to_vec();
            newer[0] = 2;
            view.put(Key::Inode(rig.symlink), newer.into());
            Ok(())
        })
        .await;
        let report = rig.repair().await;
        assert!(report.errors_left > 0, "{report:#?}");
        let texts: Vec<_> = report.findings.iter().map(|finding| finding.text.as_str()).collect();
        assert!(texts.iter().any(|text| text.contains("written by a newer version")), "{texts:?}");
        assert!(!texts.iter().any(|text| text.contains("does not exist")), "its names lead to it: {texts:?}");
        assert_eq!(rig.check().await.errors_left, report.errors_left, "the repair has not removed it");
    });
}

#[test]
fn the_counters_are_in_every_commit() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, _| {
            let counters = view.get(Key::Volume(VolumeKey::Counters))?.expect("stored");
            assert_eq!(Counters::decode(&counters).expect("valid").next_ino, 8);
            Ok(())
        })
        .await;
    });
}
