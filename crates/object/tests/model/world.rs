//! The backend beside the model, through calls, failures, crashes and kills.

use std::collections::BTreeMap;
use std::sync::Arc;

use slackwater::ErrorKind;
use slackwater::backend::{AttrChange, Backend, Call, Done, FileHandle, Found, Node, SyncScope, XattrMode};
use slackwater_testkit::conformance::{Answer, Volume};

use crate::history::{Dice, LARGE, PAGE, Tally};
use crate::tree::{Change, Id, ROOT, Tree, difference, unlike_bytes};
use crate::walk::{Walk, walk};

/// Requests until a crash, at most: more than a life makes.
const REQUESTS: u64 = 60;
/// Crashes during one recovery, at most.
const CRASHES_IN_A_ROW: u64 = 3;

/// The answer of a call that was under way when the store went away: it may or may not have been made.
const UNKNOWN: ErrorKind = ErrorKind::Abandoned;

/// A store with a volume, and the backend on it.
pub(crate) trait Subject: Sized {
    /// Whether it has a store that can go away.
    const CRASHES: bool;

    /// Makes an empty volume.
    fn new() -> Self;

    /// Opens the volume, as the next process does. With `cut_after`, the store is gone after so many requests. `None` if
    /// it went away before the volume was open.
    fn open(&mut self, cut_after: Option<u64>) -> Option<Arc<dyn Backend>>;

    /// A function that returns whether the store is gone.
    fn cut(&self) -> Box<dyn Fn() -> bool + Send + Sync>;

    /// The machine crashed: nothing but the store is left.
    fn lose_memory(&mut self);

    /// Some of the next requests fail, in a way that `dice` choose.
    fn fault(&mut self, dice: &mut Dice);

    /// No request fails any more.
    fn heal(&mut self);

    /// Ends the process in the ordinary way. If that fails, the changes that are not in the store are left as a kill
    /// leaves them.
    fn close(&mut self) -> Result<(), String>;

    /// Checks the closed volume with its own tools: it has no fault, and after a collection no orphan.
    fn check(&mut self);
}

pub(crate) struct World<S> {
    subject: S,
    /// `None` only between two processes.
    volume: Option<Volume>,
    open: BTreeMap<Id, Node>,
    handles: BTreeMap<Id, FileHandle>,
    tree: Tree,
    /// Every state that a crash of the machine may leave: the last one that is known to be durable, and those since.
    moments: Vec<Tree>,
    /// States in which a call without an answer may have left the volume. No further call is made then.
    unknown: Vec<Tree>,
    /// Calls may fail.
    is_faulty: bool,
    tally: Tally,
}

impl<S: Subject> World<S> {
    pub(crate) fn new(dice: &mut Dice) -> Self {
        let mut subject = S::new();
        let backend = subject.open(None).expect("the store is there");
        let volume = Volume::new(backend).until_gone(subject.cut());
        let root = volume.ask(|done| Call::Root { done }).expect("a new volume has a root");
        let tree = Tree::new(root.attr.mode & 0o7777);
        let mut world = Self {
            subject,
            volume: Some(volume),
            open: BTreeMap::new(),
            handles: BTreeMap::new(),
            moments: vec![tree.clone()],
            unknown: Vec::new(),
            tree,
            is_faulty: false,
            tally: Tally::default(),
        };
        world.know(ROOT, root);
        world.remount(dice);
        world
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.volume().is_gone()
    }

    /// Whether the process waits for an answer that never comes.
    pub(crate) fn is_stuck(&self) -> bool {
        !self.unknown.is_empty()
    }

    fn volume(&self) -> &Volume {
        self.volume.as_ref().expect("a process between two calls")
    }

    fn know(&mut self, id: Id, found: Found) {
        self.handles.insert(id, found.handle);
        self.open.insert(id, found.node);
    }

    /// The open node. One that was closed is opened again by its handle, or by its name.
    fn node(&mut self, id: Id) -> Answer<Node> {
        if let Some(node) = self.open.get(&id) {
            return Ok(node.clone());
        }
        let found = match self.handles.get(&id) {
            Some(handle) => {
                let handle = handle.clone();
                self.volume().ask(|done| Call::Reopen { handle, id: None, nameless: false, done })?
            }
            None => {
                let (dir, name) = self.tree.name_of(id).expect("a node without a name stays open");
                let (dir, name) = (self.node(dir)?, name.into());
                self.volume().ask(|done| Call::Lookup { dir, name, done })?
            }
        };
        let node = found.node.clone();
        self.know(id, found);
        Ok(node)
    }

