//! A node is looked up while its inode leaves memory, replayed. It is a test target of its own, since every lookup of a
//! node in this process stops at the gate that it holds.

#![cfg(debug_assertions)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[allow(dead_code, reason = "shared with other tests, which use the rest")]
mod rig;

use std::sync::Arc;

use slackwater::{File, WriteFlags, WriteRequest, Written};
use slackwater_sync::gate;
use slackwater_testkit::pattern;

use crate::rig::{PAGE, Rig, assert_same, read_all, spawn};

/// The backend is asked before the file is written, and its answer is read when the file is written, durable and
/// evicted. So the answer is out of date.
#[test]
fn a_file_that_leaves_memory_during_a_lookup_keeps_its_size() {
    let rig = Rig::by_hand();
    let wanted = pattern(1, PAGE);
    let file = rig.create("a");
    assert_eq!(
        file.write(WriteRequest::at(0).flags(WriteFlags::DONTCACHE), &wanted).unwrap(),
        Written::Bytes(wanted.len())
    );
    drop(file);
    assert_eq!(rig.volume.status().inodes, 2);

    let hold = gate::hold("iget");
    let volume = Arc::clone(&rig.volume);
    let lookup = spawn("lookup", move || volume.walk("a").unwrap());
    hold.wait_reached();
    rig.volume.sync().unwrap();
    assert_eq!(rig.volume.status().inodes, 1, "the file has left memory");
    drop(hold);
    let found = lookup.wait();
    assert_eq!(found.attr().size_bytes, PAGE as u64);
    assert_same(&read_all(&File::open(&found).unwrap()), &wanted, "what was written");
}
