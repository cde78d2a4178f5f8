//! Extended attributes.

use std::fs;

use rustix::fs::{XattrFlags, getxattr, getxattr_query, listxattr, listxattr_query, removexattr, setxattr};
use rustix::io::Errno;

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
