//! Extended attributes.
//!
//! The calls for descriptors do not accept a path descriptor. Its name in `/proc/self/fd` leads to the node itself,
//! even if the node is a link, so the calls that follow one link are correct.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{XattrFlags, getxattr, getxattr_query, listxattr, listxattr_query, removexattr, setxattr};
use rustix::io::{self, Errno};
use slackwater::backend::{Attr, Node, XattrMode};

use super::errno::failed;
use super::volume::{Answer, Volume};

/// Enough for most values and lists without querying their length first.
const USUAL_BYTES: usize = 256;

impl Volume {
    pub(super) fn getxattr(&self, node: &Node, name: &OsStr) -> Answer<Vec<u8>> {
        let path = self.fds.path_of(&self.node(node)?.path);
        let get = |buffer: &mut [u8]| getxattr(&path, name, buffer);
        whole(get, || getxattr_query(&path, name)).map_err(failed("getxattr"))
    }

    pub(super) fn setxattr(&self, node: &Node, name: &OsStr, value: &[u8], mode: XattrMode) -> Answer<Attr> {
        let flags = match mode {
            XattrMode::Set => XattrFlags::empty(),
            XattrMode::Create => XattrFlags::CREATE,
            XattrMode::Replace => XattrFlags::REPLACE,
        };
        let path = self.fds.path_of(&self.node(node)?.path);
        setxattr(path, name, value, flags).map_err(failed("setxattr"))?;
        self.attribute_changed(name);
        self.getattr(node)
    }

    pub(super) fn listxattr(&self, node: &Node) -> Answer<Vec<OsString>> {
        let path = self.fds.path_of(&self.node(node)?.path);
        let list = |buffer: &mut [u8]| listxattr(&path, buffer);
        let names = whole(list, || listxattr_query(&path)).map_err(failed("listxattr"))?;
        let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| OsStr::from_bytes(name).to_owned()).collect())
    }

    pub(super) fn removexattr(&self, node: &Node, name: &OsStr) -> Answer<Attr> {
        let path = self.fds.path_of(&self.node(node)?.path);
        removexattr(path, name).map_err(failed("removexattr"))?;
        self.attribute_changed(name);
        self.getattr(node)
    }
}

/// A whole value of unknown length, which may grow between the query for its length and that for the value.
fn whole(get: impl Fn(&mut [u8]) -> io::Result<usize>, len: impl Fn() -> io::Result<usize>) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; USUAL_BYTES];
    loop {
        match get(&mut buffer) {
            Ok(count) => {
                buffer.truncate(count);
                return Ok(buffer);
            }
            // A name that is too long is also out of range; the query for the length reports that again.
            Err(Errno::RANGE) => buffer.resize(len()?.max(USUAL_BYTES), 0),
            Err(errno) => return Err(errno),
        }
    }
}
