//! The least a backend has to do: one flat directory of files in memory, in 70 lines.
//!
//! `cargo run --example backend_of_your_own`. `slackwater::backend::MemBackend` does all of it.

#![allow(clippy::wildcard_enum_match_arm, reason = "whatever else there is, this backend does not do it")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use slackwater::backend::{Attr, Backend, Call, FileHandle, Found, Limits, NewNode, Node, NodeKind, Protection};
use slackwater::{Engine, ErrorKind, File, ManualClock, NodeId, Timestamp, Tunables, UmountOptions};
use slackwater_arena::{Arena, ArenaConfig};

/// Files by number; number 0 is the directory, and a file is called by its number.
#[derive(Default)]
struct Shelf(Mutex<BTreeMap<u64, Vec<u8>>>);

fn attr(ino: u64, size: usize) -> Attr {
    let (kind, mode) = if ino == 0 { (NodeKind::Directory, 0o40755) } else { (NodeKind::File, 0o100_644) };
    let (size_bytes, time) = (size as u64, Timestamp(0));
    let id = NodeId { dev: 7, ino, generation: 0 };
    let (atime, mtime, ctime) = (time, time, time);
    let protection = Protection::None;
    let (nlink, uid, gid, rdev, allocated_bytes) = (1, 0, 0, 0, 0);
    Attr { id, kind, mode, nlink, uid, gid, rdev, size_bytes, allocated_bytes, atime, mtime, ctime, protection }
}

fn found(ino: u64, size: usize) -> Found {
    let handle = FileHandle::new(&ino.to_le_bytes()).expect("short enough");
    Found { node: Node::new(attr(ino, 0).id, ()), handle, attr: attr(ino, size) }
}

impl Backend for Shelf {
    fn submit(&self, call: Call) {
        let mut files = self.0.lock().expect("nobody panics here");
        match call {
            Call::Root { done } => done.complete(Ok(found(0, 0))),
            Call::Make { what: NewNode::File, done, .. } => {
                let ino = files.len() as u64 + 1;
                files.insert(ino, Vec::new());
                done.complete(Ok(found(ino, 0)));
            }
            Call::Write(unit) => {
                let file = files.entry(unit.node().id().ino).or_default();
                let mut at = unit.offset_bytes() as usize;
                file.resize(file.len().max(at + unit.len_bytes()), 0);
                for slice in unit.slices() {
                    file[at..at + slice.len()].copy_from_slice(slice);
                    at += slice.len();
                }
                drop(files); // completing runs engine code: hold nothing
                let len = unit.len_bytes();
                unit.complete(Ok(len));
            }
            Call::Setattr { node, done, .. } => done.complete(Ok(attr(node.id().ino, files[&node.id().ino].len()))),
            Call::Sync { done, .. } | Call::SyncVolume { done } => done.complete(Ok(())),
            other => other.fail(ErrorKind::Unsupported.into()),
        }
    }

    fn limits(&self) -> Limits {
        Limits { max_file_bytes: 1 << 30, unit_bytes: 1 << 20, units_in_flight: 1, device: None, reopens: true }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let shelf = Arc::new(Shelf::default());
    let arena = Arena::create(&ArenaConfig::memfd(16 << 20))?;
    let engine = Engine::new(arena, Arc::new(ManualClock::new(Timestamp(0))), Tunables::default());
    let volume = engine.mount("shelf", shelf.clone())?;
    let file = File::open(&volume.make(&volume.root()?, "1", NewNode::File, 0o644)?)?;
    file.write_at(5, b"water")?;
    file.write_at(0, b"slack")?;
    drop(file);
    volume.umount(UmountOptions::default())?;
    println!("on the shelf: {:?}", String::from_utf8_lossy(&shelf.0.lock().expect("idle")[&1]));
    Ok(())
}
