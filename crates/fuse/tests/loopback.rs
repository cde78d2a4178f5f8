//! Sessions without a kernel: malformed requests, and replies as the kernel would get them.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use slackwater_fuse::abi::{self, InterruptIn, Opcode, ReadIn, SetxattrIn, WriteIn, init};
use slackwater_fuse::loopback::{Loopback, Peer, loopback, message};
use slackwater_fuse::{
    Context, Ended, Errno, FileSystem, Forgets, HeldReply, InitOptions, Landed, LandingMemory, NegotiateError,
    Notification, Operation, Payload, Pool, PoolOptions, Reply, RequestHeader, RingError, Session, SessionError,
    Transport,
};

const LONG: Duration = Duration::from_secs(60);
const WITHOUT_ANSWER: u64 = 100;
const HELD: u64 = 200;
const LATE: u64 = 300;
const BLOCK: u64 = 400;

/// Behaves according to the node number.
#[derive(Default)]
struct Script {
    held: Mutex<Vec<HeldReply>>,
    late: Mutex<Vec<Reply>>,
    interrupts: Arc<AtomicUsize>,
    forgotten: Mutex<Vec<(u64, u64)>>,
    is_open: Mutex<bool>,
    gate: Condvar,
    blocked: AtomicUsize,
    destroyed: AtomicUsize,
}

impl Script {
    fn hold(&self, reply: Reply) {
        let interrupts = self.interrupts.clone();
        let held = reply.hold(move |reply| {
            interrupts.fetch_add(1, Ordering::SeqCst);
            reply.write(7);
        });
        self.held.lock().unwrap().push(held);
    }

    fn block(&self, cx: &Context<'_>) {
        let _blocking = cx.try_block().expect("below the limit");
        let _nested = cx.try_block().expect("this thread is already blocking");
        self.blocked.fetch_add(1, Ordering::SeqCst);
        let mut is_open = self.is_open.lock().unwrap();
        while !*is_open {
            is_open = self.gate.wait(is_open).unwrap();
        }
    }
}

impl FileSystem for Script {
    fn handle(&self, cx: &Context<'_>, header: &RequestHeader, op: Operation<'_>, payload: Payload<'_>, reply: Reply) {
        match header.node_id {
            WITHOUT_ANSWER => drop(reply),
            HELD => self.hold(reply),
            LATE => self.late.lock().unwrap().push(reply),
            BLOCK => {
                self.block(cx);
                reply.empty();
            }
            _ => {
                if let Operation::Read(args) = op {
                    let piece = [3_u8; 512];
                    let slices = vec![IoSlice::new(&piece); args.size as usize / piece.len()];
                    reply.io_slices(&slices);
                } else {
                    reply.bytes(payload.bytes());
                }
            }
        }
    }

    fn forget(&self, _: &Context<'_>, forgets: Forgets<'_>) {
        self.forgotten.lock().unwrap().extend(forgets);
    }

    fn destroy(&self) {
        self.destroyed.fetch_add(1, Ordering::SeqCst);
    }
}

struct Rig {
    pool: Pool,
    session: Session,
    script: Arc<Script>,
    peer: Peer,
}

fn rig() -> Rig {
    let pool = Pool::new(PoolOptions::default()).unwrap();
    let (transport, peer) = loopback().unwrap();
    peer.init(u64::MAX >> 1).unwrap();
    let script = Arc::new(Script::default());
    let session = Session::start(&pool, transport, &InitOptions::default(), script.clone()).unwrap();
    let answer = peer.answer().unwrap();
    assert_eq!((answer.unique, answer.error, answer.body.len()), (2, 0, 64));
    Rig { pool, session, script, peer }
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "timed out waiting: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn write(peer: &Peer, unique: u64, node: u64, bytes: &[u8]) {
    let args = WriteIn { size: bytes.len() as u32, ..WriteIn::default() };
    peer.request(Opcode::Write, unique, node, &[&args.to_bytes(), bytes]).unwrap();
}

fn interrupt(peer: &Peer, unique: u64) {
    peer.request(Opcode::Interrupt, unique | abi::INT_REQ_BIT, 0, &[&InterruptIn { unique }.to_bytes()]).unwrap();
}

