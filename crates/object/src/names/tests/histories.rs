//! Random histories of calls on names, beside the reference backend.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::sync::mpsc;

use object_store::memory::InMemory;
use proptest::prelude::*;
use slackwater::ErrorKind;
use slackwater::backend::{
    Attr, AttrChange, Backend, Call, Creator, Done, Found, MemBackend, NewNode, Node, Removal, RenameMode, XattrMode,
};
use slackwater_sync::shim::Arc;

use crate::contents::tests::rig::rounds;
use crate::format::ROOT;
use crate::names::{self, Numbered};
use crate::runtime;
use crate::tree::{Place, Stop, Tree, TreeOptions, View};

/// A call. Numbers of nodes count those that are open, modulo their number.
#[derive(Clone, Debug)]
enum Step {
    Make {
        dir: usize,
        name: Name,
        kind: u8,
        mode: u32,
        creator: Option<(u32, u32, u32)>,
    },
    Tmpfile {
        dir: usize,
        mode: u32,
    },
    Lookup {
        dir: usize,
        name: Name,
    },
    Parent {
        dir: usize,
    },
    Link {
        node: usize,
        dir: usize,
        name: Name,
    },
    Remove {
        dir: usize,
        name: Name,
        removal: bool,
    },
    Rename {
        from_dir: usize,
        from: Name,
        to_dir: usize,
        to: Name,
        mode: u8,
    },
    Chmod {
        node: usize,
        mode: u32,
    },
    Chown {
        node: usize,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    Setxattr {
        node: usize,
        name: Name,
        len: usize,
        mode: u8,
    },
    Getxattr {
        node: usize,
        name: Name,
    },
    Removexattr {
        node: usize,
        name: Name,
    },
    Readlink {
        node: usize,
    },
    Close {
        node: usize,
    },
    /// Commits, and forgets what is in memory.
    Forget,
    /// Ends the process and opens the volume again.
    Reopen,
}

/// Few, so that they meet.
type Name = u8;

fn name(number: Name) -> OsString {
    match number % 16 {
        14 => "..".into(),
        15 => "n".repeat(256).into(),
        number => ["a", "b", "c", "d"][usize::from(number % 4)].into(),
    }
}

fn xattr(number: Name) -> OsString {
    ["user.a", "user.b", "trusted.c", "security.d", "user.", "x"][usize::from(number % 6)].into()
}

fn step() -> impl Strategy<Value = Step> {
    let (node, name) = (0..32_usize, any::<Name>());
    let creator = proptest::option::of((0..3_u32, 0..3_u32, proptest::sample::select(vec![0, 0o022, 0o077])));
    let mode = proptest::sample::select(vec![0o644, 0o755, 0o2775, 0o4711, 0o1777]);
    let id = proptest::option::of(proptest::sample::select(vec![0, 1, 2]));
    prop_oneof![
        8 => (node.clone(), name, 0..6_u8, mode.clone(), creator)
            .prop_map(|(dir, name, kind, mode, creator)| Step::Make { dir, name, kind, mode, creator }),
        1 => (node.clone(), mode.clone()).prop_map(|(dir, mode)| Step::Tmpfile { dir, mode }),
        2 => (node.clone(), name).prop_map(|(dir, name)| Step::Lookup { dir, name }),
        1 => node.clone().prop_map(|dir| Step::Parent { dir }),
        3 => (node.clone(), node.clone(), name).prop_map(|(node, dir, name)| Step::Link { node, dir, name }),
        4 => (node.clone(), name, any::<bool>()).prop_map(|(dir, name, removal)| Step::Remove { dir, name, removal }),
        6 => (node.clone(), name, node.clone(), name, 0..4_u8)
            .prop_map(|(from_dir, from, to_dir, to, mode)| Step::Rename { from_dir, from, to_dir, to, mode }),
        1 => (node.clone(), mode).prop_map(|(node, mode)| Step::Chmod { node, mode }),
        1 => (node.clone(), id.clone(), id).prop_map(|(node, uid, gid)| Step::Chown { node, uid, gid }),
        2 => (node.clone(), name, 0..600_usize, 0..3_u8)
            .prop_map(|(node, name, len, mode)| Step::Setxattr { node, name, len, mode }),
        1 => (node.clone(), name).prop_map(|(node, name)| Step::Getxattr { node, name }),
        1 => (node.clone(), name).prop_map(|(node, name)| Step::Removexattr { node, name }),
        1 => node.clone().prop_map(|node| Step::Readlink { node }),
        1 => node.prop_map(|node| Step::Close { node }),
        3 => Just(Step::Forget),
        1 => Just(Step::Reopen),
    ]
}

/// The tree under test and the reference, with the nodes that are open in both.
struct Pair {
    tree: Arc<Tree>,
    /// `None`: the tree is in memory alone.
    place: Option<Place>,
    reference: MemBackend,
    open: Vec<(u64, Node)>,
}

impl Pair {
    fn new(place: Option<Place>) -> Self {
        let tree = match &place {
            Some(place) => open(place),
            None => Arc::new(Tree::in_memory()),
        };
        let mut pair = Self { tree, place, reference: MemBackend::new(), open: Vec::new() };
        let made = pair.run(|view| {
            names::make_root(view, 0o755, (0, 0));
            Ok(())
        });
        made.expect("nothing fails");
        pair.open_root();
        pair
    }

