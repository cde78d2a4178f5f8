//! Malformed requests, made from valid ones.
//!
//! Runs for two seconds, or as many as `SLACKWATER_FUZZ_SECONDS` says; `cargo xtask fuzz` runs for half a minute.
//! `SLACKWATER_FUZZ_SEED` repeats a run. Each message that the parser accepts is compared with a second description of
//! the protocol ([`layout`]). A session must answer each request exactly once, if it is answered at all.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod layout;
mod mutate;

use std::env;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use slackwater_fuse::abi::{self, Opcode};
use slackwater_fuse::loopback::{loopback, message};
use slackwater_fuse::{
    Context, Errno, FileSystem, Forgets, InitOptions, Operation, ParseError, Payload, Pool, PoolOptions, Reply,
    Request, RequestHeader, Session, parse, parse_entry,
};

use layout::{parts, take_apart};
use mutate::{Random, mutate, valid};

/// Runs cases until the time is over; prints a case that fails.
fn fuzz(share: u32, mut case: impl FnMut(&mut Random)) {
    let number = |name| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let time = Duration::from_secs(number("SLACKWATER_FUZZ_SECONDS").unwrap_or(2)) / share;
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = number("SLACKWATER_FUZZ_SEED").unwrap_or_else(now);
    let (start, mut random, mut count) = (Instant::now(), Random(seed), 0_u64);
    while start.elapsed() < time {
        for _ in 0..100 {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| case(&mut random))) {
                eprintln!("case {count} of SLACKWATER_FUZZ_SEED={seed}");
                resume_unwind(panic);
            }
            count += 1;
        }
    }
    println!("{count} cases of SLACKWATER_FUZZ_SEED={seed}");
}

/// An opcode and a body, mutated up to four times.
fn request(random: &mut Random) -> (u32, Vec<u8>) {
    let (opcode, mut body) = valid(random);
    for _ in 0..random.below(5) {
        let (_, other) = valid(random);
        mutate(random, &mut body, &other);
    }
    let opcode = if random.below(20) == 0 { random.below(100) as u32 } else { opcode as u32 };
    (opcode, body)
}

#[test]
fn valid_requests_are_parsed() {
    fuzz(4, |random| {
        let (opcode, body) = valid(random);
        let bytes = message(opcode as u32, 7, 1, &[&body]);
        let request = parse(&bytes).unwrap_or_else(|error| panic!("{opcode:?} {body:02x?}: {error}"));
        compare(&request, &bytes);
    });
}

#[test]
fn mutated_requests_are_parsed_or_rejected_according_to_the_protocol() {
    fuzz(2, |random| {
        let (opcode, body) = request(random);
        let mut bytes = message(opcode, random.next(), random.next(), &[&body]);
        match random.below(10) {
            0 => bytes[..4].copy_from_slice(&(random.next() as u32).to_ne_bytes()),
            1 => bytes.truncate(random.below(bytes.len() + 1)),
            _ => {}
        }
        check(&bytes);
    });
}

/// The entry of a ring with the request `bytes`, of which the first argument has `op_in` bytes.
fn entry_of(bytes: &[u8], op_in: usize) -> ([u8; abi::URING_HEADER_BYTES], Vec<u8>) {
    let mut header = [0xa5; abi::URING_HEADER_BYTES];
    header[..40].copy_from_slice(&bytes[..40]);
    header[abi::URING_OP_IN..abi::URING_OP_IN + op_in].copy_from_slice(&bytes[40..40 + op_in]);
    let payload = bytes[40 + op_in..].to_vec();
    let ends = abi::UringEntInOut { payload_sz: payload.len() as u32, ..abi::UringEntInOut::default() };
    header[abi::URING_ENT_IN_OUT..].copy_from_slice(&ends.to_bytes());
    (header, payload)
}

#[test]
fn a_request_in_an_entry_is_parsed_like_a_message() {
    let mut memory = Vec::new();
    fuzz(4, |random| {
        let (opcode, body) = request(random);
        let bytes = message(opcode, 1 + (random.next() >> 1), random.next(), &[&body]);
        // The kernel splits a WRITE before its payload; what it does with others does not matter.
        let is_write = opcode == Opcode::Write as u32;
        let op_in = body.len().min(if is_write { 40 } else { random.below(129) });
        let (mut header, mut payload) = entry_of(&bytes, op_in);
        payload.resize(payload.len() + random.below(64), 0x5a);
        let text = |parsed: Result<Request<'_>, ParseError>| parsed.ok().map(|request| format!("{request:?}"));
        let from_entry = text(parse_entry(&header, &payload, &mut memory));
        assert_eq!(from_entry, text(parse(&bytes)), "{op_in} bytes of argument in {bytes:02x?}");
        // Lengths that contradict each other: whatever the entry says, nothing is read beyond it.
        let at = *[0, abi::URING_ENT_IN_OUT + 16].get(random.below(2)).unwrap();
        let wrong = if random.below(2) == 0 { random.next() as u32 } else { random.below(400) as u32 };
        header[at..at + 4].copy_from_slice(&wrong.to_ne_bytes());
        if let Ok(request) = parse_entry(&header, &payload, &mut memory) {
            assert!(request.payload.bytes().len() <= payload.len() + 128);
        }
    });
}