#[test]
fn malformed_requests_are_answered_with_an_error() {
    let Rig { peer, pool: _pool, .. } = rig();
    let errors: [(Vec<u8>, Errno); 5] = [
        (message(Opcode::Lookup as u32, 10, 1, &[b"unended"]), Errno::IO),
        (message(Opcode::Write as u32, 10, 1, &[b"short"]), Errno::IO),
        (message(999, 10, 1, &[]), Errno::NOSYS),
        (message(Opcode::CopyFileRange64 as u32, 10, 1, &[]), Errno::NOSYS),
        (message(Opcode::Getattr as u32, 10, WITHOUT_ANSWER, &[&[0; 16]]), Errno::IO),
    ];
    for (bytes, errno) in errors {
        peer.message(&bytes).unwrap();
        let answer = peer.answer().unwrap();
        assert_eq!((answer.unique, answer.error), (10, -errno.raw_os_error()));
    }
    write(&peer, 12, 1, b"goes on");
    assert_eq!(peer.answer().unwrap().body, b"goes on");
}

#[test]
fn random_messages_do_not_end_the_session() {
    let Rig { peer, pool: _pool, .. } = rig();
    for len in 1..40 {
        peer.message(&vec![0xA5; len]).unwrap();
    }
    write(&peer, 12, 1, b"goes on");
    assert_eq!(peer.answer().unwrap().body, b"goes on");
}

#[test]
fn many_slices_form_one_reply() {
    let Rig { peer, pool: _pool, .. } = rig();
    for size in [0_u32, 512, 2048, 128 << 10, 140 << 10] {
        let args = ReadIn { size, ..ReadIn::default() };
        peer.request(Opcode::Read, 10, 1, &[&args.to_bytes()]).unwrap();
        let answer = peer.answer().unwrap();
        assert_eq!((answer.unique, answer.body.len()), (10, size as usize));
        assert!(answer.body.iter().all(|byte| *byte == 3));
    }
}

#[test]
fn an_interrupt_takes_a_held_reply_once() {
    let Rig { peer, script, pool: _pool, .. } = rig();
    write(&peer, 10, HELD, b"x");
    until("the reply is held", || script.held.lock().unwrap().len() == 1);
    interrupt(&peer, 10);
    let answer = peer.answer().unwrap();
    assert_eq!((answer.unique, answer.error, answer.body[0]), (10, 0, 7));
    interrupt(&peer, 10);
    let held = script.held.lock().unwrap().pop().unwrap();
    assert!(held.take().is_none(), "the interrupt has taken it");
    write(&peer, 12, 1, b"no other reply");
    assert_eq!(peer.answer().unwrap().unique, 12);
    assert_eq!(script.interrupts.load(Ordering::SeqCst), 1);
}

#[test]
fn an_interrupt_that_overtakes_its_request_is_stored() {
    let Rig { peer, script, pool: _pool, .. } = rig();
    write(&peer, 10, LATE, b"x");
    until("the handler has it", || script.late.lock().unwrap().len() == 1);
    interrupt(&peer, 10);
    interrupt(&peer, 4711);
    // With one thread, both have been read when this is answered; with more, they will be soon.
    let reply = script.late.lock().unwrap().pop().unwrap();
    script.hold(reply);
    assert_eq!(peer.answer().unwrap().unique, 10, "now, or when the interrupt arrives");
    assert_eq!(script.interrupts.load(Ordering::SeqCst), 1);
}

#[test]
fn a_held_reply_can_be_answered_from_any_thread() {
    let Rig { peer, script, pool: _pool, .. } = rig();
    write(&peer, 10, HELD, b"x");
    write(&peer, 12, HELD, b"x");
    until("both are held", || script.held.lock().unwrap().len() == 2);
    let (first, second) = {
        let mut held = script.held.lock().unwrap();
        (held.remove(0), held.remove(0))
    };
    thread::spawn(move || first.take().unwrap().write(1)).join().unwrap();
    assert_eq!(peer.answer().unwrap().error, 0);
    drop(second);
    assert_eq!(peer.answer().unwrap().error, -Errno::IO.raw_os_error(), "dropping it answers");
    assert_eq!(script.interrupts.load(Ordering::SeqCst), 0);
}

#[test]
fn forgets_arrive_in_bulk() {
    let Rig { peer, script, pool: _pool, .. } = rig();
    peer.request(Opcode::Forget, 10, 5, &[&3_u64.to_ne_bytes()]).unwrap();
    let mut batch = abi::BatchForgetIn { count: 2, dummy: 0 }.to_bytes().to_vec();
    for nodeid in [6, 7] {
        batch.extend(abi::ForgetOne { nodeid, nlookup: 1 }.to_bytes());
    }
    peer.request(Opcode::BatchForget, 12, 0, &[&batch]).unwrap();
    until("three nodes are forgotten", || script.forgotten.lock().unwrap().len() == 3);
    let mut forgotten = script.forgotten.lock().unwrap().clone();
    forgotten.sort_unstable();
    assert_eq!(forgotten, [(5, 3), (6, 1), (7, 1)]);
}