    fn open_root(&mut self) {
        let root = self.ask(|done| Call::Root { done }).expect("a volume has a root").node;
        self.open.push((ROOT, root));
    }

    fn ask<T: Send + 'static>(&self, call: impl FnOnce(Done<T>) -> Call) -> Result<T, ErrorKind> {
        let (send, answers) = mpsc::channel();
        self.reference.submit(call(Done::new(move |answer| send.send(answer).expect("the receiver lives"))));
        answers.recv().expect("it answers at once").map_err(|error| error.kind())
    }

    fn run<T>(&self, call: impl FnMut(&mut View<'_>) -> Result<T, Stop>) -> Result<T, ErrorKind> {
        let answer = match &self.place {
            Some(_) => block_on(self.tree.run(call)),
            None => self.tree.run_in_memory(call),
        };
        answer.map_err(|error| error.kind())
    }

    fn node(&self, number: usize) -> (u64, Node) {
        self.open[number % self.open.len()].clone()
    }

    /// Both found a node, or failed in the same way.
    fn found(&mut self, made: Result<Numbered, ErrorKind>, expected: Result<Found, ErrorKind>) {
        match (made, expected) {
            (Ok((ino, inode)), Ok(found)) => {
                assert_eq!(facts(names::attr_of(0, ino, &inode)), facts(found.attr));
                self.open.push((ino, found.node));
            }
            (made, expected) => assert_eq!(made.err(), expected.err()),
        }
    }

    fn changed(made: Result<Numbered, ErrorKind>, expected: Result<Attr, ErrorKind>) {
        let made = made.map(|(ino, inode)| facts(names::attr_of(0, ino, &inode)));
        assert_eq!(made, expected.map(facts));
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Make { dir, name: number, kind, mode, creator } => {
                let ((ino, dir), name, what) = (self.node(dir), name(number), kind_of(kind));
                let creator = creator.map(|(uid, gid, umask)| Creator { uid, gid, umask });
                let made = self.run(|view| names::make(view, ino, &name, &what, mode, creator));
                let expected = self.ask(|done| Call::Make { dir, name, what, mode, creator, done });
                self.found(made, expected);
            }
            Step::Tmpfile { dir, mode } => {
                let ((ino, dir), creator) = (self.node(dir), None);
                let made = self.run(|view| names::tmpfile(view, ino, mode, creator));
                let expected = self.ask(|done| Call::Tmpfile { dir, mode, creator, done });
                self.found(made, expected);
            }
            Step::Lookup { dir, name: number } => {
                let ((ino, dir), name) = (self.node(dir), name(number));
                let found = self.run(|view| names::lookup(view, ino, &name));
                let expected = self.ask(|done| Call::Lookup { dir, name, done });
                self.found(found, expected);
            }
            Step::Parent { dir } => {
                let (ino, dir) = self.node(dir);
                let found = self.run(|view| names::parent(view, ino));
                let expected = self.ask(|done| Call::Parent { dir, done });
                self.found(found, expected);
            }
            Step::Link { node, dir, name: number } => {
                let ((ino, node), (dir_ino, dir), name) = (self.node(node), self.node(dir), name(number));
                let linked = self.run(|view| names::link(view, ino, dir_ino, &name));
                Self::changed(linked, self.ask(|done| Call::Link { node, dir, name, done }));
            }
            Step::Remove { dir, name: number, removal } => {
                let ((ino, dir), name) = (self.node(dir), name(number));
                let removal = if removal { Removal::File } else { Removal::Directory };
                let removed = self.run(|view| names::remove(view, ino, &name, removal));
                let expected = self.ask(|done| Call::Remove { dir, name, removal, done });
                self.found(removed, expected);
            }
            Step::Rename { from_dir, from, to_dir, to, mode } => {
                let ((from_ino, from_dir), (to_ino, to_dir)) = (self.node(from_dir), self.node(to_dir));
                let (from, to) = (name(from), name(to));
                let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange, RenameMode::Whiteout];
                let mode = modes[usize::from(mode) % modes.len()];
                let moved = self.run(|view| names::rename(view, (from_ino, &from), (to_ino, &to), mode));
                let expected = self.ask(|done| Call::Rename { from_dir, from, to_dir, to, mode, done });
                assert_eq!(moved.as_ref().map(|_| ()).map_err(|kind| *kind), expected);
                if let Ok(Some((ino, inode))) = moved
                    && inode.nlink == 0
                    && !self.is_open(ino)
                {
                    self.free(ino);
                }
            }
            Step::Chmod { node, mode } => {
                self.set(node, AttrChange { mode: Some(mode), ..AttrChange::default() });
            }
            Step::Chown { node, uid, gid } => self.set(node, AttrChange { uid, gid, ..AttrChange::default() }),
            Step::Setxattr { node, name, len, mode } => {
                let ((ino, node), name, value) = (self.node(node), xattr(name), vec![len as u8; len]);
                let mode = [XattrMode::Set, XattrMode::Create, XattrMode::Replace][usize::from(mode) % 3];
                let set = self.run(|view| names::setxattr(view, ino, &name, &value, mode));
                Self::changed(set, self.ask(|done| Call::Setxattr { node, name, value, mode, done }));
            }
            Step::Getxattr { node, name } => {
                let ((ino, node), name) = (self.node(node), xattr(name));
                let value = self.run(|view| Ok(names::getxattr(view, ino, &name)?.to_vec()));
                assert_eq!(value, self.ask(|done| Call::Getxattr { node, name, done }));
            }
            Step::Removexattr { node, name } => {
                let ((ino, node), name) = (self.node(node), xattr(name));
                let removed = self.run(|view| names::removexattr(view, ino, &name));
                Self::changed(removed, self.ask(|done| Call::Removexattr { node, name, done }));
            }
            Step::Readlink { node } => {
                let (ino, node) = self.node(node);
                let target = self.run(|view| names::readlink(view, ino));
                assert_eq!(target, self.ask(|done| Call::Readlink { node, done }));
            }
            Step::Forget => {
                if self.place.is_some() {
                    block_on(self.tree.commit()).expect("nothing fails");
                    self.tree.forget();
                }
            }
            Step::Reopen => {
                let Some(place) = &self.place else { return };
                block_on(self.tree.commit()).expect("nothing fails");
                self.tree = open(place);
                self.open.clear();
                self.open_root();
                for ino in self.run(|view| names::orphans(view, 0, 1000)).expect("nothing fails") {
                    self.free(ino);
                }
            }
            Step::Close { node } => {
                let at = node % self.open.len();
                if at != 0 {
                    let (ino, _) = self.open.swap_remove(at);
                    let nlink = self.run(|view| names::inode(view, ino)).expect("it was open").nlink;
                    if nlink == 0 && !self.is_open(ino) {
                        self.free(ino);
                    }
                }
            }
        }
    }

    fn set(&self, node: usize, change: AttrChange) {
        let (ino, node) = self.node(node);
        let set = self.run(|view| Ok(names::setattr(view, ino, change)?.expect("nothing is cut")));
        Self::changed(set, self.ask(|done| Call::Setattr { node, change, done }));
    }

    fn is_open(&self, ino: u64) -> bool {
        self.open.iter().any(|(open, _)| *open == ino)
    }

    fn free(&self, ino: u64) {
        assert_eq!(self.run(|view| names::free_step(view, ino)), Ok(true));
        assert_eq!(self.run(|view| names::inode(view, ino)).err(), Some(ErrorKind::Stale));
    }

    /// Everything below a directory, by path, and the number of inodes seen.
    fn compare(&self, ino: u64, node: &Node, inos: &mut BTreeMap<u64, u32>) {
        let attr = self.run(|view| names::inode(view, ino)).map(|inode| names::attr_of(0, ino, &inode));
        let expected = {
            let node = node.clone();
            self.ask(|done| Call::Getattr { node, done })
        };
        assert_eq!(attr.map(facts), expected.map(facts));
        *inos.entry(ino).or_default() += 1;
        let mut listed = self.run(|view| names::listxattr(view, ino)).expect("it exists");
        let mut expected = {
            let node = node.clone();
            self.ask(|done| Call::Listxattr { node, done }).expect("it exists")
        };
        listed.sort();
        expected.sort();
        assert_eq!(listed, expected);
        for name in listed {
            let value = self.run(|view| Ok(names::getxattr(view, ino, &name)?.to_vec()));
            let node = node.clone();
            assert_eq!(value, self.ask(|done| Call::Getxattr { node, name, done }));
        }
        let entries = self.run(|view| names::readdir_plus(view, ino, 0));
        let expected = {
            let node = node.clone();
            self.ask(|done| Call::ReaddirPlus { node, cookie: 0, done })
        };
        let (Ok(mut entries), Ok(mut expected)) = (entries, expected) else { return };
        entries.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
        expected.sort_by(|one, other| one.entry.name.cmp(&other.entry.name));
        let names = |names: &mut dyn Iterator<Item = &OsStr>| names.map(OsStr::to_owned).collect::<Vec<_>>();
        assert_eq!(
            names(&mut entries.iter().map(|(entry, _)| &*entry.name)),
            names(&mut expected.iter().map(|plus| &*plus.entry.name))
        );
        for ((entry, inode), plus) in entries.into_iter().zip(expected) {
            let found = plus.found.expect("it is there");
            let inode = inode.expect("it is sound");
            assert_eq!(facts(names::attr_of(0, entry.ino, &inode)), facts(found.attr));
            self.compare(entry.ino, &found.node, inos);
        }
    }

    /// The counters and the orphans fit what can be reached.
    fn check(&self) {
        let mut inos = BTreeMap::new();
        self.compare(ROOT, &self.open[0].1, &mut inos);
        let mut nameless: Vec<u64> =
            self.open.iter().map(|(ino, _)| *ino).filter(|ino| !inos.contains_key(ino)).collect();
        nameless.sort_unstable();
        nameless.dedup();
        assert_eq!(self.run(|view| names::orphans(view, 0, 1000)), Ok(nameless.clone()), "N2");
        let counted = self.run(|view| Ok(view.counters().inodes));
        assert_eq!(counted, Ok((inos.len() + nameless.len()) as u64));
        for (ino, names) in inos {
            let inode = self.run(|view| names::inode(view, ino)).expect("it exists");
            if names::is_directory(&inode) {
                assert_eq!(names, 1);
            } else {
                assert_eq!(inode.nlink, names, "N1");
            }
        }
    }
}

