//! Extended attributes.

use std::ffi::{OsStr, OsString};

use slackwater::ErrorKind;
use slackwater::backend::{NewNode, Node, XattrMode};

use super::volume::{Volume, is_root};

/// A file with an attribute, if the file system below has extended attributes.
fn file_with(volume: &Volume, name: &str, value: &[u8]) -> Option<Node> {
    let file = volume.file(&volume.root(), "file");
    match volume.setxattr(&file, name, value, XattrMode::Set) {
        Err(ErrorKind::Unsupported) => {
            println!("skipped: no extended attributes here");
            None
        }
        Err(ErrorKind::NotPermitted) if name.starts_with("trusted.") => None,
        set => set.map(|_| file).map_err(|kind| format!("{kind}")).expect("it can be set").into(),
    }
}

pub(super) fn a_value_is_read_back_until_it_is_removed(volume: &Volume) {
    let Some(file) = file_with(volume, "user.one", b"first") else { return };
    assert_eq!(volume.getxattr(&file, "user.one").as_deref(), Ok(&b"first"[..]));
    let before = volume.attr(&file);
    let attr = volume.setxattr(&file, "user.one", b"second \0 one", XattrMode::Set).expect("it can be replaced");
    assert!(attr.ctime >= before.ctime && attr.mtime == before.mtime);
    assert_eq!(attr, volume.attr(&file));
    assert_eq!(volume.getxattr(&file, "user.one").as_deref(), Ok(&b"second \0 one"[..]));
    assert_eq!(volume.removexattr(&file, "user.one").expect("it can be removed").id, file.id());
    assert_eq!(volume.getxattr(&file, "user.one"), Err(ErrorKind::NoData));
    assert_eq!(volume.removexattr(&file, "user.one").err(), Some(ErrorKind::NoData));
    let dir = volume.directory(&volume.root(), "dir");
    volume.setxattr(&dir, "user.one", b"of a directory", XattrMode::Set).expect("it can be set");
    assert_eq!(volume.getxattr(&dir, "user.one").as_deref(), Ok(&b"of a directory"[..]));
}

pub(super) fn values_of_every_length_are_read_back(volume: &Volume) {
    let Some(file) = file_with(volume, "user.one", b"") else { return };
    assert_eq!(volume.getxattr(&file, "user.one").as_deref(), Ok(&b""[..]));
    for len in [1, 255, 256, 257, 3000] {
        let value = vec![len as u8 | 1; len];
        volume.setxattr(&file, "user.one", &value, XattrMode::Set).expect("it can be set");
        assert_eq!(volume.getxattr(&file, "user.one"), Ok(value));
    }
    let large = vec![1; 65_537];
    assert_eq!(volume.setxattr(&file, "user.one", &large, XattrMode::Set).err(), Some(ErrorKind::TooBig));
    assert_eq!(volume.getxattr(&file, "user.one").map(|value| value.len()), Ok(3000));
}

pub(super) fn create_and_replace_modes_are_honoured(volume: &Volume) {
    let Some(file) = file_with(volume, "user.one", b"1") else { return };
    let set = |name: &str, mode| volume.setxattr(&file, name, b"2", mode).err();
    assert_eq!(set("user.one", XattrMode::Create), Some(ErrorKind::Exists));
    assert_eq!(set("user.two", XattrMode::Replace), Some(ErrorKind::NoData));
    assert_eq!(volume.getxattr(&file, "user.one").as_deref(), Ok(&b"1"[..]));
    assert_eq!(set("user.one", XattrMode::Replace), None);
    assert_eq!(set("user.two", XattrMode::Create), None);
    assert_eq!(volume.getxattr(&file, "user.one").as_deref(), Ok(&b"2"[..]));
    assert_eq!(volume.getxattr(&file, "user.two").as_deref(), Ok(&b"2"[..]));
}

pub(super) fn all_names_are_listed(volume: &Volume) {
    let file = volume.file(&volume.root(), "plain");
    // A security module may label every file.
    let system = match volume.listxattr(&file) {
        Err(ErrorKind::Unsupported) => return println!("skipped: no extended attributes here"),
        names => names.expect("they can be listed"),
    };
    let Some(file) = file_with(volume, "user.0", b"0") else { return };
    let mut expected: Vec<OsString> = system;
    expected.push("user.0".into());
    // More names than fit the first buffer of a backend that has to guess their length.
    for number in 1..40 {
        let name = format!("user.attribute number {number}");
        volume.setxattr(&file, &name, b"", XattrMode::Create).expect("it can be set");
        expected.push(name.into());
    }
    let mut names = volume.listxattr(&file).expect("they can be listed");
    names.sort();
    expected.sort();
    assert_eq!(names, expected);
}