#[test]
fn notifications_have_the_kernels_format() {
    let Rig { peer, session, pool: _pool, .. } = rig();
    let name = || "name".into();
    session.notifier().send(&Notification::InvalEntry { parent: 1, name: name() }).unwrap();
    let answer = peer.answer().unwrap();
    assert_eq!((answer.unique, answer.error), (0, abi::NotifyCode::InvalEntry as i32));
    assert_eq!(answer.body[16..], *b"name\0");
    session.notifier().queue(Notification::Delete { parent: 1, child: 9, name: name() });
    assert_eq!(peer.answer().unwrap().body[24..], *b"name\0");
    session.notifier().resend().unwrap();
    assert_eq!(peer.answer().unwrap().error, 7);
    for node in 0..1000 {
        session.notifier().queue(Notification::InvalInode { node, offset: 0, len: 0 });
    }
    for node in 0..1000_u64 {
        assert_eq!(peer.answer().unwrap().body[..8], node.to_ne_bytes(), "in order");
    }
    assert!(session.notifier().queue_prune(vec![7, 9]));
    let answer = peer.answer().unwrap();
    assert_eq!((answer.unique, answer.error), (0, abi::NotifyCode::Prune as i32));
    let [count, spare, first, second] = [2_u64, 0, 7, 9].map(u64::to_ne_bytes);
    assert_eq!(answer.body, [count, spare, first, second].concat());
}

/// A kernel that rejects notifications, as one without PRUNE does, and holds the first one until the test releases it.
struct Refusing {
    kernel: Loopback,
    gate: Mutex<mpsc::Receiver<()>>,
    refused: Arc<AtomicUsize>,
}

impl Transport for Refusing {
    fn receive(&self, buffers: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        self.kernel.receive(buffers)
    }