fn kind_of(number: u8) -> NewNode {
    match number {
        0 | 1 => NewNode::File,
        2 | 3 => NewNode::Directory,
        4 => NewNode::Symlink("target".into()),
        _ => NewNode::Special { type_bits: 0o010_000, rdev: 0 },
    }
}

fn open(place: &Place) -> Arc<Tree> {
    block_on(Tree::open(place.clone(), TreeOptions::by_hand())).expect("nothing fails").0
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    runtime::handle().expect("threads").block_on(future)
}

/// The attributes on which both must agree. Times differ: the reference counts changes.
fn facts(attr: Attr) -> impl PartialEq + std::fmt::Debug {
    (attr.kind, attr.mode, attr.nlink, attr.uid, attr.gid, attr.rdev, attr.size_bytes)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(rounds(500, 2000)) })]

    #[test]
    fn histories_end_as_in_the_reference(steps in proptest::collection::vec(step(), 1..60)) {
        let mut pair = Pair::new(None);
        for step in steps {
            pair.take(step);
        }
        pair.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(rounds(60, 200)) })]

    #[test]
    fn histories_with_commits_end_as_in_the_reference(steps in proptest::collection::vec(step(), 1..60)) {
        let mut pair = Pair::new(Some(Place::alone(Arc::new(InMemory::new()))));
        for step in steps {
            pair.take(step);
        }
        pair.check();
    }
}
