//! Nodes of open files are closed beside other operations on the files, replayed. It is a test target of its own whose
//! tests take turns, since every removal of the process stops at the gate that they hold.

#![cfg(debug_assertions)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[allow(dead_code, reason = "shared with other tests, which use the rest")]
mod rig;

use std::sync::Arc;

use slackwater::backend::{Removal, RenameMode};
use slackwater::{File, SuperBlock, Tunables, WriteFlags, WriteRequest, Written};
use slackwater_sync::gate;
use slackwater_testkit::pattern;

use crate::rig::{Disk, PAGE, Rig, assert_same, by_hand, read_all, spawn, turn};

/// A volume that keeps no node open without need.
fn restless() -> Rig {
    Rig::with(Disk::new(), Tunables { idle_nodes: 0, ..by_hand() })
}

/// An open file that is clean and not cached, and whose node was closed.
fn let_go(rig: &Rig, name: &str, bytes: &[u8]) -> File {
    let file = rig.create(name);
    assert_eq!(
        file.write(WriteRequest::at(0).flags(WriteFlags::DONTCACHE), bytes).unwrap(),
        Written::Bytes(bytes.len())
    );
    rig.volume.sync().unwrap();
    file
}

/// A file loses its last name by `change`. The backend has made the change, and the engine does not know yet which file
/// it was, when the node of the open file is to be opened again. The backend has no name for it. The node comes with
/// the answer to the change.
fn is_found_behind(rig: Rig, file: File, change: impl FnOnce(&Arc<SuperBlock>) + Send + 'static) {
    let removal = gate::hold("removal.answered");
    let volume = Arc::clone(&rig.volume);
    let change = spawn("a change of names", move || change(&volume));
    removal.wait_reached();
    let stale = gate::hold("node.stale");
    let reader = spawn("a reader", move || {
        let bytes = read_all(&file);
        file.fsync().unwrap();
        (bytes, file)
    });
    stale.wait_reached();
    drop(stale);
    drop(removal);
    change.wait();
    let (bytes, file) = reader.wait();
    assert_same(&bytes, &pattern(1, PAGE), "the file that was removed");
    // And it stays.
    rig.create("another").write_at(0, b"x").unwrap();
    rig.volume.sync().unwrap();
    assert_same(&read_all(&file), &pattern(1, PAGE), "the file that was removed");
    file.write_at(0, b"y").unwrap();
    file.fsync().unwrap();
    drop(file);
    rig.unmount_and_find_nothing_left();
}

#[test]
fn p14_an_open_file_is_not_stale_while_its_last_name_is_removed() {
    let _turn = turn();
    let rig = restless();
    let file = let_go(&rig, "a", &pattern(1, PAGE));
    is_found_behind(rig, file, |volume| volume.remove(&volume.root().unwrap(), "a", Removal::File).unwrap());
}

#[test]
fn p14_an_open_file_is_not_stale_while_another_takes_its_place() {
    let _turn = turn();
    let rig = restless();
    let file = let_go(&rig, "a", &pattern(1, PAGE));
    drop(rig.create("b"));
    is_found_behind(rig, file, |volume| {
        let root = volume.root().unwrap();
        volume.rename(&root, "b", &root, "a", RenameMode::Replace).unwrap();
    });
}

/// A file that another program removed is gone. A caller that asks for it gets an error and does not wait for ever.
#[test]
fn an_open_file_that_others_removed_is_stale_once_its_node_was_closed() {
    let _turn = turn();
    let rig = restless();
    let file = let_go(&rig, "a", &pattern(1, PAGE));
    rig.disk.faults.add(slackwater_testkit::Rule::fail(slackwater::ErrorKind::Stale).on("reopen"));
    let error = file.fsync().unwrap_err();
    assert_eq!(error.kind(), slackwater::ErrorKind::Stale);
    rig.disk.faults.clear();
    file.fsync().unwrap();
}