    fn send(&self, message: &[IoSlice<'_>]) -> Result<(), Errno> {
        let is_notification = message[0][8..16] == [0; 8];
        if !is_notification {
            return self.kernel.send(message);
        }
        self.gate.lock().unwrap().recv().unwrap();
        self.refused.fetch_add(1, Ordering::SeqCst);
        Err(Errno::INVAL)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.kernel.fd()
    }
}

#[test]
fn a_kernel_that_rejects_prune_is_not_asked_again_and_queued_nodes_are_bounded() {
    let pool = Pool::new(PoolOptions::default()).unwrap();
    let (kernel, peer) = loopback().unwrap();
    peer.init(u64::MAX >> 1).unwrap();
    let (open, gate) = mpsc::channel();
    let refused = Arc::new(AtomicUsize::new(0));
    let refusing = Refusing { kernel, gate: Mutex::new(gate), refused: Arc::clone(&refused) };
    let session = Session::start(&pool, refusing, &InitOptions::default(), Arc::new(Script::default())).unwrap();
    let half = || vec![1; 32 << 10];
    assert!(session.notifier().queue_prune(half()) && session.notifier().queue_prune(half()));
    assert!(!session.notifier().queue_prune(vec![1]), "the queue is at its limit");
    for _ in 0..2 {
        open.send(()).unwrap();
    }
    until("the kernel has rejected both", || refused.load(Ordering::SeqCst) == 2);
    assert!(!session.notifier().queue_prune(vec![1]), "the kernel has rejected prune");
}

/// The epoll entry reports requests that are waiting together only once.
#[test]
fn requests_behind_a_blocking_one_are_read() {
    const WAITING: u64 = 200;
    let pool = Pool::new(PoolOptions::default()).unwrap();
    let (transport, peer) = loopback().unwrap();
    peer.init(u64::MAX >> 1).unwrap();
    write(&peer, 10, BLOCK, b"x");
    for i in 0..WAITING {
        write(&peer, 100 + 2 * i, 1, b"x");
    }
    let script = Arc::new(Script::default());
    let _session = Session::start(&pool, transport, &InitOptions::default(), script.clone()).unwrap();
    let mut answered: Vec<u64> = (0..=WAITING).map(|_| peer.answer().unwrap().unique).collect();
    answered.sort_unstable();
    assert!(answered[1..].iter().copied().eq((0..WAITING).map(|i| 100 + 2 * i)), "after INIT: {answered:?}");
    *script.is_open.lock().unwrap() = true;
    script.gate.notify_all();
    assert_eq!(peer.answer().unwrap().unique, 10);
}

#[test]
fn blocked_threads_are_replaced_and_surplus_ones_exit() {
    let options = PoolOptions::default();
    let Rig { peer, script, pool, .. } = rig();
    assert_eq!(pool.threads(), options.readers);
    for i in 0..20 {
        write(&peer, 10 + 2 * i, BLOCK, b"x");
    }
    until("all are blocked", || script.blocked.load(Ordering::SeqCst) == 20);
    write(&peer, 100, 1, b"is read");
    assert_eq!(peer.answer().unwrap().unique, 100);
    assert!(pool.threads() >= 21);
    *script.is_open.lock().unwrap() = true;
    script.gate.notify_all();
    for _ in 0..20 {
        peer.answer().unwrap();
    }
    until("surplus threads exit", || pool.threads() <= options.readers);
    write(&peer, 102, 1, b"is read as well");
    assert_eq!(peer.answer().unwrap().unique, 102);
}

#[test]
fn the_end_of_a_session_is_reported_with_its_cause() {
    let Rig { peer, session, pool, .. } = rig();
    assert_eq!(session.ended(), None);
    assert_eq!(session.wait_ended_timeout(Duration::from_millis(1)), None);
    drop(peer);
    assert_eq!(session.wait_ended_timeout(LONG), Some(Ended::Unmounted));
    assert_eq!(session.ended(), Some(Ended::Unmounted));
    drop(pool);

    let Rig { session, pool, peer: _peer, .. } = rig();
    drop(pool);
    assert_eq!(session.wait_ended_timeout(LONG), Some(Ended::Detached), "no session serves it");
}

#[test]
fn a_session_is_finished_when_its_last_handler_returns() {
    let Rig { peer, script, session, pool: _pool } = rig();
    write(&peer, 10, BLOCK, b"x");
    until("the handler is blocked", || script.blocked.load(Ordering::SeqCst) == 1);
    drop(peer);
    until("the end is seen", || session.ended() == Some(Ended::Unmounted));
    assert_eq!(session.wait_ended_timeout(Duration::from_millis(50)), None);
    assert_eq!(script.destroyed.load(Ordering::SeqCst), 0);
    *script.is_open.lock().unwrap() = true;
    script.gate.notify_all();
    assert_eq!(session.wait_ended_timeout(LONG), Some(Ended::Unmounted));
    assert_eq!(script.destroyed.load(Ordering::SeqCst), 1);
}

#[test]
fn a_session_that_cannot_start_returns_the_reason() {
    let pool = Pool::new(PoolOptions { max_write: 1 << 16, ..PoolOptions::default() }).unwrap();
    let start = |options: &InitOptions, first: &dyn Fn(&Peer)| {
        let (transport, peer) = loopback().unwrap();
        first(&peer);
        Session::start(&pool, transport, options, Arc::new(Script::default())).unwrap_err()
    };
    let small = InitOptions { max_write: 1 << 16, ..InitOptions::default() };
    let error = start(&InitOptions::default(), &|peer| peer.init(u64::MAX).unwrap());
    assert!(matches!(error, SessionError::MaxWrite { .. }), "{error}");
    let error = start(&small, &|peer| peer.init(!init::SETXATTR_EXT).unwrap());
    assert!(matches!(error, SessionError::Negotiate(NegotiateError::Feature(_))), "{error}");
    let error = start(&small, &|peer| peer.request(Opcode::Statfs, 2, 1, &[]).unwrap());
    assert!(matches!(error, SessionError::InUse(17)), "{error}");
    let error = start(&small, &|peer| peer.message(b"noise").unwrap());
    assert!(matches!(error, SessionError::Parse(_)), "{error}");
}

/// Pages in memory, the last first.
#[derive(Debug)]
struct Pages(Vec<[u8; PAGE]>);

const PAGE: usize = 4096;

impl LandingMemory for Pages {
    fn slices<'a>(&'a mut self, slices: &mut [IoSliceMut<'a>]) -> usize {
        let pages = slices.iter_mut().zip(self.0.iter_mut().rev());
        pages.map(|(to, page)| *to = IoSliceMut::new(page)).count()
    }

