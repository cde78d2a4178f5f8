//! Valid messages of every opcode, truncated everywhere, and random bytes.

use proptest::prelude::*;

use super::*;
use crate::abi::{init, *};
use crate::loopback::message;

/// The bytes after the header of a valid request.
fn body(opcode: Opcode) -> Vec<u8> {
    fn with(record: &[u8], strings: &[&[u8]]) -> Vec<u8> {
        let mut bytes = record.to_vec();
        strings.iter().for_each(|string| bytes.extend_from_slice(string));
        bytes
    }
    match opcode {
        Opcode::Lookup | Opcode::Unlink | Opcode::Rmdir | Opcode::Removexattr => b"name\0".to_vec(),
        Opcode::Forget => ForgetIn { nlookup: 3 }.to_bytes().to_vec(),
        Opcode::Getattr => GetattrIn::default().to_bytes().to_vec(),
        Opcode::Setattr => SetattrIn::default().to_bytes().to_vec(),
        Opcode::Symlink => b"name\0target/of\0".to_vec(),
        Opcode::Mknod => with(&MknodIn::default().to_bytes(), &[b"name\0"]),
        Opcode::Mkdir => with(&MkdirIn::default().to_bytes(), &[b"name\0"]),
        Opcode::Rename => with(&RenameIn { newdir: 7 }.to_bytes(), &[b"old\0new\0"]),
        Opcode::Rename2 => with(&Rename2In { newdir: 7, flags: 1, padding: 0 }.to_bytes(), &[b"old\0new\0"]),
        Opcode::Link => with(&LinkIn { oldnodeid: 9 }.to_bytes(), &[b"name\0"]),
        Opcode::Open | Opcode::Opendir => OpenIn::default().to_bytes().to_vec(),
        Opcode::Read | Opcode::Readdir | Opcode::Readdirplus => ReadIn::default().to_bytes().to_vec(),
        Opcode::Write => with(&WriteIn { size: 5, ..WriteIn::default() }.to_bytes(), &[b"bytes"]),
        Opcode::Release | Opcode::Releasedir => ReleaseIn::default().to_bytes().to_vec(),
        Opcode::Fsync | Opcode::Fsyncdir => FsyncIn::default().to_bytes().to_vec(),
        Opcode::Setxattr => with(&SetxattrIn { size: 5, ..SetxattrIn::default() }.to_bytes(), &[b"user.x\0", b"value"]),
        Opcode::Getxattr => with(&GetxattrIn::default().to_bytes(), &[b"user.x\0"]),
        Opcode::Listxattr => GetxattrIn::default().to_bytes().to_vec(),
        Opcode::Flush => FlushIn::default().to_bytes().to_vec(),
        Opcode::Init => {
            let first = InitIn { major: 7, minor: 45, max_readahead: 4096, flags: init::INIT_EXT as u32 };
            with(&first.to_bytes(), &[&InitExtIn { flags2: 1 << 7, unused: [0; 11] }.to_bytes()])
        }
        Opcode::Getlk | Opcode::Setlk | Opcode::Setlkw => LkIn::default().to_bytes().to_vec(),
        Opcode::Access => AccessIn::default().to_bytes().to_vec(),
        Opcode::Create => with(&CreateIn::default().to_bytes(), &[b"name\0"]),
        Opcode::Tmpfile => with(&CreateIn::default().to_bytes(), &[b"/\0"]),
        Opcode::Interrupt => InterruptIn { unique: 4 }.to_bytes().to_vec(),
        Opcode::Bmap => BmapIn::default().to_bytes().to_vec(),
        Opcode::Ioctl => with(&IoctlIn { in_size: 3, ..IoctlIn::default() }.to_bytes(), &[b"arg"]),
        Opcode::Poll => PollIn::default().to_bytes().to_vec(),
        Opcode::BatchForget => {
            let one = ForgetOne { nodeid: 5, nlookup: 6 }.to_bytes();
            let two = ForgetOne { nodeid: 7, nlookup: 8 }.to_bytes();
            with(&BatchForgetIn { count: 2, dummy: 0 }.to_bytes(), &[&one, &two])
        }
        Opcode::Fallocate => FallocateIn::default().to_bytes().to_vec(),
        Opcode::Lseek => LseekIn::default().to_bytes().to_vec(),
        Opcode::CopyFileRange => CopyFileRangeIn::default().to_bytes().to_vec(),
        Opcode::Syncfs => SyncfsIn::default().to_bytes().to_vec(),
        Opcode::Statx => StatxIn::default().to_bytes().to_vec(),
        Opcode::Readlink
        | Opcode::Statfs
        | Opcode::Destroy
        | Opcode::NotifyReply
        | Opcode::SetupMapping
        | Opcode::RemoveMapping
        | Opcode::CopyFileRange64 => Vec::new(),
    }
}

