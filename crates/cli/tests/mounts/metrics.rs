//! The metrics and events of a real mount, even with hostile clients.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;

use crate::bytes;
use crate::needs;
use crate::rig::{Mount, PATIENCE, Scratch, need_fuse, run, wait_until};

const MIB: u64 = 1 << 20;

/// The address at which the mount announces its metrics.
pub(crate) fn address(announcement: &str) -> String {
    let (_, rest) = announcement.split_once("Metrics: http://").unwrap_or_else(|| panic!("{announcement}"));
    rest.split_once("/metrics").unwrap().0.to_owned()
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The complete page.
fn scrape(address: &str) -> String {
    let mut stream = connect(address);
    let head =
        "GET /metrics HTTP/1.1\r\nHost: slackwater\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && page.ends_with("# EOF\n"), "{answer}");
    page.to_owned()
}

/// The value of the only series of the metric `name` in `page`.
fn value(page: &str, name: &str) -> f64 {
    let is_it = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    let found: Vec<_> = page.lines().filter(is_it).collect();
    let [line] = found[..] else { panic!("{name}: {found:?} in {page}") };
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

fn mounted(scratch: &Scratch, name: &str) -> (Mount, String) {
    let (source, mountpoint) = scratch.pair(name);
    let mount = scratch.mount(&source, &mountpoint, &["--metrics", "127.0.0.1:0", "--dirty-expire", "1h"]);
    let address = address(&mount.announcement);
    (mount, address)
}

#[test]
fn the_next_scrape_shows_what_programs_did() {
    need_fuse();
    let scratch = Scratch::new();
    let (mut mount, address) = mounted(&scratch, "a");
    let file = File::options().read(true).write(true).create_new(true).open(mount.mountpoint.join("file")).unwrap();
    file.write_all_at(&bytes(1, MIB as usize), 0).unwrap();
    let volume = |page: &str, name: &str| value(page, &format!("slackwater_volume_{name}"));
    let page = scrape(&address);
    assert_eq!(volume(&page, "dirty_bytes"), MIB as f64);
    assert_eq!((volume(&page, "written_bytes_total"), volume(&page, "mounted")), (0.0, 1.0));
    assert!(page.contains(&format!("slackwater_volume_dirty_bytes{{volume=\"{}\"}}", mount.mountpoint.display())));
    assert_eq!(value(&page, "slackwater_arena_dirty_bytes"), MIB as f64);
    assert_eq!(value(&page, "slackwater_volume_tenant_dirty_bytes"), MIB as f64);
    file.sync_all().unwrap();
    // A read through a descriptor that can also write bypasses the kernel's cache.
    file.read_exact_at(&mut vec![0; MIB as usize], 0).unwrap();
    let page = scrape(&address);
    let figures =
        ["dirty_bytes", "writeback_bytes", "unstable_bytes", "oldest_dirty_age_seconds", "write_failures_total"];
    assert_eq!(figures.map(|name| volume(&page, name)), [0.0; 5]);
    assert_eq!(volume(&page, "written_bytes_total"), MIB as f64);
    // 256 pages, minus those that the open file has not reported yet. A read is counted after its reply, so the count
    // may lag.
    wait_until("the read is counted", || (193.0..=256.0).contains(&volume(&scrape(&address), "cache_hits_total")));
    assert_eq!(volume(&scrape(&address), "cache_misses_total"), 0.0);
    assert!(value(&page, "slackwater_arena_clean_bytes") >= MIB as f64);
    assert_eq!(value(&page, "slackwater_engine_volumes"), 1.0);
    // A failed unmount is counted; a successful one closes the port.
    scratch.run(["umount", mount.mountpoint.to_str().unwrap()]).expect(3, &["in use"]);
    assert_eq!(value(&scrape(&address), "slackwater_unmount_failures_total"), 1.0);
    drop(file);
    scratch.umount(&mount.mountpoint);
    mount.wait().expect(0, &["Unmounted"]);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn hostile_clients_harm_neither_the_mount_nor_the_scrape() {
    need_fuse();
    let scratch = Scratch::new();
    let (mount, address) = mounted(&scratch, "a");
    let mut clients: Vec<_> = (0..200).map(|_| connect(&address)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        // A later connection may have taken its place.
        let _ = match number % 4 {
            0 => client.write_all(b"GET /metrics HTTP/1.1\r\nHost: "),
            1 => client.write_all(&bytes(number as u64, 64 << 10)),
            2 => client.write_all(&[b'\n'; 1 << 10]),
            _ => Ok(()),
        };
    }
    let mut garbage = connect(&address);
    let _ = garbage.write_all(&bytes(7, 1 << 20));
    for number in 0..10 {
        fs::write(mount.mountpoint.join(number.to_string()), bytes(number, 100_000)).unwrap();
        assert!(value(&scrape(&address), "slackwater_volume_dirty_bytes") > 0.0);
    }
    drop((clients, garbage));
    scratch.umount(&mount.mountpoint);
}

#[test]
fn a_port_in_use_is_reported_before_anything_is_mounted() {
    need_fuse();
    let scratch = Scratch::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (source, mountpoint) = scratch.pair("a");
    let (source, mountpoint) = (source.to_str().unwrap(), mountpoint.to_str().unwrap());
    let words = ["--metrics: 127.0.0.1", port.as_str(), "in use", "nothing was mounted"];
    scratch.run(["mount", source, mountpoint, "--metrics", &port]).expect(3, &words);
    scratch.run(["mount", source, mountpoint, "--background", "-o", &format!("metrics={port}")]).expect(3, &words);
    scratch.run(["mount", source, mountpoint, "--metrics", "nowhere"]).expect(2, &["127.0.0.1:9810"]);
    scratch.run(["status"]).expect(0, &["Nothing is mounted"]);
}

#[test]
fn events_are_json_lines_on_request() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a \"b\"");
    let arena = scratch.arena("a");
    let words = ["mount", "--cache", "32MiB", "--arena", arena.to_str().unwrap()];
    let mut command = scratch.command(words);
    command.args([&source, &mountpoint]).env("SLACKWATER_LOG", "trace").env("SLACKWATER_LOG_FORMAT", "json");
    let mut mount = Mount::start(command, &mountpoint);
    fs::write(mountpoint.join("file"), bytes(1, 100_000)).unwrap();
    scratch.umount(&mountpoint);
    let output = mount.wait();
    output.expect(0, &["Unmounted"]);
    let lines: Vec<_> = output.text.lines().filter(|line| !line.starts_with("Unmounted")).collect();
    let events: Vec<serde_json::Value> =
        lines.iter().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect();
    let count = |message: &str| events.iter().filter(|event| event["fields"]["message"] == message).count();
    assert!(count("writeback_bdi_register") == 1 && count("wbc_writepage") > 0 && count("umount_drain") == 1);
}

#[test]
fn an_unknown_level_or_format_of_the_log_is_reported() {
    let scratch = Scratch::new();
    let mut command = scratch.command(["status"]);
    command.env("SLACKWATER_LOG_FORMAT", "xml").env("SLACKWATER_LOG", "verbose");
    run(command).expect(
        0,
        &["SLACKWATER_LOG_FORMAT=\"xml\" is unknown", "json", "SLACKWATER_LOG=\"verbose\" is unknown; using warn"],
    );
}

#[test]
fn a_background_mount_serves_metrics() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let arena = scratch.arena("a");
    let options = format!("cache=32MiB,arena={},metrics=127.0.0.1:0", arena.display());
    let words = ["mount", "--background", "-o", &options, source.to_str().unwrap(), mountpoint.to_str().unwrap()];
    let output = scratch.run(words);
    output.expect(0, &["Mounted"]);
    let address = address(&output.text);
    assert_eq!(value(&scrape(&address), "slackwater_volume_mounted"), 1.0);
    scratch.umount(&mountpoint);
    wait_until("the port is free", || TcpStream::connect(&address).is_err());
}

