//! The page for operators of a real daemon, in a real browser.

use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::needs;
use crate::process::{Daemon, ask, command, table};
use crate::rig::{Scratch, bytes, need_fuse, run, wait_until};

const MIB: usize = 1 << 20;
const TOKEN: &str = "an-example-of-a-token";

fn figures(address: &str) -> Value {
    let answer = ask(address, "GET /status.json", &[]);
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// The page as a browser shows it after some seconds of its own time, and the lines of its console.
fn browse(scratch: &Scratch, url: &str) -> String {
    let mut chromium = Command::new("chromium");
    chromium.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
    chromium.args(["--disable-extensions", "--disable-background-networking", "--disable-component-update"]);
    chromium.args(["--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom"]);
    chromium.arg(format!("--user-data-dir={}", scratch.path.join("browser").display())).arg(url);
    let output = run({
        chromium.env("HOME", &scratch.path);
        chromium
    });
    output.expect(0, &["</html>"]);
    output.text
}

/// The beginning of the element with this identifier.
#[track_caller]
fn shown<'p>(page: &'p str, id: &str) -> &'p str {
    let (_, rest) = page.split_once(&format!("id=\"{id}\"")).unwrap_or_else(|| panic!("no {id} in {page}"));
    &rest[..rest.len().min(400)]
}

#[track_caller]
fn assert_quiet(page: &str) {
    // The lines of the console, such as [1127/080000.000:INFO:CONSOLE:12].
    assert!(!page.contains("CONSOLE"), "{page}");
}

#[test]
#[ignore = "long: needs a browser"]
fn a_browser_shows_the_volumes() {
    need_fuse();
    if needs::are_missing(&["chromium"]) {
        return;
    }
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("web");
    let config = "dirty-expire = \"1h\"\n".to_owned() + &table("web", &source, &mountpoint);
    let daemon = Daemon::start_with(&scratch, &config, |command| {
        command.args(["--web", "127.0.0.1:0"]);
    });
    let address = daemon.web_address();
    let file = File::create(mountpoint.join("file")).unwrap();
    file.write_all_at(&bytes(1, 3 * MIB), 0).unwrap();
    wait_until("the figures have the write", || figures(&address)["volumes"][0]["dirty_bytes"] == 3 * MIB);
    let page = browse(&scratch, &format!("http://{address}/"));
    assert_quiet(&page);
    assert!(shown(&page, "tile-held").contains("3.0 MiB"), "{page}");
    assert!(shown(&page, "health").contains("all is well") && shown(&page, "live").contains("live"), "{page}");
    let volume = page.split_once("<article").unwrap().1;
    for text in ["web", "mounted", mountpoint.to_str().unwrap(), source.to_str().unwrap(), "3.0 MiB"] {
        assert!(volume.contains(text), "{text} is not in {volume}");
    }
    drop(file);
    daemon.end();
}

#[test]
#[ignore = "long: needs a browser"]
fn a_browser_asks_for_the_token_and_takes_it_from_the_address() {
    need_fuse();
    if needs::are_missing(&["chromium"]) {
        return;
    }
    let scratch = Scratch::new();
    let token = token_file(&scratch, TOKEN, 0o600);
    let daemon = Daemon::start_with(&scratch, &format!("web = \"127.0.0.1:0\"\nweb-token-file = {token:?}\n"), |_| {});
    let address = daemon.web_address();
    assert!(ask(&address, "GET /status.json", &[]).starts_with("HTTP/1.1 401"));
    let authorization = format!("Authorization: Bearer {TOKEN}");
    assert!(ask(&address, "GET /status.json", &[&authorization]).starts_with("HTTP/1.1 200"));
    let page = browse(&scratch, &format!("http://{address}/#token={TOKEN}"));
    assert_quiet(&page);
    assert!(shown(&page, "volume-count").contains("none is mounted"), "{page}");
    let page = browse(&scratch, &format!("http://{address}/"));
    assert!(shown(&page, "live").contains("token needed") && shown(&page, "main").starts_with(" hidden"), "{page}");
    daemon.end();
}