/// Parses a message and compares the result with the layout.
fn check(bytes: &[u8]) {
    let parsed = parse(bytes);
    let Some((header, body)) = bytes.split_at_checked(40) else {
        assert!(matches!(parsed, Err(ParseError::Short { unique: 0, .. })), "{bytes:02x?}: {parsed:?}");
        return;
    };
    let number = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
    let unique = u64::from_ne_bytes(header[8..16].try_into().unwrap());
    if number(0) as usize != bytes.len() {
        assert!(matches!(parsed, Err(ParseError::Length { .. })), "{bytes:02x?}: {parsed:?}");
        return;
    }
    let known = Opcode::from_number(number(4)).and_then(parts);
    let is_request = known.is_none_or(|parts| take_apart(parts, body).is_some());
    assert_eq!(parsed.is_ok(), is_request, "{bytes:02x?}: {parsed:?}");
    match &parsed {
        Ok(request) => compare(request, bytes),
        Err(error) => assert_eq!(error.unique(), unique, "{bytes:02x?}"),
    }
}

/// Checks that the parsed request matches the message.
fn compare(request: &Request<'_>, bytes: &[u8]) {
    let body = &bytes[40..];
    let RequestHeader { unique, node_id, uid, gid, pid, opcode } = request.header;
    let words = [opcode.to_ne_bytes(), uid.to_ne_bytes(), gid.to_ne_bytes(), pid.to_ne_bytes()].concat();
    assert_eq!(words, [&bytes[4..8], &bytes[24..36]].concat());
    assert_eq!([unique.to_ne_bytes(), node_id.to_ne_bytes()].concat(), bytes[8..24]);
    let Some(parts) = Opcode::from_number(opcode).and_then(parts) else {
        assert!(matches!(request.operation, Operation::Unknown(number) if number == opcode));
        return;
    };
    let pieces = take_apart(parts, body).unwrap();
    if let Some(record) = record(&request.operation) {
        assert_eq!(record, pieces.record, "{request:?}");
    }
    if let Some(rest) = rest(request) {
        assert_eq!(rest, pieces.rest, "{request:?}");
    }
    if let Operation::Forget(forgets) = request.operation
        && opcode == Opcode::BatchForget as u32
    {
        let again: Vec<u8> =
            forgets.flat_map(|(node, lookups)| [node.to_ne_bytes(), lookups.to_ne_bytes()].concat()).collect();
        assert_eq!(again, pieces.rest[0]);
    }
}

/// The record of a request, if the operation keeps it whole.
fn record(operation: &Operation<'_>) -> Option<Vec<u8>> {
    #[allow(clippy::wildcard_enum_match_arm, reason = "the others keep no record, or not all of it")]
    Some(match operation {
        Operation::Getattr(args) => args.to_bytes().to_vec(),
        Operation::Statx(args) => args.to_bytes().to_vec(),
        Operation::Setattr(args) => args.to_bytes().to_vec(),
        Operation::Mknod { args, .. } => args.to_bytes().to_vec(),
        Operation::Mkdir { args, .. } => args.to_bytes().to_vec(),
        Operation::Open(args) | Operation::Opendir(args) => args.to_bytes().to_vec(),
        Operation::Read(args) | Operation::Readdir(args) | Operation::Readdirplus(args) => args.to_bytes().to_vec(),
        Operation::Write(args) => args.to_bytes().to_vec(),
        Operation::Release(args) | Operation::Releasedir(args) => args.to_bytes().to_vec(),
        Operation::Fsync(args) | Operation::Fsyncdir(args) => args.to_bytes().to_vec(),
        Operation::Setxattr { args, .. } => args.to_bytes().to_vec(),
        Operation::Flush(args) => args.to_bytes().to_vec(),
        Operation::Getlk(args) | Operation::Setlk(args) | Operation::Setlkw(args) => args.to_bytes().to_vec(),
        Operation::Access(args) => args.to_bytes().to_vec(),
        Operation::Create { args, .. } | Operation::Tmpfile(args) => args.to_bytes().to_vec(),
        Operation::Bmap(args) => args.to_bytes().to_vec(),
        Operation::Ioctl { args, .. } => args.to_bytes().to_vec(),
        Operation::Poll(args) => args.to_bytes().to_vec(),
        Operation::Fallocate(args) => args.to_bytes().to_vec(),
        Operation::Lseek(args) => args.to_bytes().to_vec(),
        Operation::CopyFileRange(args) => args.to_bytes().to_vec(),
        Operation::Link { node, .. } => node.to_ne_bytes().to_vec(),
        Operation::Interrupt { unique } => unique.to_ne_bytes().to_vec(),
        _ => return None,
    })
}

