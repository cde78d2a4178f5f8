//! Requests of every kind, to the page with made-up figures.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::*;

const TOKEN: &str = "0123456789abcdef";
const PATIENCE: Duration = Duration::from_secs(60);

fn server(access: Access) -> Server {
    let listener = http::listen("--web", "127.0.0.1:0".parse().unwrap()).unwrap();
    let json = || Ok("{\"secret\":1}".into());
    http::serve("sw-web", listener, move |request| answer(request, &access, &json)).unwrap()
}

fn with_token() -> Server {
    let file = std::env::temp_dir().join(format!("slackwater-web-{:?}", std::thread::current().id()));
    let mut options = std::fs::OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.write(true).create(true).truncate(true).open(&file).unwrap().write_all(TOKEN.as_bytes()).unwrap();
    let access = access("0.0.0.0:1".parse().unwrap(), Some(&file)).unwrap();
    std::fs::remove_file(file).unwrap();
    server(access)
}

fn send(server: &Server, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The server may already have refused and closed.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

/// The answer to a request with these lines in its head.
fn ask(server: &Server, first: &str, lines: &[&str]) -> String {
    let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    send(server, format!("{first} HTTP/1.1\r\n{lines}\r\n").as_bytes())
}

#[track_caller]
fn expect(status: u16, answer: &str) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
    assert_eq!(answer.contains("secret"), status == 200 && !answer.contains("<html"), "{answer}");
}

const HERE: &str = "Host: 127.0.0.1:9811";

#[test]
fn there_are_the_page_and_its_figures_and_nothing_else() {
    let server = server(Access::from_this_machine());
    let page = ask(&server, "GET /", &[HERE]);
    expect(200, &page);
    assert!(page.contains("text/html; charset=utf-8") && page.contains("<title>Slackwater</title>"), "{page}");
    let figures = ask(&server, "GET /status.json?x=y", &[HERE]);
    expect(200, &figures);
    assert!(figures.contains("application/json") && figures.ends_with("{\"secret\":1}"), "{figures}");
    assert!(ask(&server, "HEAD /", &[HERE]).ends_with("\r\n\r\n"));
    for path in ["/x", "//", "/status.json/", "/../status.json", "/metrics", "/favicon.ico", "*"] {
        let answer = ask(&server, &format!("GET {path}"), &[HERE]);
        assert!(answer.starts_with("HTTP/1.1 4"), "{path}: {answer}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "BREW"] {
        for path in ["/", "/status.json"] {
            let answer = ask(&server, &format!("{method} {path}"), &[HERE, "Content-Length: 3"]);
            // CONNECT names no path.
            if method != "CONNECT" {
                expect(405, &answer);
                assert!(answer.contains("allow: GET, HEAD"), "{answer}");
            }
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
        }
    }
}

#[test]
fn every_answer_forbids_what_the_page_does_not_need() {
    let server = server(Access::from_this_machine());
    for (first, lines) in [
        ("GET /", &[HERE][..]),
        ("GET /status.json", &[HERE, "Origin: http://evil.example"]),
        ("GET /x", &[HERE]),
        ("POST /", &[HERE]),
        ("GET /", &["Host: evil.example"]),
    ] {
        let answer = ask(&server, first, lines).to_lowercase();
        for line in [
            "content-security-policy: default-src 'none'; script-src 'nonce-",
            "x-content-type-options: nosniff",
            "x-frame-options: deny",
            "referrer-policy: no-referrer",
            "cross-origin-resource-policy: same-origin",
            "cache-control: no-store",
        ] {
            assert!(answer.contains(line), "{first}: {line} is not in {answer}");
        }
        assert!(!answer.contains("access-control-"), "{answer}");
    }
}

#[test]
fn the_page_has_no_foreign_parts_and_a_nonce_of_its_own() {
    let server = server(Access::from_this_machine());
    let nonce = || {
        let page = ask(&server, "GET /", &[HERE]);
        let (_, rest) = page.split_once("script-src 'nonce-").unwrap();
        let nonce = rest[..rest.find('\'').unwrap()].to_owned();
        assert_eq!(page.matches(&format!("nonce=\"{nonce}\"")).count(), 2, "a style and a script");
        assert!(nonce.len() == 32 && !page.contains(NONCE), "{nonce}");
        nonce
    };
    assert_ne!(nonce(), nonce());
    let addresses = PAGE.match_indices("http").map(|(at, _)| &PAGE[at..PAGE.len().min(at + 26)]);
    assert!(addresses.into_iter().all(|it| it == "http://www.w3.org/2000/svg"), "a foreign address in the page");
    for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "style=\"", "onclick"] {
        assert!(!PAGE.contains(word), "{word}");
    }
}

