//! A front door knows many inodes; the engine keeps few of them open on the backend.

use slackwater::Tunables;
use slackwater::backend::{NewNode, Removal};
use slackwater_backends::Rule;

use crate::rig::{Disk, Rig, by_hand};

const KNOWN: usize = 50;
const KEPT: u32 = 10;

#[test]
fn of_many_known_inodes_few_stay_open_and_all_work() {
    let rig = Rig::with(Disk::new(), Tunables { idle_nodes: KEPT, ..by_hand() });
    let root = rig.volume.root().unwrap();
    let known: Vec<_> =
        (0..KNOWN).map(|nth| rig.volume.make(&root, format!("f{nth}"), NewNode::File, 0o644).unwrap()).collect();
    // Who was let go is opened again: counted by the layer that sees it.
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
fn a_file_that_lost_its_name_while_its_node_was_let_go_is_still_there() {
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