    #[track_caller]
    fn failed(&mut self, what: &str, kind: ErrorKind) {
        self.tally.failures += 1;
        assert!(self.is_faulty || self.is_cut(), "{what} fails with {kind:?}");
    }

    /// A call has no answer: the process makes no further one, and has left the volume in one of these `states`.
    #[track_caller]
    fn stop(&mut self, states: Vec<Tree>) {
        assert!(self.is_cut(), "a call is abandoned, and the store is there");
        self.unknown = states;
    }

    /// Makes a call that changes the volume.
    pub(crate) fn change(&mut self, change: &Change) {
        let mut after = self.tree.clone();
        let expected = after.apply(change);
        match (self.call(change), expected) {
            (Err(UNKNOWN), _) => self.stop(vec![self.tree.clone(), after]),
            (Err(kind), Ok(_)) => self.failed(&format!("{change:?}"), kind),
            (Err(_), Err(_)) => self.tally.refused += 1,
            (Ok(_), Err(_)) => panic!("{change:?} should be refused"),
            (Ok(found), Ok(made)) => {
                if let (Some(found), Some(made)) = (found, made) {
                    self.know(made, found);
                }
                self.count(change);
                self.tree = after;
                self.moments.push(self.tree.clone());
            }
        }
    }

    fn count(&mut self, change: &Change) {
        let tally = &mut self.tally;
        *match change {
            Change::Make { .. } | Change::Tmpfile { .. } | Change::Link { .. } => &mut tally.names,
            Change::Remove { .. } | Change::Rename { .. } => &mut tally.names,
            Change::Chmod { .. } | Change::SetXattr { .. } | Change::RemoveXattr { .. } => &mut tally.attributes,
            Change::Resize { .. } | Change::Range { .. } => &mut tally.ranges,
            Change::Write { bytes, .. } if bytes.len() as u64 >= LARGE => &mut tally.large_writes,
            Change::Write { .. } => &mut tally.writes,
        } += 1;
    }

    /// Makes the call, and returns the node that it made.
    fn call(&mut self, change: &Change) -> Answer<Option<Found>> {
        match change.clone() {
            Change::Make { dir, name, what, mode } => {
                let (dir, name) = (self.node(dir)?, name.into());
                self.volume().ask(|done| Call::Make { dir, name, what, mode, creator: None, done }).map(Some)
            }
            Change::Tmpfile { dir } => {
                let dir = self.node(dir)?;
                self.volume().ask(|done| Call::Tmpfile { dir, mode: 0o600, creator: None, done }).map(Some)
            }
            Change::Link { node, dir, name } => {
                let (node, dir, name) = (self.node(node)?, self.node(dir)?, name.into());
                self.volume().ask(|done| Call::Link { node, dir, name, done }).map(|_| None)
            }
            Change::Remove { dir, name, removal } => {
                self.keep_open(dir, &name)?;
                let (dir, name) = (self.node(dir)?, name.into());
                self.volume().ask(|done| Call::Remove { dir, name, removal, done }).map(|_| None)
            }
            Change::Rename { from: (from_dir, from), to: (to_dir, to), mode } => {
                self.keep_open(to_dir, &to)?;
                let (from_dir, to_dir, from, to) = (self.node(from_dir)?, self.node(to_dir)?, from.into(), to.into());
                self.volume().ask(|done| Call::Rename { from_dir, from, to_dir, to, mode, done }).map(|()| None)
            }
            Change::Chmod { node, mode } => self.set(node, AttrChange { mode: Some(mode), ..AttrChange::default() }),
            Change::Resize { node, size } => {
                self.set(node, AttrChange { size_bytes: Some(size), ..AttrChange::default() })
            }
            Change::Range { node, mode, offset: offset_bytes, len: len_bytes } => {
                let node = self.node(node)?;
                let call = |done| Call::Fallocate { node, mode, offset_bytes, len_bytes, done };
                self.volume().ask(call).map(|_| None)
            }
            Change::SetXattr { node, name, value } => {
                let (node, name, mode) = (self.node(node)?, name.into(), XattrMode::Set);
                self.volume().ask(|done| Call::Setxattr { node, name, value, mode, done }).map(|_| None)
            }
            Change::RemoveXattr { node, name } => {
                let (node, name) = (self.node(node)?, name.into());
                self.volume().ask(|done| Call::Removexattr { node, name, done }).map(|_| None)
            }
            Change::Write { node, offset, bytes } => {
                let node = self.node(node)?;
                let count = self.volume().submit_write(&node, offset, &bytes).wait().0?;
                assert_eq!(count, bytes.len(), "a short write");
                Ok(None)
            }
        }
    }

