//! Extended attributes.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::chown;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{XattrFlags, getxattr, getxattr_query, listxattr, listxattr_query, removexattr, setxattr};
use rustix::io::Errno;

use slackwater::backend::{Backend, Call, Limits};
use slackwater_backends::DirBackend;

use crate::rig::Rig;

#[test]
fn attributes_are_set_listed_read_and_removed() {
    let rig = Rig::new();
    let path = rig.file("a");
    fs::write(&path, b"").unwrap();
    let mut buffer = [0_u8; 100];
    assert_eq!(getxattr(&path, "user.color", &mut buffer), Err(Errno::NODATA));
    setxattr(&path, "user.color", b"green", XattrFlags::CREATE).unwrap();
    assert_eq!(setxattr(&path, "user.color", b"blue", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(setxattr(&path, "user.shape", b"x", XattrFlags::REPLACE), Err(Errno::NODATA));
    assert_eq!(getxattr_query(&path, "user.color"), Ok(5));
    assert_eq!(getxattr(&path, "user.color", &mut buffer[..4]), Err(Errno::RANGE));
    assert_eq!(getxattr(&path, "user.color", &mut buffer), Ok(5));
    assert_eq!(&buffer[..5], b"green");
    let size = listxattr_query(&path).unwrap();
    assert_eq!(listxattr(&path, &mut buffer).unwrap(), size);
    assert!(buffer[..size].split(|byte| *byte == 0).any(|name| name == b"user.color"));
    let stored = getxattr(rig.stored("a"), "user.color", &mut buffer);
    assert_eq!(stored, Ok(5));
    removexattr(&path, "user.color").unwrap();
    assert_eq!(removexattr(&path, "user.color"), Err(Errno::NODATA));
    setxattr(&path, "user.empty", b"", XattrFlags::empty()).unwrap();
    assert_eq!(getxattr(&path, "user.empty", &mut buffer), Ok(0));
}

/// The kernel leaves this to the file system under HANDLE_KILLPRIV_V2, for changes by every user.
#[test]
fn a_write_a_truncation_and_a_chown_clear_capabilities_at_once() {
    const NAME: &str = "security.capability";
    // `struct vfs_cap_data` of revision 2: CAP_NET_BIND_SERVICE is permitted, nothing inherited.
    let mut capabilities = [0; 20];
    capabilities[..8].copy_from_slice(&[0, 0, 0, 2, 0, 4, 0, 0]);
    let changes: [fn(&Path); 3] = [
        |path| File::options().append(true).open(path).unwrap().write_all(b"!").unwrap(),
        |path| File::options().write(true).open(path).unwrap().set_len(3).unwrap(),
        |path| chown(path, Some(1), None).unwrap(),
    ];
    let rig = Rig::new();
    for (number, change) in changes.iter().enumerate() {
        let path = rig.file(format!("program {number}"));
        fs::write(&path, b"#!/bin/sh\n").unwrap();
        match setxattr(&path, NAME, &capabilities, XattrFlags::empty()) {
            Err(Errno::PERM | Errno::OPNOTSUPP) => return println!("skipped: capabilities cannot be set here"),
            set => set.unwrap(),
        }
        let mut found = [0; 32];
        assert_eq!(getxattr(&path, NAME, &mut found), Ok(20));
        change(&path);
        assert_eq!(getxattr(&path, NAME, &mut found), Err(Errno::NODATA), "change {number}");
        rig.mounted.sync().unwrap();
        assert_eq!(getxattr(&path, NAME, &mut found), Err(Errno::NODATA), "change {number}");
        assert_eq!(getxattr(rig.stored(format!("program {number}")), NAME, &mut found), Err(Errno::NODATA));
    }
}

/// A source that supports every attribute and lets its mounter change each, as NFSv4 and NTFS do with their ACLs.
struct HasAll(DirBackend);

impl Backend for HasAll {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the directory handles the rest")]
    fn submit(&self, call: Call) {
        match call {
            Call::Getxattr { done, .. } => done.complete(Ok(b"anything".to_vec())),
            Call::Listxattr { done, .. } => done.complete(Ok(vec!["system.nfs4_acl".into(), "user.color".into()])),
            Call::Setxattr { node, done, .. } | Call::Removexattr { node, done, .. } => {
                self.0.submit(Call::Getattr { node, done });
            }
            call => self.0.submit(call),
        }
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }
}

#[test]
fn system_attributes_pass_only_if_the_kernel_checks_the_caller() {
    let rig = Rig::layered(|directory| Arc::new(HasAll(directory)));
    let path = rig.file("a");
    fs::write(&path, b"").unwrap();
    let mut buffer = [0_u8; 100];
    for name in ["system.nfs4_acl", "system.cifs_acl", "system.ntfs_attrib"] {
        assert_eq!(setxattr(&path, name, b"anybody", XattrFlags::empty()), Err(Errno::OPNOTSUPP), "{name}");
        assert_eq!(getxattr(&path, name, &mut buffer), Err(Errno::OPNOTSUPP), "{name}");
        assert_eq!(removexattr(&path, name), Err(Errno::OPNOTSUPP), "{name}");
    }
    let len = listxattr(&path, &mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"user.color\0");
    setxattr(&path, "user.color", b"green", XattrFlags::empty()).unwrap();
    assert_eq!(getxattr(&path, "user.color", &mut buffer), Ok(8));
    removexattr(&path, "user.color").unwrap();
}