#[test]
fn every_opcode_parses_and_no_truncated_message_does() {
    for opcode in Opcode::ALL {
        let body = body(*opcode);
        let whole = message(*opcode as u32, 42, 1, &[&body]);
        let request = parse(&whole).unwrap_or_else(|error| panic!("{opcode:?}: {error}"));
        assert_eq!((request.header.unique, request.header.opcode), (42, *opcode as u32));
        for len in 0..whole.len() {
            assert!(parse(&whole[..len]).is_err(), "{opcode:?} of {len} bytes");
        }
        // Also if the header states the truncated length.
        for len in 0..body.len() {
            let cut = message(*opcode as u32, 42, 1, &[&body[..len]]);
            let error = parse(&cut).expect_err("a field is missing");
            assert_eq!(error.unique(), 42);
        }
    }
}

#[test]
fn fields_are_parsed() {
    let parsed = |opcode: Opcode, body: &[u8], check: &dyn Fn(Request<'_>) -> bool| {
        let bytes = message(opcode as u32, 1, 2, &[body]);
        assert!(check(parse(&bytes).unwrap()), "{opcode:?}");
    };
    parsed(Opcode::Write, &body(Opcode::Write), &|request| request.payload.bytes() == b"bytes");
    parsed(Opcode::Rename2, &body(Opcode::Rename2), &|request| {
        matches!(request.operation, Operation::Rename { name, new_parent: 7, new_name, flags: 1 }
            if name == "old" && new_name == "new")
    });
    parsed(
        Opcode::Symlink,
        &body(Opcode::Symlink),
        &|request| matches!(request.operation, Operation::Symlink { name, target } if name == "name" && target == "target/of"),
    );
    parsed(
        Opcode::BatchForget,
        &body(Opcode::BatchForget),
        &|request| matches!(request.operation, Operation::Forget(forgets) if forgets.eq([(5, 6), (7, 8)])),
    );
    parsed(
        Opcode::Forget,
        &body(Opcode::Forget),
        &|request| matches!(request.operation, Operation::Forget(forgets) if forgets.eq([(2, 3)])),
    );
    parsed(
        Opcode::Init,
        &body(Opcode::Init),
        &|request| matches!(request.operation, Operation::Init(init) if init.flags == init::INIT_EXT | init::HAS_RESEND),
    );
    parsed(
        Opcode::Setxattr,
        &body(Opcode::Setxattr),
        &|request| matches!(request.operation, Operation::Setxattr { name, value: b"value", .. } if name == "user.x"),
    );
}

#[test]
fn names_that_no_entry_can_have_are_refused() {
    for name in [&b"\0"[..], b"a/b\0", b"unended"] {
        let error = parse(&message(Opcode::Lookup as u32, 4, 1, &[name])).unwrap_err();
        assert_eq!(error, ParseError::Name { field: "name", unique: 4 });
    }
}

#[test]
fn an_unknown_request_keeps_its_number() {
    let bytes = message(999, 4, 1, &[]);
    assert!(matches!(parse(&bytes).unwrap().operation, Operation::Unknown(999)));
    let bytes = message(53, 4, 1, &[]);
    assert!(matches!(parse(&bytes).unwrap().operation, Operation::Unknown(53)), "the kernel falls back");
}

fn exercise(bytes: &[u8]) {
    if let Ok(Request { operation: Operation::Forget(forgets), .. }) = parse(bytes) {
        forgets.for_each(drop);
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        exercise(&bytes);
    }

    #[test]
    fn no_body_panics(opcode in 0..60_u32, body in prop::collection::vec(any::<u8>(), 0..200)) {
        exercise(&message(opcode, 2, 1, &[&body]));
    }

    #[test]
    fn no_changed_byte_panics(at in 0..40_usize, byte in any::<u8>(), which in any::<prop::sample::Index>()) {
        let opcode = *which.get(Opcode::ALL);
        let mut body = body(opcode);
        if let Some(place) = body.get_mut(at) {
            *place = byte;
        }
        exercise(&message(opcode as u32, 2, 1, &[&body]));
    }
}