/// Prometheus' own linter needs the text format, and probes need paths.
#[test]
fn the_default_is_the_text_format_and_probes_have_paths() {
    need_fuse();
    let scratch = Scratch::new();
    let (mut mount, address) = mounted(&scratch, "a");
    let ask = |path: &str| {
        let mut stream = connect(&address);
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: slackwater\r\nAccept: */*\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = ask("/metrics");
    assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
    let (_, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(!page.contains("# EOF") && !page.contains("# UNIT"), "{page}");
    // Each series has a head with its name, except for the parts of histograms.
    let heads: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let names = page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(['{', ' ']).next());
    let stem =
        |name: &str| ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part).map(str::to_owned));
    for name in names {
        let is_known = heads.contains(&name) || stem(name).is_some_and(|stem| heads.contains(&&*stem));
        assert!(is_known, "{name} has no head in {page}");
    }
    for (path, status) in [("/-/healthy", "200"), ("/-/ready", "200"), ("/healthz", "200"), ("/-/other", "404")] {
        assert!(ask(path).starts_with(&format!("HTTP/1.1 {status}")), "{path}");
    }
    if !needs::are_missing(&["promtool"]) {
        let mut lint = std::process::Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        lint.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
        let output = lint.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    scratch.umount(&mount.mountpoint.clone());
    mount.wait();
}
