//! Files that only an open node leads to. Each tenant may hold some of them open, and none uses up the share of
//! another.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use slackwater::backend::{Backend, Call, Creator, Limits, MemBackend, NewNode, NodeSupply, Removal, RenameMode};
use slackwater::{ErrorKind, File, InodeRef, Memcg, Tunables, WriteFlags, WriteRequest, Written};
use slackwater_testkit::{Fault, Rule};

use crate::rig::{Disk, Rig, by_hand, limits, read_all, try_write};

/// Held nodes of all tenants together; one tenant alone may hold half of them.
const HELD: u32 = 8;
const CREATOR: Creator = Creator { uid: 0, gid: 0, umask: 0 };

/// A backend that reports how many more nodes it can open.
struct Narrow {
    inner: Arc<MemBackend>,
    supply: Arc<Mutex<NodeSupply>>,
}

impl Backend for Narrow {
    fn submit(&self, call: Call) {
        self.inner.submit(call);
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn node_supply(&self) -> NodeSupply {
        *self.supply.lock().unwrap()
    }
}

/// A volume on which few nodes may be held, and the number that its backend reports.
fn narrow(limits: Limits) -> (Rig, Arc<Mutex<NodeSupply>>) {
    narrow_with(limits, 0)
}

fn narrow_with(limits: Limits, idle_nodes: u32) -> (Rig, Arc<Mutex<NodeSupply>>) {
    let mem = Arc::new(MemBackend::with_limits(limits));
    let supply = Arc::new(Mutex::new(NodeSupply::Enough));
    let (backend, faults) = Fault::new(Arc::new(Narrow { inner: mem.clone(), supply: Arc::clone(&supply) }));
    let disk = Disk { mem, faults, backend: Arc::new(backend) };
    (Rig::with(disk, Tunables { held_nodes: HELD, idle_nodes, ..by_hand() }), supply)
}

fn make(rig: &Rig, name: &str) -> InodeRef {
    rig.volume.make(&rig.volume.root().unwrap(), name, NewNode::File, 0o644).unwrap()
}

/// A file whose text is durable and not cached, open for `tenant`.
fn open_for(rig: &Rig, tenant: &Arc<Memcg>, name: &str) -> File {
    let file = File::open_for(&make(rig, name), tenant).unwrap();
    assert_eq!(
        file.write(WriteRequest::at(0).flags(WriteFlags::DONTCACHE), name.as_bytes()).unwrap(),
        Written::Bytes(name.len())
    );
    rig.volume.sync().unwrap();
    file
}

fn remove(rig: &Rig, tenant: &Arc<Memcg>, name: &str) -> Result<(), ErrorKind> {
    let root = rig.volume.root().unwrap();
    rig.volume.remove_for(tenant, &root, name.as_ref(), Removal::File).map_err(|error| error.kind())
}

#[test]
fn p14_a_tenant_with_too_many_nameless_files_open_is_refused_and_no_other() {
    let (rig, _) = narrow(limits());
    let [hog, other] = ["hog", "other"].map(|name| rig.engine.memcg_create(name, None, None));
    let names: Vec<_> = (0..6).map(|nth| format!("hog{nth}")).collect();
    let mut files: Vec<_> = names.iter().map(|name| open_for(&rig, &hog, name)).collect();
    let removed: Vec<_> = names.iter().map(|name| remove(&rig, &hog, name)).collect();
    let refused = Err(ErrorKind::TooManyOpen);
    assert_eq!(removed, [Ok(()), Ok(()), Ok(()), Ok(()), refused, refused]);
    let root = rig.volume.root().unwrap();
    drop(open_for(&rig, &hog, "new"));
    let onto_it =
        rig.volume.rename_after(&hog, (&root, "new".as_ref()), (&root, "hog4".as_ref()), RenameMode::Replace, |_| {});
    assert_eq!(onto_it.unwrap_err().kind(), ErrorKind::TooManyOpen);
    let made = rig.volume.make_tmpfile(&root, 0o644, CREATOR).unwrap();
    assert_eq!(File::open_for(&made, &hog).unwrap_err().kind(), ErrorKind::TooManyOpen);
    let own = File::open_for(&made, &other).unwrap();
    own.write_at(0, b"own").unwrap();

    // The tenant may still remove names of files that it does not have open, and other tenants are not limited.
    assert_eq!(remove(&rig, &hog, "new"), Ok(()));
    let file = open_for(&rig, &other, "other");
    assert_eq!(remove(&rig, &other, "other"), Ok(()));
    for (name, file) in names.iter().zip(&files) {
        assert_eq!(read_all(file), name.as_bytes(), "as long as it has a name, or is held");
    }
    assert_eq!((read_all(&file), read_all(&own)), (b"other".to_vec(), b"own".to_vec()));

    // A closed file is given back. Of the number that is left, the others use two by now.
    drop(files.drain(..2));
    assert_eq!(remove(&rig, &hog, "hog4"), Ok(()));
    assert_eq!(remove(&rig, &hog, "hog5"), refused);
    drop((files, file, own, made, root));
    rig.unmount_and_find_nothing_left();
}

/// Other tenants remove files that a tenant has open. The removal is never refused. The files may be held for the
/// tenant. If none can be held, a file is lost to its user once nodes are short.
#[test]
fn p14_files_that_others_have_open_can_always_be_removed() {
    let (rig, supply) = narrow(limits());
    let [hog, other] = ["hog", "other"].map(|name| rig.engine.memcg_create(name, None, None));
    let names: Vec<_> = (0..9).map(|nth| format!("hog{nth}")).collect();
    let files: Vec<_> = names.iter().map(|name| open_for(&rig, &hog, name)).collect();
    for name in &names {
        assert_eq!(remove(&rig, &other, name), Ok(()));
    }
    *supply.lock().unwrap() = NodeSupply::Short;
    // Creating files evicts others, beyond the few that any volume keeps.
    let more: Vec<_> = (0..40).map(|nth| make(&rig, &format!("more{nth}"))).collect();
    let read = |file: &File| {
        let mut bytes = vec![0; 10];
        file.read_at(0, &mut bytes).map(|len| bytes[..len].to_vec()).map_err(|error| error.kind())
    };
    let found: Vec<_> = files.iter().map(read).collect();
    let held = found.iter().zip(&names).filter(|(found, name)| found.as_deref() == Ok(name.as_bytes())).count();
    assert!(held >= 6, "four are held by the hog, and two of what it leaves by the other: {found:?}");
    assert!(found.contains(&Err(ErrorKind::Stale)), "not all can be held: {found:?}");
    // Their attributes are known, and they have no name.
    let attrs = files.iter().map(|file| rig.volume.revalidate(file.inode(), Duration::ZERO).unwrap().nlink);
    assert!(attrs.into_iter().all(|nlink| nlink == 0));
    *supply.lock().unwrap() = NodeSupply::Enough;
    drop((files, more));
    rig.unmount_and_find_nothing_left();
}

/// A tenant opened a file first, and another has it open when it loses its last name: the file counts for the second
/// one.
#[test]
fn p14_a_nameless_file_counts_for_a_tenant_that_has_it_open() {
    let (rig, _) = narrow(limits());
    let [first, second] = ["first", "second"].map(|name| rig.engine.memcg_create(name, None, None));
    let files: Vec<_> = (0..4)
        .map(|nth| {
            let file = open_for(&rig, &first, &format!("f{nth}"));
            let own = File::open_for(file.inode(), &second).unwrap();
            remove(&rig, &first, &format!("f{nth}")).unwrap();
            (file, own)
        })
        .collect();
    let is_full = |tenant: &Arc<Memcg>| {
        let name = format!("of {}", tenant.name());
        let file = open_for(&rig, tenant, &name);
        let is_full = remove(&rig, tenant, &name) == Err(ErrorKind::TooManyOpen);
        drop(file);
        let _ = remove(&rig, tenant, &name);
        is_full
    };
    assert_eq!((is_full(&first), is_full(&second)), (true, false));
    let own: Vec<_> = files.into_iter().map(|(_, own)| own).collect();
    assert_eq!((is_full(&first), is_full(&second)), (false, true), "the first has closed them");
    for (nth, file) in own.iter().enumerate() {
        assert_eq!(read_all(file), format!("f{nth}").as_bytes());
    }
    drop(own);
    assert!(!is_full(&second));
    rig.unmount_and_find_nothing_left();
}

/// On a backend that cannot find nodes again, each open file has to be held.
#[test]
fn p14_a_tenant_has_a_bound_of_open_files_where_nodes_are_not_opened_again() {
    let (rig, _) = narrow(Limits { reopens: false, ..limits() });
    let [hog, other] = ["hog", "other"].map(|name| rig.engine.memcg_create(name, None, None));
    let inodes: Vec<_> = (0..5).map(|nth| make(&rig, &format!("f{nth}"))).collect();
    let opened: Vec<_> = inodes.iter().map(|inode| File::open_for(inode, &hog)).collect();
    let refused: Vec<_> = opened.iter().map(|file| file.as_ref().err().map(slackwater::FileError::kind)).collect();
    assert_eq!(refused, [None, None, None, None, Some(ErrorKind::TooManyOpen)]);
    // A file that is open can be opened again, by any tenant.
    let again: Vec<_> = (0..20).map(|_| File::open_for(&inodes[0], &hog).unwrap()).collect();
    let others = [File::open_for(&inodes[4], &other).unwrap(), File::open_for(&inodes[4], &hog).unwrap()];
    drop((opened, again, others, inodes));
    let file = open_for(&rig, &hog, "last");
    assert_eq!(read_all(&file), b"last");
    drop(file);
    rig.unmount_and_find_nothing_left();
}

/// All nodes are open when the backend runs short of descriptors, as it does when reads and writes need descriptors of
/// their own. Each use of a node closes some of the others, until only the few remain that any volume keeps.
#[test]
fn p14_each_use_of_a_node_closes_others_while_nodes_are_short() {
    let (rig, supply) = narrow_with(limits(), 1000);
    let files: Vec<_> = (0..100).map(|nth| rig.create(&format!("f{nth}"))).collect();
    let count_open = || {
        rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("reopen"));
        let open = files.iter().filter(|file| file.fsync().is_ok()).count();
        rig.disk.faults.clear();
        open
    };
    assert_eq!(count_open(), 100);
    *supply.lock().unwrap() = NodeSupply::Short;
    for file in files.iter().cycle().skip(90).take(40) {
        file.fsync().unwrap();
    }
    *supply.lock().unwrap() = NodeSupply::Enough;
    let open = count_open();
    assert!((1..=20).contains(&open), "{open} nodes are open");
    drop(files);
    rig.unmount_and_find_nothing_left();
}