pub(super) fn an_invalid_attribute_name_is_refused(volume: &Volume) {
    let Some(file) = file_with(volume, "user.one", b"1") else { return };
    let refused = [
        (OsString::from(""), ErrorKind::OutOfRange),
        (format!("user.{}", "x".repeat(251)).into(), ErrorKind::OutOfRange),
        ("user.".into(), ErrorKind::Invalid),
        ("user.a\0b".into(), ErrorKind::Invalid),
        ("nonsense".into(), ErrorKind::Unsupported),
        ("no.such.namespace".into(), ErrorKind::Unsupported),
    ];
    for (name, kind) in refused {
        assert_eq!(volume.getxattr(&file, &name).err(), Some(kind), "{name:?}");
        assert_eq!(volume.setxattr(&file, &name, b"x", XattrMode::Set).err(), Some(kind), "{name:?}");
        assert_eq!(volume.removexattr(&file, &name).err(), Some(kind), "{name:?}");
    }
    let longest = format!("user.{}", "x".repeat(250));
    volume.setxattr(&file, &longest, b"x", XattrMode::Set).expect("255 bytes are not too many");
    assert_eq!(volume.getxattr(&file, OsStr::new(&longest)).as_deref(), Ok(&b"x"[..]));
}

pub(super) fn a_symbolic_link_has_its_own_attributes(volume: &Volume) {
    let Some(file) = file_with(volume, "user.one", b"of the file") else { return };
    let root = volume.root();
    let link = volume.make(&root, "link", NewNode::Symlink("file".into()), 0).expect("a link can be made").node;
    let fifo = NewNode::Special { type_bits: 0o010_000, rdev: 0 };
    let fifo = volume.make(&root, "fifo", fifo, 0o600).expect("a fifo can be made").node;
    for node in [&link, &fifo] {
        assert_eq!(volume.getxattr(node, "user.one"), Err(ErrorKind::NoData));
        let set = volume.setxattr(node, "user.one", b"x", XattrMode::Set);
        assert_eq!(set.err(), Some(ErrorKind::NotPermitted));
        assert_eq!(volume.removexattr(node, "user.one").err(), Some(ErrorKind::NotPermitted));
    }
    assert_eq!(volume.getxattr(&file, "user.one").as_deref(), Ok(&b"of the file"[..]));
    if !is_root() || volume.setxattr(&file, "trusted.t", b"of the file", XattrMode::Set).is_err() {
        return println!("skipped: only root may set attributes of links");
    }
    for (node, value) in [(&link, b"of the link"), (&fifo, b"of the fifo")] {
        assert_eq!(volume.getxattr(node, "trusted.t"), Err(ErrorKind::NoData));
        volume.setxattr(node, "trusted.t", value, XattrMode::Create).expect("root may set it");
        assert_eq!(volume.getxattr(node, "trusted.t").as_deref(), Ok(&value[..]));
        assert!(volume.listxattr(node).expect("they can be listed").contains(&"trusted.t".into()));
        volume.removexattr(node, "trusted.t").expect("root may remove it");
    }
    assert_eq!(volume.getxattr(&file, "trusted.t").as_deref(), Ok(&b"of the file"[..]));
}

pub(super) fn attributes_outlive_the_open_node(volume: &Volume) {
    let Some(file) = file_with(volume, "user.one", b"kept") else { return };
    drop(file);
    let found = volume.lookup(&volume.root(), "file").expect("it has a name");
    assert_eq!(volume.getxattr(&found.node, "user.one").as_deref(), Ok(&b"kept"[..]));
    // They are removed with the file.
    volume.remove(&volume.root(), "file", slackwater::backend::Removal::File).expect("it can be removed");
    let other = volume.file(&volume.root(), "file");
    assert_eq!(volume.getxattr(&other, "user.one"), Err(ErrorKind::NoData));
}