    fn set(&mut self, node: Id, change: AttrChange) -> Answer<Option<Found>> {
        let node = self.node(node)?;
        self.volume().ask(|done| Call::Setattr { node, change, done }).map(|_| None)
    }

    /// A node that is about to lose a name stays open, so that it can be read without one.
    fn keep_open(&mut self, dir: Id, name: &str) -> Answer<()> {
        match self.tree.entries(dir).get(name) {
            Some(id) => self.node(*id).map(drop),
            None => Ok(()),
        }
    }

    /// Writes to several files at once, and maybe syncs the volume meanwhile.
    pub(crate) fn write_together(&mut self, writes: &[Change], syncs: bool) {
        let mut units = Vec::new();
        for write in writes {
            let Change::Write { node, offset, bytes } = write else { unreachable!("writes alone") };
            match self.node(*node) {
                Ok(node) => units.push((self.volume().submit_write(&node, *offset, bytes), write)),
                Err(UNKNOWN) => self.stop(vec![self.tree.clone()]),
                Err(kind) => self.failed("reopening", kind),
            }
        }
        let sync = syncs.then(|| self.volume().submit(|done| Call::SyncVolume { done }));
        // After a crash, and after a kill: a write with an answer survives that.
        let (mut states, mut left) = (vec![self.tree.clone()], vec![self.tree.clone()]);
        let mut is_unknown = false;
        for (unit, write) in units {
            let (answer, _) = unit.wait();
            if let Some(kind) = answer.err().filter(|kind| *kind != UNKNOWN) {
                self.failed(&format!("{write:?}"), kind);
                continue;
            }
            // Writes that are under way together may be made in any order.
            let with = |state: &Tree| {
                let mut with = state.clone();
                with.apply(write).expect("a file can be written");
                with
            };
            states.extend(states.iter().map(with).collect::<Vec<_>>());
            let written: Vec<Tree> = left.iter().map(with).collect();
            if answer.is_ok() {
                self.tree = with(&self.tree);
                left = written;
                self.count(write);
            } else {
                left.extend(written);
                is_unknown = true;
            }
        }
        match sync.map(|sync| sync.wait().map_err(|error| error.kind())) {
            // It covers what was answered before it was submitted.
            Some(Ok(())) => self.moments = Vec::new(),
            Some(Err(UNKNOWN)) => is_unknown = true,
            Some(Err(kind)) => self.failed("a sync", kind),
            None => {}
        }
        self.tally.together += 1;
        if is_unknown {
            self.stop(left);
        }
        self.moments.extend(states);
        self.moments.push(self.tree.clone());
    }

    pub(crate) fn sync(&mut self, node: Option<Id>) {
        let node = node.map(|id| self.node(id)).transpose();
        let sync = |node: Option<Node>, done: Done<()>| match node {
            Some(node) => Call::Sync { node, scope: SyncScope::All, done },
            None => Call::SyncVolume { done },
        };
        let answer = node.and_then(|node| self.volume().ask(|done| sync(node, done)));
        match answer {
            Ok(()) => {
                self.tally.syncs += 1;
                self.moments = vec![self.tree.clone()];
            }
            Err(UNKNOWN) => self.stop(vec![self.tree.clone()]),
            Err(kind) => self.failed("a sync", kind),
        }
    }

    pub(crate) fn check_read(&mut self, node: Id, offset: u64, len: u64) {
        let (from, len) = (offset / PAGE * PAGE, len.next_multiple_of(PAGE));
        let answer = self.node(node).and_then(|node| self.volume().read(&node, from, len as usize));
        match answer {
            Ok(found) => {
                let bytes = self.tree.bytes(node).expect("a file");
                let from = bytes.len().min(from as usize);
                let wanted = &bytes[from..bytes.len().min(from + len as usize)];
                let unlike = unlike_bytes(wanted, &found);
                assert!(unlike.is_none(), "read of node {node} at {from}: {}", unlike.unwrap_or_default());
                self.tally.reads += 1;
            }
            Err(UNKNOWN) => self.stop(vec![self.tree.clone()]),
            Err(kind) => self.failed("a read", kind),
        }
    }

    /// Closes a node; one without a name is gone then.
    pub(crate) fn close(&mut self, id: Id) {
        if id != ROOT {
            self.open.remove(&id);
            self.tree.forget_unnamed(|id| self.open.contains_key(&id));
        }
    }

    pub(crate) fn fault(&mut self, dice: &mut Dice) {
        self.is_faulty = true;
        self.subject.fault(dice);
    }

    /// No request fails from here on; a sync ends what failed before.
    pub(crate) fn heal(&mut self) {
        self.subject.heal();
        self.sync(None);
        if self.moments.len() == 1 {
            self.is_faulty = false;
        }
    }