/// The strings and bytes of a request, if the operation keeps all of them.
fn rest<'a>(request: &'a Request<'_>) -> Option<Vec<&'a [u8]>> {
    #[allow(clippy::wildcard_enum_match_arm, reason = "the others have none, or drop some")]
    Some(match &request.operation {
        Operation::Lookup { name } | Operation::Unlink { name } | Operation::Rmdir { name } => vec![name.as_bytes()],
        Operation::Mknod { name, .. } | Operation::Mkdir { name, .. } | Operation::Link { name, .. } => {
            vec![name.as_bytes()]
        }
        Operation::Create { name, .. } | Operation::Getxattr { name, .. } | Operation::Removexattr { name } => {
            vec![name.as_bytes()]
        }
        Operation::Symlink { name, target } => vec![name.as_bytes(), target.as_bytes()],
        Operation::Rename { name, new_name, .. } => vec![name.as_bytes(), new_name.as_bytes()],
        Operation::Setxattr { name, value, .. } => vec![name.as_bytes(), value],
        Operation::Ioctl { input, .. } => vec![input],
        Operation::Write(_) => vec![request.payload.bytes()],
        _ => return None,
    })
}

/// Reads every byte that it gets, and answers in one of three ways.
#[derive(Default)]
struct Attentive {
    calls: AtomicU64,
    forgotten: AtomicU64,
}

impl FileSystem for Attentive {
    fn handle(&self, _: &Context<'_>, header: &RequestHeader, op: Operation<'_>, payload: Payload<'_>, reply: Reply) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let request = Request { header: *header, operation: op, payload };
        let len = rest(&request).map_or(0, |rest| rest.concat().len());
        let _ = match len % 3 {
            0 => reply.error(Errno::NOENT),
            1 => reply.bytes(&vec![1; len]),
            _ => reply.empty(),
        };
    }

    fn forget(&self, _: &Context<'_>, forgets: Forgets<'_>) {
        self.forgotten.fetch_add(forgets.count() as u64, Ordering::Relaxed);
    }
}

#[test]
fn a_session_answers_each_malformed_request_once_and_survives() {
    const PROBE: u64 = 4;
    // One reader, so that answers arrive in order.
    let pool = Pool::new(PoolOptions { readers: 1, ..PoolOptions::default() }).unwrap();
    let (transport, peer) = loopback().unwrap();
    peer.init(u64::MAX >> 1).unwrap();
    let file_system = Arc::new(Attentive::default());
    let _session = Session::start(&pool, transport, &InitOptions::default(), file_system.clone()).unwrap();
    assert_eq!(peer.answer().unwrap().unique, 2);
    let mut unique = 100;
    let mut case = |random: &mut Random| {
        let (opcode, body) = request(random);
        unique += 2;
        let mut bytes = message(opcode, unique, random.next(), &[&body]);
        if random.below(10) == 0 {
            // No empty messages, which mean the end of the connection.
            bytes.truncate(1 + random.below(bytes.len()));
        }
        peer.message(&bytes).unwrap();
        peer.request(Opcode::Statfs, PROBE, abi::ROOT_ID, &[]).unwrap();
        if is_answered(&bytes) {
            assert_eq!(peer.answer().unwrap().unique, unique, "{bytes:02x?}");
        }
        assert_eq!(peer.answer().unwrap().unique, PROBE, "{bytes:02x?}");
    };
    // On a slow machine there may be no forget among the first cases.
    for _ in 0..20 {
        fuzz(4, &mut case);
        if file_system.forgotten.load(Ordering::Relaxed) > 0 {
            break;
        }
    }
    assert!(file_system.calls.load(Ordering::Relaxed) > 0 && file_system.forgotten.load(Ordering::Relaxed) > 0);
}

/// Whether a request must be answered: all with a request number, except those without a reply.
fn is_answered(bytes: &[u8]) -> bool {
    match parse(bytes) {
        Ok(Request { operation: Operation::Forget(_) | Operation::Interrupt { .. }, .. }) => false,
        Ok(_) => true,
        Err(error) => error.unique() != 0,
    }
}
