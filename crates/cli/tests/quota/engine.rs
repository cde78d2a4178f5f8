//! The engine on a directory with a quota, without a mount: it needs no recent kernel.

use std::fs;
use std::sync::Arc;

use slackwater::backend::NewNode;
use slackwater::{Engine, ErrorKind, File, SuperBlock, Tunables, UmountOptions};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_backends::{DirBackend, SystemClock};

use crate::rig::bytes;
use crate::{MIB, limited, on_each_disk};

/// A page: it is accepted as a whole, or not at all.
const PIECE: usize = 4096;

fn volume(path: &std::path::Path) -> (Engine, Arc<SuperBlock>) {
    let tunables = Tunables { dirty_percent: 90, dirty_background_percent: 80, ..Tunables::default() };
    let engine = Engine::new(Arena::create(&ArenaConfig::memfd(64 << 20)).unwrap(), Arc::new(SystemClock), tunables);
    let volume = engine.mount("limited", Arc::new(DirBackend::open(path).unwrap())).unwrap();
    (engine, volume)
}

/// Appends to `file` until a write is refused; returns the number of bytes accepted.
fn fill(file: &File, from: u64) -> u64 {
    let mut at = from;
    loop {
        assert!(at < 60 * MIB, "nothing is refused");
        match file.write_at(at, &bytes(at, PIECE)) {
            Ok(()) => at += PIECE as u64,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                return at;
            }
        }
    }
}

#[test]
fn p11_a_write_beyond_the_quota_is_refused_and_accepted_bytes_are_kept() {
    on_each_disk("engine::p11_a_write_beyond_the_quota_is_refused_and_accepted_bytes_are_kept", |_, disk| {
        let (path, quota) = limited(disk, 32 * MIB, None);
        let (_engine, volume) = volume(&path);
        let file = File::open(&volume.make(&volume.root().unwrap(), "data", NewNode::File, 0o644).unwrap()).unwrap();
        let accepted = fill(&file, 0);
        assert!((30 * MIB..=32 * MIB).contains(&accepted), "{accepted}");
        file.fsync().unwrap();
        assert_eq!(file.take_write_error(), None);
        // Raised while it is mounted.
        quota.set(Some(40 * MIB), None).unwrap();
        let more = fill(&file, accepted);
        assert!((37 * MIB..=40 * MIB).contains(&more), "{more}");
        drop(file);
        volume.umount(UmountOptions::default()).unwrap();
        let kept = fs::read(path.join("data")).unwrap();
        assert_eq!(kept.len() as u64, more);
        assert!(kept.chunks(PIECE).zip(0_u64..).all(|(piece, nth)| piece == bytes(nth * PIECE as u64, piece.len())));
    });
}

#[test]
fn a_name_beyond_the_quota_is_refused() {
    on_each_disk("engine::a_name_beyond_the_quota_is_refused", |_, disk| {
        let (path, _) = limited(disk, 32 * MIB, Some(10));
        let (_engine, volume) = volume(&path);
        let root = volume.root().unwrap();
        for nth in 0..9 {
            volume.make(&root, nth.to_string(), NewNode::File, 0o644).unwrap();
        }
        let refused = volume.make(&root, "one more", NewNode::File, 0o644).map(drop).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::NoSpace | ErrorKind::Quota), "{refused}");
        assert_eq!(volume.statfs().unwrap().files, 10);
        drop(root);
        volume.umount(UmountOptions::default()).unwrap();
    });
}
