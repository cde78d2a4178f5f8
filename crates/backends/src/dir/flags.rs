//! Flags of files and directories, such as append-only and immutable, as the file system stores them.

use std::os::fd::AsFd;

use rustix::fs::{IFlags, OFlags, ioctl_getflags, ioctl_setflags};
use rustix::io;
use slackwater::ErrorKind;
use slackwater::backend::{Attr, Node, NodeKind};

use super::errno::failed;
use super::volume::{Answer, Volume};

impl Volume {
    pub(super) fn getflags(&self, node: &Node) -> Answer<u32> {
        self.on_descriptor(node, |fd| ioctl_getflags(fd).map(|flags| flags.bits()), "FS_IOC_GETFLAGS")
    }

    pub(super) fn setflags(&self, node: &Node, flags: u32) -> Answer<Attr> {
        let flags = IFlags::from_bits_retain(flags);
        self.on_descriptor(node, |fd| ioctl_setflags(fd, flags), "FS_IOC_SETFLAGS")?;
        self.getattr(node)
    }

    /// An ioctl does not accept a path descriptor.
    fn on_descriptor<T>(
        &self,
        node: &Node,
        ioctl: impl FnOnce(&dyn AsFd) -> io::Result<T>,
        name: &'static str,
    ) -> Answer<T> {
        let node = self.node(node)?;
        match node.kind {
            NodeKind::File => ioctl(node.reader(&self.fds).map_err(failed("open"))?),
            NodeKind::Directory => {
                let dir = self.fds.reopen(&node.path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed("open"))?;
                ioctl(&dir)
            }
            NodeKind::Symlink | NodeKind::Special => return Err(ErrorKind::Unsupported.into()),
        }
        .map_err(failed(name))
    }
}
