//! New nodes: their owner and permissions.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use slackwater_sync::shim::Arc;

use crate::backend::mem::blocks::Blocks;
use crate::backend::mem::node::{Attrs, Body, Entries, MemNode};
use crate::backend::mem::volume::{Answer, Live, Volume};
use crate::backend::{Creator, Found, NewNode, Node};
use crate::error::ErrorKind;

const SETGID: u32 = 0o2000;
/// The type bits of character device, block device, FIFO and socket.
const SPECIAL_TYPES: [u32; 4] = [0o020_000, 0o060_000, 0o010_000, 0o140_000];
/// The whiteout that a [rename](crate::backend::RenameMode::Whiteout) leaves at the old name.
pub(super) const WHITEOUT: Body = Body::Special { type_bits: SPECIAL_TYPES[0], rdev: 0 };

impl Volume {
    pub(super) fn make(
        &mut self,
        dir: &Node,
        name: &OsStr,
        what: NewNode,
        mode: u32,
        creator: Option<Creator>,
    ) -> Answer<Found> {
        let dir = self.free_name(dir, name)?;
        let body = match what {
            NewNode::File => Body::File(Blocks::default()),
            NewNode::Directory if self.blocks_free() == 0 => return Err(ErrorKind::NoSpace.into()),
            NewNode::Directory => Body::Directory(Entries::default()),
            NewNode::Symlink(target) => Body::Symlink(target),
            NewNode::Special { type_bits, rdev } if SPECIAL_TYPES.contains(&type_bits) => {
                Body::Special { type_bits, rdev }
            }
            NewNode::Special { .. } => return Err(ErrorKind::Invalid.into()),
        };
        let ino = self.add_in(dir, body, mode, creator)?;
        self.give_name(ino, dir, name);
        self.found(ino)
    }

    pub(super) fn tmpfile(&mut self, dir: &Node, mode: u32, creator: Option<Creator>) -> Answer<Found> {
        let dir = self.directory_with_a_name(dir)?;
        let ino = self.add_in(dir, Body::File(Blocks::default()), mode, creator)?;
        self.live.get_mut(&ino).expect("it was just added").may_get_a_name = true;
        self.nameless.push(ino);
        self.found(ino)
    }

    /// Adds a new node in `dir`.
    fn add_in(&mut self, dir: u64, body: Body, mode: u32, creator: Option<Creator>) -> Answer<u64> {
        let (mut owner, umask) = creator.map_or(((0, 0), 0), |by| ((by.uid, by.gid), by.umask & 0o777));
        if owner.0 == u32::MAX || owner.1 == u32::MAX {
            return Err(ErrorKind::Invalid.into());
        }
        let mut permissions = mode & !umask;
        let parent = self.live[&dir].node.attrs;
        if parent.permissions & SETGID != 0 {
            owner.1 = parent.gid;
            permissions |= if matches!(body, Body::Directory(_)) { SETGID } else { 0 };
        }
        if matches!(body, Body::Symlink(_)) {
            permissions = 0o777;
        }
        Ok(self.add(body, permissions, owner))
    }

    pub(super) fn add(&mut self, body: Body, permissions: u32, (uid, gid): (u32, u32)) -> u64 {
        self.reap();
        let now = self.tick();
        let ino = self.free.pop().unwrap_or_else(|| {
            self.last_ino += 1;
            self.last_ino
        });
        self.last_generation += 1;
        let attrs = Attrs { permissions: permissions & 0o7777, uid, gid, atime: now, mtime: now, ctime: now };
        let node = MemNode { generation: self.last_generation, attrs, xattrs: BTreeMap::new(), body };
        let live = Live { node, names: Vec::new(), may_get_a_name: false, pin: Arc::new(()) };
        self.live.insert(ino, Box::new(live));
        ino
    }
}