/// All volumes together may have few files dirty. Each gets some, and all data is written.
#[test]
fn p14_no_volume_keeps_others_from_having_files_dirty() {
    let tunables = Tunables { pinned_nodes_of_all: 20, ..by_hand() };
    let rig = Rig::with(Disk::new(), tunables);
    let (_disk, beside) = rig.mount("beside");
    let dirtied = |files: &[File]| files.iter().filter(|file| try_write(file, 0, b"x") == Written::Bytes(1)).count();
    let create = |volume| (0..40).map(|nth| crate::rig::create(volume, &format!("f{nth}"))).collect::<Vec<_>>();
    let (own, others) = (create(&rig.volume), create(&beside));
    assert_eq!((dirtied(&own), dirtied(&others)), (20, 16));
    for file in own.iter().chain(&others) {
        file.write_at(0, b"y").unwrap();
    }
    for volume in [&rig.volume, &beside] {
        volume.sync().unwrap();
    }
    assert_eq!(dirtied(&others), 20, "what is durable counts no more");
    drop((own, others));
    beside.umount(slackwater::UmountOptions::default()).unwrap();
    rig.unmount_and_find_nothing_left();
}

/// While the backend has almost no free descriptors, few files are dirty at a time, and writers of others wait until
/// those are durable.
#[test]
fn p14_few_files_are_dirty_while_nodes_are_scarce() {
    let (rig, supply) = narrow(limits());
    let files: Vec<_> = (0..40).map(|nth| rig.create(&format!("f{nth}"))).collect();
    *supply.lock().unwrap() = NodeSupply::Scarce;
    let text = |nth: usize| format!("this is {nth}").into_bytes();
    let is_taken = |(nth, file): (usize, &File)| try_write(file, 0, &text(nth)) == Written::Bytes(text(nth).len());
    assert_eq!(files.iter().enumerate().filter(|file| is_taken(*file)).count(), 16);
    for (nth, file) in files.iter().enumerate() {
        file.write_at(0, &text(nth)).unwrap();
    }
    rig.volume.sync().unwrap();
    for nth in 0..files.len() {
        assert_eq!(rig.stored(&format!("f{nth}")).unwrap(), text(nth));
    }
    drop(files);
    rig.unmount_and_find_nothing_left();
}
