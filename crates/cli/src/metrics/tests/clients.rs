//! Clients get an answer or are dropped, and do not delay another client's scrape.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::{Resource, Uid, getrlimit, setrlimit};
use rustix::thread::set_thread_res_uid;
use slackwater_control::exit::Reason;
use slackwater_control::protocol::Status;

use super::page::Page;
use super::snapshot;
use crate::http::{self, Server};
use crate::metrics::serve;

/// Limit for every wait. Nothing takes that long, even on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn server() -> Server {
    serve(
        http::listen("--metrics", ANYWHERE).unwrap(),
        || snapshot(vec![("/mnt".to_owned(), Status::sample())]),
        || true,
    )
    .unwrap()
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends bytes and returns everything that comes back until the server closes.
fn send(server: &Server, bytes: &[u8]) -> String {
    let mut stream = connect(server);
    // The server may already have refused and closed.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

fn ask(server: &Server, method: &str, path: &str) -> (String, String) {
    let answer = send(
        server,
        format!("{method} {path} HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text\r\n\r\n").as_bytes(),
    );
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    (head.to_lowercase(), body.to_owned())
}

#[track_caller]
fn assert_scraped(server: &Server) {
    let (head, body) = ask(server, "GET", "/metrics");
    assert!(head.starts_with("http/1.1 200 ok"), "{head}");
    assert_eq!(Page::parse(&body).value("slackwater_volume_mounted", &["/mnt"]), 1.0);
}

#[test]
fn metrics_and_health_are_there_and_nothing_else() {
    let server = server();
    let (head, body) = ask(&server, "GET", "/metrics");
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
    assert!(head.contains(&format!("content-length: {}", body.len())) && head.contains("connection: close"), "{head}");
    assert_scraped(&server);
    let (head, body) = ask(&server, "GET", "/healthz");
    assert!(head.starts_with("http/1.1 200 ok") && body == "ok\n", "{head}");
    let (head, body) = ask(&server, "HEAD", "/metrics");
    assert!(head.starts_with("http/1.1 200 ok") && body.is_empty(), "{head}");
    assert!(ask(&server, "GET", "/metrics?x=y").0.starts_with("http/1.1 200"));
    for path in ["/", "/metrics/", "/healthz/x", "//metrics", "/../metrics"] {
        let (head, body) = ask(&server, "GET", path);
        assert!(head.starts_with("http/1.1 404") && body.contains("/metrics"), "{path}: {head}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
        let (head, _) = ask(&server, method, "/metrics");
        assert!(head.starts_with("http/1.1 405") && head.contains("allow: get, head"), "{method}: {head}");
    }
}

#[test]
fn garbage_is_refused_and_affects_no_other_client() {
    let server = server();
    for garbage in
        [&b"\xff\xfe\x00\x01\r\n\r\n"[..], b"GET\r\n\r\n", b"GET /metrics HTTP/9.9\r\n\r\n", b"{\"version\":1}\n\n"]
    {
        let answer = send(&server, garbage);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    // A head without an end, and a body that is not read.
    let endless = [&b"GET /metrics HTTP/1.1\r\nX: "[..], &vec![b'x'; 1 << 20]].concat();
    let answer = send(&server, &endless);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    let noise: Vec<u8> = (0_u32..1 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let _ = send(&server, &noise);
    let body =
        [&b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1048576\r\n\r\n"[..], &vec![b'x'; 1 << 20]].concat();
    let _ = send(&server, &body);
    assert_scraped(&server);
}

#[test]
fn two_hundred_silent_clients_delay_no_scrape() {
    let server = server();
    let _silent: Vec<_> = (0..100).map(|_| connect(&server)).collect();
    assert_scraped(&server);
    let half = |_| {
        let mut stream = connect(&server);
        // A later client may have taken its place.
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHo");
        stream
    };
    let half: Vec<_> = (0..100).map(half).collect();
    assert_scraped(&server);
    // The first of them is dropped when its time is over.
    let mut first = &half[0];
    let _ = first.read_to_end(&mut Vec::new());
    assert_scraped(&server);
}

/// Another user connects as fast as it can, and holds connections. Each took the place of an older one, and a scraper had
/// lost its connection before its request came.
#[test]
fn a_flood_of_connections_delays_no_scrape() {
    const HELD: usize = 150;
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let server = server();
    let (made, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let nobody = Uid::from_raw(65534);
                // Only root can. Others have the larger number of connections alone.
                let _ = set_thread_res_uid(nobody, nobody, nobody);
                let mut held = VecDeque::new();
                while !stop.load(Ordering::Relaxed) {
                    held.extend(TcpStream::connect(server.address()).ok());
                    made.fetch_add(1, Ordering::Relaxed);
                    if held.len() > HELD {
                        held.pop_front();
                    }
                }
            });
        }
        let scrapes = catch_unwind(AssertUnwindSafe(|| {
            for number in 1..=10 {
                while made.load(Ordering::Relaxed) < number * 200 {
                    std::thread::yield_now();
                }
                assert_scraped(&server);
            }
        }));
        stop.store(true, Ordering::Relaxed);
        scrapes.unwrap_or_else(|panic| resume_unwind(panic));
    });
}

#[test]
fn a_client_that_ends_in_the_middle_is_forgotten() {
    let server = server();
    for _ in 0..100 {
        let mut stream = connect(&server);
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
        let _ = stream.shutdown(Shutdown::Both);
    }
    assert_scraped(&server);
}

#[test]
fn a_dropped_server_releases_everything() {
    let alive = Arc::new(AtomicUsize::new(0));
    let held = Arc::clone(&alive);
    let count = move || {
        held.fetch_add(1, Ordering::Relaxed);
        snapshot(vec![("/mnt".to_owned(), Status::sample())])
    };
    let server = serve(http::listen("--metrics", ANYWHERE).unwrap(), count, || false).unwrap();
    let address = server.address();
    assert!(ask(&server, "GET", "/-/ready").0.contains("503"));
    assert_eq!(alive.load(Ordering::Relaxed), 0, "a probe looks at no volume");
    assert_scraped(&server);
    assert_eq!(alive.load(Ordering::Relaxed), 1, "one snapshot for each scrape");
    let mut silent = connect(&server);
    drop(server);
    assert_eq!(Arc::strong_count(&alive), 1, "no scrape is possible any more");
    assert_eq!(silent.read(&mut [0; 1]).unwrap_or(0), 0);
    assert!(TcpStream::connect(address).is_err());
    drop(http::listen("--metrics", address).unwrap());
}

#[test]
fn a_port_in_use_and_a_foreign_address_are_reported() {
    let taken = TcpListener::bind(ANYWHERE).unwrap();
    let failure = http::listen("--metrics", taken.local_addr().unwrap()).unwrap_err();
    assert_eq!(failure.reason, Reason::Busy);
    assert!(failure.what.contains(&taken.local_addr().unwrap().to_string()), "{failure}");
    // Reserved for documentation; no machine has it.
    let failure = http::listen("--metrics", "192.0.2.1:9810".parse().unwrap()).unwrap_err();
    assert!(failure.reason == Reason::Usage && failure.what.contains("192.0.2.1"), "{failure}");
}
