//! A hostile peer is answered or dropped, and never delays another one.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::path::PathBuf;

use proptest::prelude::*;
use slackwater_control::client;
use slackwater_testkit::damage::{cases, damaged};

use super::*;

struct Echo;

impl Respond for Echo {
    fn respond(&self, _volume: &VolumeRef, request: Request, progress: &dyn Fn(Reply) -> bool) -> Reply {
        if request != Request::Sync {
            return Reply::Failed(Failure::busy("echo"));
        }
        (0..3).for_each(|n| assert!(progress(Reply::Progress { bytes_left: 3 - n, written_bytes: n })));
        Reply::Done
    }
}

struct Socket(PathBuf);

impl Socket {
    fn listening(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("slackwater-{name}-{}.sock", std::process::id()));
        start(UnixListener::bind(&path).unwrap(), PRIVATE, Arc::new(Echo)).unwrap();
        Self(path)
    }

    fn send(&self, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(&self.0).unwrap();
        // The server may already have refused and closed.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    fn assert_answers(&self) {
        let answer = client::ask(&self.0, &VolumeRef::default(), &Request::Status, client::ANSWER_WITHIN);
        assert!(matches!(answer, Ok(Reply::Failed(failure)) if failure.what == "echo"));
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn progress_comes_before_the_answer() {
    let socket = Socket::listening("progress");
    let mut conversation =
        client::Conversation::open(&socket.0, &VolumeRef::default(), &Request::Sync, client::ANSWER_WITHIN).unwrap();
    for n in 0..3 {
        let reply = conversation.next(None).unwrap();
        assert_eq!(reply, Reply::Progress { bytes_left: 3 - n, written_bytes: n });
    }
    assert_eq!(conversation.next(None).unwrap(), Reply::Done);
}

#[test]
fn invalid_requests_are_answered_and_partial_ones_dropped() {
    let socket = Socket::listening("nonsense");
    assert!(socket.send(b"GET / HTTP/1.1\r\n\r\n").contains("invalid request"));
    assert!(socket.send(b"\xff\xfe\x00\n").contains("invalid request"));
    assert!(socket.send(b"{\"version\":1,\"request\":\"explode\"}\n").contains("explode"));
    assert!(socket.send(b"{\"version\":1,\"request\":\"umount\",\"deadline_ms\":-1}\n").contains("usage"));
    assert!(socket.send(b"{\"version\":7,\"request\":\"status\"}\n").contains("version 7"));
    let deep = [b'['; 60_000];
    assert!(socket.send(&[&deep[..], b"\n"].concat()).contains("invalid request"));
    assert_eq!(socket.send(b"{\"version\":1,\"requ"), "");
    assert_eq!(socket.send(b""), "");
    // The refusal may be lost while the peer still sends; what counts is that the server goes on.
    let _ = socket.send(&vec![b'x'; 2 << 20]);
    socket.assert_answers();
}

#[test]
fn silent_peers_delay_no_other_peer() {
    let socket = Socket::listening("silent");
    let _silent: Vec<_> = (0..PRIVATE.connections_max - 1).map(|_| UnixStream::connect(&socket.0).unwrap()).collect();
    socket.assert_answers();
    let _two_more = [UnixStream::connect(&socket.0).unwrap(), UnixStream::connect(&socket.0).unwrap()];
    // All slots are taken: new peers are refused at once, and served after the time limit of the silent ones.
    loop {
        match client::ask(&socket.0, &VolumeRef::default(), &Request::Status, client::ANSWER_WITHIN) {
            Ok(Reply::Failed(failure)) if failure.what == "echo" => break,
            _ => thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// A single user could take all connections for queries, so that those of other users were refused.
#[test]
fn a_user_who_takes_all_connections_it_can_leaves_some_for_others() {
    let queries = Queries { most: 64, users: Arc::default() };
    let take_all = |user| -> Vec<Query> { std::iter::from_fn(|| queries.take(Uid::from_raw(user))).collect() };
    let mut taken = Vec::new();
    for (user, most) in [(1, 32), (2, 16), (3, 8), (4, 4)] {
        let of_one = take_all(user);
        assert_eq!(of_one.len(), most, "user {user}");
        assert!(queries.take(Uid::from_raw(user)).is_none());
        taken.extend(of_one);
    }
    assert_eq!(queries.users.lock().unwrap().len(), 4, "users without a connection are forgotten");
    drop(taken);
    assert!(queries.users.lock().unwrap().is_empty());
    assert_eq!(take_all(5).len(), 32);
}

/// Requests of every kind.
fn requests() -> Vec<Vec<u8>> {
    let mount = r#"{"version":1,"request":"mount","name":"web","source":"/a","mountpoint":"/b","options":{}}"#;
    let mut lines = vec![mount.as_bytes().to_vec()];
    lines.extend(
        [
            Request::Umount { deadline_ms: 60_000, force: true, discard: false, park: false },
            Request::Set { key: "cache".into(), value: "1GiB".into() },
            Request::SetTenant { tenant: "/a".into(), key: "limit".into(), value: "1MiB".into() },
            Request::Events,
        ]
        .map(|request| {
            Message::new(request)
                .about(VolumeRef { mountpoint: Some("/mnt/web".into()), ..VolumeRef::named(Some("web")) })
                .line()
        }),
    );
    lines
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn a_damaged_request_is_parsed_or_refused(line in damaged(requests())) {
        match parse(&line) {
            Ok(message) => {
                let again = parse(&message.line()).map_err(|failure| TestCaseError::fail(failure.what))?;
                prop_assert_eq!((again.volume, again.body), (message.volume, message.body));
            }
            Err(failure) => {
                prop_assert_eq!(failure.reason, slackwater_control::exit::Reason::Usage);
                let words = ["invalid request: ", "the request has version "];
                prop_assert!(words.iter().any(|words| failure.what.starts_with(words)), "{}", failure);
            }
        }
    }

    #[test]
    fn a_damaged_reply_is_parsed_or_refused(line in damaged(vec![
        Message::new(Reply::Failed(Failure::busy("in use").advise("close it"))).line(),
        Message::new(Reply::Progress { bytes_left: 7, written_bytes: 8 }).line(),
        Message::new(Reply::Mounted { name: "web".into(), missing_features: vec!["x".into()] }).line(),
        Message::new(Reply::Status(Box::new(slackwater_control::protocol::Status::sample()))).line(),
    ])) {
        if let Ok(message) = serde_json::from_slice::<Message<Reply>>(&line) {
            drop(message.body.done());
        }
    }
}

/// Over a socket: every request is answered, and the server answers the next one.
#[test]
fn damaged_requests_are_answered_and_delay_no_other() {
    let socket = Socket::listening("damaged");
    let mut runner = proptest::test_runner::TestRunner::new(cases());
    let sent = runner.run(&damaged(requests()), |mut line| {
        line.retain(|byte| *byte != b'\n');
        line.push(b'\n');
        let answer = socket.send(&line);
        prop_assert!(serde_json::from_str::<Message<Reply>>(&answer).is_ok(), "{answer:?}");
        Ok(())
    });
    sent.unwrap();
    socket.assert_answers();
}