    pub(crate) fn remount(&mut self, dice: &mut Dice) {
        self.heal();
        self.end_process();
        match self.subject.close() {
            Ok(()) => {
                self.tally.remounts += 1;
                self.moments = vec![self.tree.clone()];
            }
            Err(error) => assert!(self.is_faulty || (self.subject.cut())(), "cannot close the volume: {error}"),
        }
        let allowed = if self.is_stuck() { self.unknown.clone() } else { vec![self.tree.clone()] };
        self.start(dice, allowed, false);
    }

    pub(crate) fn machine_crashes(&mut self, dice: &mut Dice) {
        self.tally.crashes += 1;
        self.end_process();
        self.subject.lose_memory();
        self.moments.append(&mut self.unknown);
        self.start(dice, self.moments.clone(), true);
    }

    pub(crate) fn process_is_killed(&mut self, dice: &mut Dice) {
        self.tally.kills += 1;
        self.end_process();
        let allowed = if self.is_stuck() { self.unknown.clone() } else { vec![self.tree.clone()] };
        self.moments.append(&mut self.unknown);
        self.start(dice, allowed, false);
    }

    fn end_process(&mut self) {
        self.tally.cuts += u64::from(self.is_cut());
        self.open.clear();
        self.volume = None;
    }

    /// Starts a process, which finds one of the `allowed` states; or one of all moments, if the memory of the machine is
    /// lost meanwhile.
    fn start(&mut self, dice: &mut Dice, mut allowed: Vec<Tree>, mut memory_is_lost: bool) {
        self.subject.heal();
        self.is_faulty = false;
        for attempt in 0.. {
            let may_cut = S::CRASHES && attempt < CRASHES_IN_A_ROW && dice.chance(2);
            if let Some(backend) = self.subject.open(may_cut.then(|| dice.below(REQUESTS))) {
                let volume = Volume::new(backend).until_gone(self.subject.cut());
                match walk(&volume) {
                    Ok(found) => {
                        self.volume = Some(volume);
                        self.adopt(found, &allowed, memory_is_lost);
                        return;
                    }
                    Err(kind) => assert!(volume.is_gone(), "a walk of the new process fails with {kind:?}"),
                }
            }
            self.tally.cuts += 1;
            if dice.chance(2) {
                self.subject.lose_memory();
                memory_is_lost = true;
                allowed.clone_from(&self.moments);
            }
        }
    }

    /// Checks what a new process found, and goes on with it.
    fn adopt(&mut self, found: Walk, allowed: &[Tree], memory_is_lost: bool) {
        let (seen, nodes): (BTreeMap<_, _>, Vec<_>) =
            found.into_iter().map(|(path, (seen, found))| ((path.clone(), seen), (path, found))).unzip();
        let is_found = |tree: &&Tree| difference(&tree.seen(), &seen).is_none();
        let Some(tree) = allowed.iter().rev().find(is_found) else {
            let newest = allowed.last().expect("at least one");
            let what = difference(&newest.seen(), &seen).unwrap_or_default();
            panic!("none of {} moments (memory lost: {memory_is_lost}); beside the newest: {what}", allowed.len());
        };
        if memory_is_lost {
            self.tally.crashes_that_lost += u64::from(difference(&self.tree.seen(), &seen).is_some());
            self.moments = vec![tree.clone()];
        } else {
            self.moments.push(tree.clone());
        }
        self.tree = tree.clone();
        self.tree.forget_unnamed(|_| false);
        self.unknown.clear();
        self.handles.clear();
        for (path, found) in nodes {
            self.know(self.tree.walk(&path), found);
        }
    }

    /// The last process ends. The volume has no fault and no orphan, and its tree is still the same.
    pub(crate) fn finish(mut self) -> Tally {
        // A last process, which no failure hits.
        self.subject.heal();
        self.end_process();
        let allowed = if self.is_stuck() { self.unknown.clone() } else { vec![self.tree.clone()] };
        let backend = self.subject.open(None).expect("the store is there");
        let volume = Volume::new(backend).until_gone(self.subject.cut());
        let found = walk(&volume).expect("the store is there");
        self.volume = Some(volume);
        self.adopt(found, &allowed, false);
        self.end_process();
        self.subject.close().expect("the store is there");
        self.subject.check();
        let backend = self.subject.open(None).expect("the store is there");
        let volume = Volume::new(backend).until_gone(self.subject.cut());
        let found = walk(&volume).expect("the store is there");
        self.volume = Some(volume);
        let tree = self.tree.clone();
        self.adopt(found, &[tree], false);
        self.end_process();
        self.subject.close().expect("the store is there");
        self.tally
    }
}
