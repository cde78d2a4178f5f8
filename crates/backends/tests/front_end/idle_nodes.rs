//! The front end knows many inodes, and the engine keeps few of their nodes open on the backend.

use slackwater::backend::{Call, Limits, NewNode, Removal};
use slackwater::{ErrorKind, File, Tunables, WriteFlags, WriteRequest, Written};
use slackwater_testkit::Rule;

use crate::rig::{Disk, Rig, by_hand, limits};

const KNOWN: usize = 50;
const KEPT: u32 = 10;

#[test]
fn of_many_known_inodes_few_stay_open_and_all_work() {
    let rig = Rig::with(Disk::new(), Tunables { idle_nodes: KEPT, ..by_hand() });
    let root = rig.volume.root().unwrap();
    let known: Vec<_> =
        (0..KNOWN).map(|nth| rig.volume.make(&root, format!("f{nth}"), NewNode::File, 0o644).unwrap()).collect();
    // A closed node is opened again; the layer below counts the opens.
    let reopened = rig.disk.faults.add(Rule::fail(slackwater::ErrorKind::Io).on("reopen"));
    let closed = known
        .iter()
        .filter(|inode| rig.volume.getxattr(inode, "user.none").unwrap_err().kind() == slackwater::ErrorKind::Io);
    let closed = closed.count();
    assert!(closed >= KNOWN - KEPT as usize - 1, "{closed} of {KNOWN} were let go");
    assert!(rig.disk.faults.strikes(reopened) >= closed as u64);
    rig.disk.faults.clear();
    for (nth, inode) in known.iter().enumerate() {
        let file = slackwater::File::open(inode).unwrap();
        file.write_at(0, format!("{nth}").as_bytes()).unwrap();
    }
    rig.volume.sync().unwrap();
    for nth in 0..KNOWN {
        assert_eq!(rig.stored(&format!("f{nth}")).unwrap(), format!("{nth}").as_bytes());
    }
    drop((known, root));
    rig.unmount_and_find_nothing_left();
}

#[test]
fn a_file_that_lost_its_name_while_its_node_was_closed_still_exists() {
    let rig = Rig::with(Disk::new(), Tunables { idle_nodes: 0, ..by_hand() });
    let root = rig.volume.root().unwrap();
    let file = rig.create("a");
    file.write_at(0, b"still here").unwrap();
    file.fsync().unwrap();
    let inode = file.inode().clone();
    drop(file);
    rig.volume.remove(&root, "a", Removal::File).unwrap();
    let file = slackwater::File::open(&inode).unwrap();
    assert_eq!(crate::rig::read_all(&file), b"still here");
    assert_eq!(rig.volume.revalidate(&inode, std::time::Duration::ZERO).unwrap().nlink, 0);
    drop(file);
    drop((inode, root));
    rig.unmount_and_find_nothing_left();
}

/// An open file does not keep its node open if it is clean. Reads, writes and fsync open the node again.
#[test]
fn p14_of_many_open_files_few_nodes_stay_open_and_all_work() {
    let rig = Rig::with(Disk::new(), Tunables { idle_nodes: KEPT, ..by_hand() });
    let files: Vec<File> = (0..KNOWN).map(|nth| rig.create(&format!("f{nth}"))).collect();
    let text = |nth: usize, round: usize| format!("{nth} in round {round}").into_bytes();
    for round in 0..3 {
        for (nth, file) in files.iter().enumerate() {
            let text = text(nth, round);
            assert_eq!(
                file.write(WriteRequest::at(0).flags(WriteFlags::DONTCACHE), &text).unwrap(),
                Written::Bytes(text.len())
            );
        }
        rig.volume.sync().unwrap();
        let hold = rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("reopen"));
        let closed = files.iter().filter(|file| file.fsync().is_err()).count();
        assert!(closed >= KNOWN - KEPT as usize - 1, "{closed} of {KNOWN} were let go");
        assert!(rig.disk.faults.strikes(hold) >= closed as u64);
        rig.disk.faults.clear();
        for (nth, file) in files.iter().enumerate() {
            assert_eq!(crate::rig::read_all(file), text(nth, round));
            file.fsync().unwrap();
        }
    }
    drop(files);
    rig.unmount_and_find_nothing_left();
}

/// A dirty file keeps its node, so that its data can be written back whatever happens to its name.
#[test]
fn the_node_of_a_dirty_file_stays_open() {
    let rig = Rig::with(Disk::new(), Tunables { idle_nodes: 0, ..by_hand() });
    let file = rig.create("a");
    file.write_at(0, b"dirty").unwrap();
    rig.disk.faults.add(Rule::fail(ErrorKind::Stale).on("reopen"));
    file.fsync().unwrap();
    assert_eq!(rig.stored("a").unwrap(), b"dirty");
}

/// On a backend that cannot find nodes again, the nodes of open files stay open.
#[test]
fn a_node_that_cannot_be_opened_again_stays_open_while_in_use() {
    let disk = Disk::with_limits(Limits { reopens: false, ..limits() });
    let rig = Rig::with(disk, Tunables { idle_nodes: 0, ..by_hand() });
    let file = rig.create("a");
    assert_eq!(
        file.write(WriteRequest::at(0).flags(WriteFlags::DONTCACHE), b"still here").unwrap(),
        Written::Bytes(10)
    );
    rig.volume.sync().unwrap();
    let reopened = rig.disk.faults.add(Rule::fail(ErrorKind::Stale).on("reopen"));
    assert_eq!(crate::rig::read_all(&file), b"still here");
    file.fsync().unwrap();
    assert_eq!(rig.disk.faults.strikes(reopened), 0);
    let inode = file.inode().clone();
    drop(file);
    assert_eq!(File::open(&inode).unwrap_err().kind(), ErrorKind::Stale, "closed, it is let go");
}

/// A file was truncated to zero, and its node was closed before its new bytes came. The backend still learns that they
/// must reach the disk with the truncation.
#[test]
fn the_new_bytes_of_a_truncated_file_are_known_through_any_node() {
    let rig = Rig::with(Disk::new(), Tunables { idle_nodes: 0, ..by_hand() });
    let file = rig.create("a");
    let refills = || {
        let refills = |call: &Call| matches!(call, Call::Write(unit) if unit.refills());
        rig.disk.faults.add(Rule::fail(ErrorKind::Io).matching(refills))
    };
    file.write_at(0, b"old").unwrap();
    file.fsync().unwrap();
    let rule = refills();
    file.write_at(0, b"older").unwrap();
    file.fsync().unwrap();
    assert_eq!(rig.disk.faults.strikes(rule), 0, "it was not emptied");
    file.set_len(0).unwrap();
    file.write_at(0, b"new").unwrap();
    file.fsync().unwrap_err();
    assert_eq!(rig.disk.faults.strikes(rule), 1);
    rig.disk.faults.clear();
    file.fsync().unwrap();
    let rule = refills();
    file.write_at(0, b"newer").unwrap();
    file.fsync().unwrap();
    assert_eq!(rig.disk.faults.strikes(rule), 0, "the others are durable");
}