fn token_file(scratch: &Scratch, token: &str, mode: u32) -> std::path::PathBuf {
    let path = scratch.path.join("token");
    fs::write(&path, token).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn the_figures_are_those_of_top() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let config = "dirty-expire = \"1h\"\ntenant-by = \"uid\"\n".to_owned() + &table("a", &source, &mountpoint);
    let daemon = Daemon::start_with(&scratch, &config, |command| {
        command.args(["--web", "127.0.0.1:0"]);
    });
    let address = daemon.web_address();
    assert_eq!(figures(&address)["interval_ms"], Value::Null, "the first sample has no rates");
    fs::write(mountpoint.join("file"), bytes(1, MIB)).unwrap();
    wait_until("there are two samples, and the last one is of the closed file", || {
        let found = figures(&address);
        let volume = &found["volumes"][0];
        found["interval_ms"].is_u64() && volume["dirty_bytes"] == MIB && volume["open_files"] == 0
    });
    let (mine, top) = (figures(&address), daemon.json_of(&["top", "--once", "--interval", "100ms"]));
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&mine["volumes"][0]), names(&top["volumes"][0]));
    for key in ["name", "source", "mountpoint", "phase", "dirty_bytes", "limit_bytes", "open_files"] {
        assert_eq!(mine["volumes"][0][key], top["volumes"][0][key], "{key}");
    }
    assert_eq!(mine["volumes"][0]["tenants"][0]["name"], top["volumes"][0]["tenants"][0]["name"]);
    assert_eq!(mine["daemon"]["pid"], daemon.process.0.id());
    let cache = |key: &str| mine["cache"][key].as_u64().unwrap();
    let parts = ["dirty_bytes", "writeback_bytes", "clean_bytes", "free_bytes"].map(cache);
    assert_eq!(parts.iter().sum::<u64>(), cache("bytes"));
    // Requests that change something are refused, and nothing changes.
    assert!(ask(&address, "POST /", &["Content-Length: 0"]).starts_with("HTTP/1.1 405"));
    assert!(ask(&address, "GET /status.json", &["Host: evil.example"]).starts_with("HTTP/1.1 4"));
    daemon.end();
    assert!(TcpStream::connect(address).is_err(), "the port is free");
}

#[test]
fn a_bad_address_a_taken_port_and_a_missing_token_are_refused_before_anything_is_mounted() {
    need_fuse();
    let scratch = Scratch::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let start = |more: &[&str]| {
        let mut command = command(&scratch, "");
        command.args(more);
        run(command)
    };
    start(&["--web", &port]).expect(3, &["--web: 127.0.0.1", &port, "in use", "nothing was mounted"]);
    start(&["--web", "nowhere"]).expect(2, &["--web", "127.0.0.1:9810"]);
    start(&["--web", "192.0.2.1:9811"]).expect(2, &["192.0.2.1:9811", "no token", "--web-token-file"]);
    start(&["--web", "0.0.0.0:0"]).expect(2, &["0.0.0.0:0", "no token", "--web-token-file"]);
    let token = token_file(&scratch, TOKEN, 0o644);
    let open = ["--web", "127.0.0.1:0", "--web-token-file", token.to_str().unwrap()];
    start(&open).expect(2, &["other users can read", "chmod 600"]);
    token_file(&scratch, "short", 0o600);
    start(&open).expect(2, &["--web-token-file", "make one"]);
    token_file(&scratch, TOKEN, 0o600);
    start(&["--web", "192.0.2.1:9811", open[2], open[3]]).expect(2, &["192.0.2.1 is not an address"]);
    start(&["--web-token-file", open[3]]).expect(2, &["without --web"]);
    start(&["--web", "127.0.0.1:0", "--web-token-file", "/none"]).expect(2, &["cannot read /none"]);
    assert!(!Path::new(&scratch.arena("daemon")).exists());
}
