//! Random histories beside the reference backend, and the rules that it lacks.

mod acls;
mod damage;
mod histories;
mod protection;
mod xattrs;

use std::ffi::OsStr;

use slackwater::ErrorKind;
use slackwater::backend::{Creator, NewNode};

use crate::format::{Inode, ROOT};
use crate::names::{self, Numbered};
use crate::tree::{Stop, Tree, View};

/// A volume in memory.
struct Names(Tree);

impl Names {
    fn new() -> Self {
        let names = Self(Tree::in_memory());
        let made = names.run(|view| {
            names::make_root(view, 0o755, (0, 0));
            Ok(())
        });
        made.expect("memory does not fail");
        names
    }

    fn run<T>(&self, call: impl FnMut(&mut View<'_>) -> Result<T, Stop>) -> Result<T, ErrorKind> {
        self.0.run_in_memory(call).map_err(|error| error.kind())
    }

    fn make(&self, dir: u64, name: &str, what: NewNode, mode: u32) -> Result<Numbered, ErrorKind> {
        let creator = Some(Creator { uid: 12, gid: 34, umask: 0o022 });
        self.run(|view| names::make(view, dir, OsStr::new(name), &what, mode, creator))
    }

    fn file(&self, name: &str) -> u64 {
        self.make(ROOT, name, NewNode::File, 0o644).expect("it can be made").0
    }

    fn directory(&self, name: &str) -> u64 {
        self.make(ROOT, name, NewNode::Directory, 0o755).expect("it can be made").0
    }

    fn inode(&self, ino: u64) -> Inode {
        self.run(|view| names::inode(view, ino)).expect("it exists")
    }
}
