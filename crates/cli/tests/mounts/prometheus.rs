//! A real Prometheus scrapes a real mount. Every panel and every alert in `dist` is evaluated on what it has scraped.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::bytes;
use crate::metrics::address;
use crate::needs;
use crate::rig::{PATIENCE, Process, Scratch, free_address, need_fuse, run, wait_until};

const DASHBOARDS: [&str; 3] = ["slackwater-host", "slackwater-volume", "slackwater-tenants"];
const ALERTS: &str = "prometheus/slackwater-alerts.yaml";

/// Panels without data for the mount of this test, by the beginning of their titles, and why.
const WITHOUT_DATA: [(&str, &str); 8] = [
    ("Duration of unmounts", "nothing was unmounted"),
    ("Changes that are only in the local log", "an object volume has them"),
    ("Age of the oldest of them", "an object volume has it"),
    ("Age of the last commit", "an object volume has it"),
    ("Transferred", "an object volume has it"),
    ("Requests", "an object volume has them"),
    ("Uploads in flight", "an object volume has them"),
    ("Containers:", "its tenants are users"),
];

fn dist(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../dist").join(name).canonicalize().unwrap()
}

/// A Prometheus that scrapes one address. It is killed at the end of the test, which removes its data.
struct Prometheus {
    address: SocketAddr,
    _process: Process,
}

impl Prometheus {
    fn start(scratch: &Scratch, target: &str) -> Self {
        let config = scratch.path.join("prometheus.yml");
        let text = format!(
            "global: {{ scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms }}\n\
             rule_files: [{:?}]\n\
             scrape_configs:\n  - job_name: slackwater\n    static_configs: [{{ targets: [{target:?}] }}]\n",
            dist(ALERTS)
        );
        fs::write(&config, text).unwrap();
        let address = free_address();
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", scratch.dir("prometheus", 0o700).display()));
        command.arg(format!("--web.listen-address={address}")).arg("--log.level=error");
        let process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()));
        let prometheus = Self { address, _process: process };
        wait_until("Prometheus is ready", || prometheus.get("/-/ready").is_some_and(|answer| answer.contains("Ready")));
        prometheus
    }

    /// The body of an answer. `None` while Prometheus does not listen yet.
    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        Some(answer.split_once("\r\n\r\n")?.1.to_owned())
    }

    /// The data of an answer of its interface for programs.
    #[track_caller]
    fn data(&self, path: &str, about: &str) -> Value {
        let mut answer: Value = serde_json::from_str(&self.get(path).unwrap()).unwrap();
        assert_eq!(answer["status"], "success", "{about}: {answer}");
        answer["data"].take()
    }

    /// The values that a query has now.
    #[track_caller]
    fn query(&self, query: &str) -> Vec<f64> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let data = self.data(&format!("/api/v1/query?query={encoded}"), query);
        let series = data["result"].as_array().unwrap();
        series.iter().map(|series| series["value"][1].as_str().unwrap().parse().unwrap()).collect()
    }
}

/// The titles and queries of all panels, with the variables of the dashboard set to all.
fn panels() -> Vec<(String, String)> {
    let mut panels = Vec::new();
    for name in DASHBOARDS {
        let text = fs::read_to_string(dist(&format!("grafana/{name}.json"))).unwrap();
        let board: Value = serde_json::from_str(&text).unwrap();
        for panel in board["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let mut query = target["expr"].as_str().unwrap().to_owned();
                for (variable, value) in
                    [("$instance", ".*"), ("$volume", ".*"), ("$tenant", ".*"), ("$__rate_interval", "1m")]
                {
                    query = query.replace(variable, value);
                }
                assert!(!query.contains('$'), "{name}: {query}");
                panels.push((panel["title"].as_str().unwrap().to_owned(), query));
            }
        }
    }
    panels
}

#[test]
#[ignore = "long: needs Prometheus"]
fn every_panel_and_alert_works_on_the_metrics_of_a_mount() {
    need_fuse();
    if needs::are_missing(&["prometheus"]) {
        return;
    }
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let options =
        ["--metrics", "127.0.0.1:0", "--dirty-expire", "1h", "--tenant-by", "uid", "--tenant-limit", "uid:0=8MiB"];
    let mut mount = scratch.mount(&source, &mountpoint, &options);
    let prometheus = Prometheus::start(&scratch, &address(&mount.announcement));
    let file = File::options().read(true).write(true).create_new(true).open(mountpoint.join("file")).unwrap();
    // A query has no value after a scrape that took too long, until the next one.
    let scraped_at = || prometheus.query("max(timestamp(slackwater_volume_written_bytes_total))").into_iter().next();
    wait_until("Prometheus has scraped the mount", || scraped_at().is_some());
    file.write_all_at(&bytes(1, 1 << 20), 0).unwrap();
    file.sync_all().unwrap();
    // A descriptor that can also write bypasses the kernel's cache.
    file.read_exact_at(&mut vec![0; 1 << 20], 0).unwrap();
    file.write_all_at(&bytes(2, 1 << 20), 0).unwrap();
    // The counts of reads may lag.
    wait_until("reads are counted", || {
        prometheus.query("slackwater_volume_cache_hits_total").iter().any(|it| *it > 0.0)
    });
    wait_until("writes are counted", || prometheus.query("slackwater_volume_dirty_bytes").contains(&1_048_576.0));
    let mut last = None;
    wait_until("there is a scrape", || {
        last = scraped_at();
        last.is_some()
    });
    wait_until("there are later scrapes", || scraped_at() >= last.map(|at| at + 1.0));

    for (title, query) in panels() {
        let has_data = || prometheus.query(&query).iter().any(|value| !value.is_nan());
        match WITHOUT_DATA.iter().find(|(beginning, _)| title.starts_with(beginning)) {
            None => wait_until(&format!("there is data for {title}: {query}"), has_data),
            Some((_, why)) => assert!(!has_data(), "{title} ({why}): {query}"),
        }
    }
    wait_until("all alerts are evaluated", || {
        let data = prometheus.data("/api/v1/rules?type=alert", "rules");
        let rules = data["groups"][0]["rules"].as_array().unwrap();
        let failed = rules.iter().find(|rule| rule["health"] == "err");
        assert!(failed.is_none() && rules.len() > 10, "{failed:?}");
        rules.iter().all(|rule| rule["health"] == "ok")
    });
    let firing = prometheus.query("ALERTS{alertstate=\"firing\"}");
    assert!(firing.is_empty(), "a mount that works fires {firing:?}");

    drop((file, prometheus));
    scratch.umount(&mountpoint);
    mount.wait().expect(0, &["Unmounted"]);
}

#[test]
#[ignore = "long: needs Prometheus"]
fn the_alerts_pass_their_tests() {
    if needs::are_missing(&["promtool"]) {
        return;
    }
    let mut check = Command::new("promtool");
    check.args(["check", "rules"]).arg(dist(ALERTS));
    run(check).expect(0, &["SUCCESS"]);
    let mut test = Command::new("promtool");
    test.args(["test", "rules"]).arg(dist("prometheus/slackwater-alerts.test.yaml"));
    run(test).expect(0, &["SUCCESS"]);
}
