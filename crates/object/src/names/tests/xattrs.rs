//! Extended attributes of all sizes.

use std::ffi::OsStr;

use slackwater::ErrorKind;
use slackwater::backend::{Removal, XattrMode};

use super::Names;
use crate::format::{Key, ROOT, Xattr};
use crate::names;

impl Names {
    fn set_xattr(&self, ino: u64, name: &str, value: &[u8]) -> Result<(), ErrorKind> {
        self.run(|view| names::setxattr(view, ino, OsStr::new(name), value, XattrMode::Set)).map(drop)
    }

    fn xattr(&self, ino: u64, name: &str) -> Result<Vec<u8>, ErrorKind> {
        self.run(|view| names::getxattr(view, ino, OsStr::new(name))).map(|value| value.to_vec())
    }

    /// How many values of a node have keys of their own.
    fn apart(&self, ino: u64) -> usize {
        let (first, last) = (Key::Xattr { ino, number: 0 }, Key::Xattr { ino, number: u64::MAX });
        let keys = self.run(|view| view.scan(first, last, 10_000)).expect("memory does not fail").len();
        let inode = self.inode(ino);
        assert_eq!(inode.xattrs.iter().filter(|(_, value)| matches!(value, Xattr::Apart(_))).count(), keys);
        keys
    }
}

#[test]
fn large_values_have_keys_of_their_own_until_they_are_replaced() {
    let names = Names::new();
    let file = names.file("file");
    let large = vec![7; 64 << 10];
    names.set_xattr(file, "user.a", &large).expect("64 KiB are not too many");
    names.set_xattr(file, "user.b", &large[..257]).expect("it can be set");
    names.set_xattr(file, "user.c", &large[..256]).expect("it can be set");
    assert_eq!(names.apart(file), 2);
    assert_eq!(names.xattr(file, "user.a").as_ref(), Ok(&large));
    names.set_xattr(file, "user.a", b"small").expect("it can be set");
    assert_eq!((names.apart(file), names.xattr(file, "user.a")), (1, Ok(b"small".to_vec())));
    names.set_xattr(file, "user.b", &large).expect("it can be set");
    assert_eq!((names.apart(file), names.xattr(file, "user.b")), (1, Ok(large)));
    names.run(|view| names::removexattr(view, file, OsStr::new("user.b"))).expect("it can be removed");
    assert_eq!(names.apart(file), 0);
}

#[test]
fn an_inode_stays_small_with_many_values() {
    let names = Names::new();
    let file = names.file("file");
    for number in 0..100 {
        names.set_xattr(file, &format!("user.{number}"), &[number; 200]).expect("it can be set");
    }
    assert_eq!(names.apart(file), 90);
    assert!((0..100).all(|number| names.xattr(file, &format!("user.{number}")) == Ok(vec![number; 200])));
    // They are freed with the file.
    let removed = names.run(|view| names::remove(view, ROOT, OsStr::new("file"), Removal::File));
    removed.expect("it can be removed");
    assert_eq!(names.run(|view| names::free_step(view, file)), Ok(true));
    let (first, last) = (Key::Xattr { ino: 0, number: 0 }, Key::Xattr { ino: u64::MAX, number: u64::MAX });
    assert_eq!(names.run(|view| view.scan(first, last, 1)), Ok(Vec::new()));
}

#[test]
fn the_names_of_a_node_fit_a_list() {
    let names = Names::new();
    let file = names.file("file");
    let name = |number: usize| format!("user.{number:0250}");
    let fit = (64 << 10) / 256;
    for number in 0..fit {
        assert_eq!(names.set_xattr(file, &name(number), b""), Ok(()));
    }
    assert_eq!(names.set_xattr(file, &name(fit), b""), Err(ErrorKind::NoSpace));
    assert_eq!(names.set_xattr(file, &name(0), b"replaced"), Ok(()));
    assert_eq!(names.run(|view| names::listxattr(view, file)).map(|names| names.len()), Ok(fit));
}