/// A name of an attacker may lead here, and the pages of that name are of another origin only for us.
#[test]
fn requests_under_a_foreign_name_get_nothing() {
    let server = server(Access::from_this_machine());
    for lines in [
        &["Host: evil.example"][..],
        &["Host: evil.example:9811"],
        &[],
        &[HERE, "Host: evil.example"],
        &["Host: evil.example", HERE],
        &["Host: "],
        &["Host: \u{fc}"],
    ] {
        let answer = ask(&server, "GET /status.json", lines);
        assert!(answer.starts_with("HTTP/1.1 4") && !answer.contains("secret"), "{lines:?}: {answer}");
    }
    expect(421, &ask(&server, "GET http://evil.example/status.json", &[HERE]));
    for host in ["localhost", "localhost:1", "[::1]:9811", "10.1.2.3"] {
        expect(200, &ask(&server, "GET /status.json", &[&format!("Host: {host}")]));
    }
}

#[test]
fn figures_need_the_token_where_there_is_one() {
    let server = with_token();
    // A foreign name is harmless: its pages do not have the token. The page itself shows nothing.
    expect(200, &ask(&server, "GET /", &["Host: machine.example"]));
    for lines in [
        &[][..],
        &["Authorization: Bearer"],
        &["Authorization: Bearer 0123456789abcde"],
        &["Authorization: Bearer 0123456789abcdeg"],
        &["Authorization: Bearer 0123456789abcdef0"],
        &["Authorization: Basic 0123456789abcdef"],
        &["Authorization: 0123456789abcdef"],
        &["Authorization: Bearer 0123456789abcdef", "Authorization: Bearer x"],
        &["Cookie: token=0123456789abcdef"],
    ] {
        let answer = ask(&server, "GET /status.json?token=0123456789abcdef", &[&[HERE], lines].concat());
        expect(401, &answer);
        assert!(answer.contains("www-authenticate: Bearer"), "{answer}");
    }
    expect(200, &ask(&server, "GET /status.json", &[HERE, "Authorization: Bearer 0123456789abcdef"]));
}

#[test]
fn an_address_that_others_reach_needs_a_token() {
    for address in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[::ffff:192.0.2.1]:1"] {
        let failure = access(address.parse().unwrap(), None).map(drop).unwrap_err();
        assert!(failure.to_string().contains("--web-token-file"), "{failure}");
    }
    for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert!(access(address.parse().unwrap(), None).is_ok(), "{address}");
    }
}

#[test]
fn hostile_clients_delay_nobody() {
    let server = server(Access::from_this_machine());
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    let half = |_| {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        // A later client may have taken its place.
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHo");
        stream
    };
    let slow: Vec<_> = (0..100).map(half).collect();
    expect(200, &ask(&server, "GET /status.json", &[HERE]));
    let endless = [&b"GET / HTTP/1.1\r\nX: "[..], &vec![b'x'; 1 << 20]].concat();
    let answer = send(&server, &endless);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    let noise: Vec<u8> = (0_u32..1 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let _ = send(&server, &noise);
    expect(200, &ask(&server, "GET /status.json", &[HERE]));
    drop((silent, slow));
}