    fn copy_to(&self, from: usize, to: &mut [u8]) {
        let bytes = self.0.iter().rev().flatten().skip(from);
        to.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
    }
}

/// Lends memory, and echoes the payload.
#[derive(Default)]
struct Lender {
    landed: AtomicUsize,
}

impl FileSystem for Lender {
    fn handle(&self, _: &Context<'_>, _: &RequestHeader, op: Operation<'_>, payload: Payload<'_>, reply: Reply) {
        if let Operation::Setxattr { name, value, .. } = op {
            reply.io_slices(&[IoSlice::new(name.as_encoded_bytes()), IoSlice::new(value)]);
        } else {
            reply.bytes(payload.bytes());
        }
    }

    fn lend_memory(&self, len_bytes: usize) -> Option<Box<dyn LandingMemory>> {
        Some(Box::new(Pages(vec![[0; PAGE]; len_bytes.div_ceil(PAGE)])))
    }

    fn write_landed(&self, _: &Context<'_>, _: &RequestHeader, args: &WriteIn, landed: Landed<'_>, reply: Reply) {
        self.landed.fetch_add(1, Ordering::SeqCst);
        assert_eq!(landed.len(), args.size as usize);
        let skip = args.offset as usize;
        reply.bytes(landed.into_bytes(skip));
    }
}

#[test]
fn all_requests_arrive_intact_while_large_writes_land_in_lent_memory() {
    let lender = Arc::new(Lender::default());
    let pool = Pool::new(PoolOptions { readers: 1, ..PoolOptions::default() }).unwrap();
    let (transport, peer) = loopback().unwrap();
    peer.init(u64::MAX >> 1).unwrap();
    let _session = Session::start(&pool, transport, &InitOptions::default(), lender.clone()).unwrap();
    assert_eq!(peer.answer().unwrap().error, 0);
    // Users other than root have smaller socket buffers.
    let large: Vec<u8> = (0..150_000_u32).map(|at| (at / 3) as u8).collect();
    let value = [9; 20_000];
    let mut expected = 0;
    for round in 0..10_u64 {
        let unique = 100 + 10 * round;
        let args = WriteIn { size: large.len() as u32, offset: 1 + 5000 * round, ..WriteIn::default() };
        peer.request(Opcode::Write, unique, 1, &[&args.to_bytes(), &large]).unwrap();
        let body = peer.answer().unwrap().body;
        let skip = if lender.landed.load(Ordering::SeqCst) > expected { args.offset as usize } else { 0 };
        expected = lender.landed.load(Ordering::SeqCst);
        assert!(body == large[skip..], "large write {round}");
        write(&peer, unique + 2, 1, &large[..round as usize]);
        assert!(peer.answer().unwrap().body == large[..round as usize], "small write {round}");
        let args = SetxattrIn { size: value.len() as u32, ..SetxattrIn::default() };
        peer.request(Opcode::Setxattr, unique + 4, 1, &[&args.to_bytes(), b"user.name\0", &value]).unwrap();
        assert!(peer.answer().unwrap().body == [&b"user.name"[..], &value].concat(), "attribute {round}");
        let wrong = WriteIn { size: large.len() as u32 + 1, ..WriteIn::default() };
        peer.request(Opcode::Write, unique + 6, 1, &[&wrong.to_bytes(), &large]).unwrap();
        assert_eq!(peer.answer().unwrap().error, -Errno::IO.raw_os_error(), "shorter than its header says {round}");
    }
    assert_eq!(expected, 9, "all but the first");
}

#[test]
fn requests_come_over_the_device_if_the_ring_is_not_offered_or_refused() {
    for is_offered in [false, true] {
        let pool = Pool::new(PoolOptions::default()).unwrap();
        let (transport, peer) = loopback().unwrap();
        // A socket knows no commands of io_uring: it refuses every entry.
        let offered = if is_offered { u64::MAX >> 1 } else { (u64::MAX >> 1) & !init::OVER_IO_URING };
        peer.init(offered).unwrap();
        let default = InitOptions::default();
        let options = InitOptions { wanted: default.wanted | init::OVER_IO_URING, ..default };
        let session = Session::start(&pool, transport, &options, Arc::new(Script::default())).unwrap();
        assert_eq!(session.negotiated().has(init::OVER_IO_URING), is_offered);
        if !is_offered {
            assert_eq!(session.rings(), Err(RingError::NotOffered));
        }
        assert_eq!(peer.answer().unwrap().unique, 2);
        peer.request(Opcode::Statfs, 4, abi::ROOT_ID, &[]).unwrap();
        assert_eq!(peer.answer().unwrap().unique, 4);
        if is_offered {
            until("the refusal is known", || session.rings() == Err(RingError::Refused));
        }
        drop(peer);
        assert_eq!(session.wait_ended(), Ended::Unmounted);
    }
}
