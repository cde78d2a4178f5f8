//! A server with a certificate of its own authority, in Python.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const TOKEN: &str = "a.valid.token";
const SERVER: &str = include_str!("server.py");

/// A server, and the account of a client: both end with the test.
pub(crate) struct Cluster {
    pub(crate) account: PathBuf,
    pub(crate) port: u16,
    process: Child,
}

impl Cluster {
    /// A server whose pods have the UID `uid`. `None` if the machine has no Python or no openssl.
    pub(crate) fn new(test: &str, uid: &str) -> Option<Self> {
        if Command::new("openssl").arg("version").output().is_err()
            || Command::new("python3").arg("-V").output().is_err()
        {
            eprintln!("skipped: no openssl or no python3 here");
            return None;
        }
        let account = std::env::temp_dir().join(format!("slackwater-api-{test}-{}", std::process::id()));
        fs::create_dir(&account).unwrap();
        certify(&account, "ca", &["-subj", "/CN=authority"]);
        let server = ["-subj", "/CN=server", "-CA", "ca.crt", "-CAkey", "ca.key", "-addext"];
        let for_server = ["subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"];
        certify(&account, "server", &[&server[..], &for_server].concat());
        let mut python = Command::new("python3");
        python.args(["-c", SERVER, TOKEN, uid]).current_dir(&account).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = python.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let cluster = Self { account, port: line.trim().parse().unwrap(), process };
        cluster.give_token();
        Some(cluster)
    }

    /// Gives the account the token that the server accepts.
    pub(crate) fn give_token(&self) {
        fs::write(self.account.join("token"), format!("{TOKEN}\n")).unwrap();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.account);
    }
}

/// Makes `NAME.crt` and `NAME.key`.
pub(crate) fn certify(directory: &Path, name: &str, more: &[&str]) {
    let (key, certificate) = (format!("{name}.key"), format!("{name}.crt"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"])
        .args(["-keyout", &key, "-out", &certificate])
        .args(more)
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
}
