//! The file systems that are compared: an object volume, a volume of a directory, and others on the same S3 server.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::server::{ACCESS_KEY, Delay, REGION, SECRET_KEY, Servers};
use crate::fuse::{Mounted, OURS, RCLONE, Server, arena_in, mountpoint_in, on_path, tied};
use crate::programs;

/// The column of a volume of ours whose source is a directory.
pub(super) const DIR: &str = "dir volume";
pub(super) const S3FS: &str = "s3fs";

/// File systems of others, which keep each file as an object.
pub(super) const PEERS: [&str; 2] = [RCLONE, S3FS];

/// Holds all files of the comparison.
pub(super) const CACHE_BYTES: u64 = 1 << 30;

/// A file system that is mounted, and mounted again when it should have nothing in its caches.
pub(super) struct Subject {
    server: Server,
    /// None of a volume of a directory.
    delay: Option<Delay>,
    endpoint: String,
    /// It has one of its own: to this server, a prefix with objects is a directory, and rclone and s3fs fail on those.
    bucket: String,
    home: PathBuf,
    mounted: Option<Mounted>,
}

impl Subject {
    /// A new object volume of `program`, mounted.
    pub(super) fn ours(program: &Path, s3: &Servers, delay: Delay, home: PathBuf) -> Result<Self> {
        let mut subject = Self::unmounted(Server::new(OURS, program.to_path_buf()), s3, delay, home)?;
        let mut mkfs = Command::new(program);
        subject.tell_store(&mut mkfs);
        programs::run(mkfs.arg("mkfs").arg(subject.url()))?;
        subject.mount()?;
        Ok(subject)
    }

    /// A volume of a new directory, mounted.
    pub(super) fn dir(program: &Path, home: PathBuf) -> Result<Self> {
        let server = Server::new(OURS, program.to_path_buf()).with_options(&["--dirty-ratio", "75"]);
        let (endpoint, bucket) = (String::new(), String::new());
        let mut subject = Self { server, delay: None, endpoint, bucket, home, mounted: None };
        subject.mount()?;
        Ok(subject)
    }

    /// The file system `name` of others, mounted; `None` if it is not installed.
    pub(super) fn peer(name: &'static str, s3: &Servers, delay: Delay, home: PathBuf) -> Result<Option<Self>> {
        let Some(program) = on_path(name) else { return Ok(None) };
        let mut subject = Self::unmounted(Server::new(name, program), s3, delay, home)?;
        subject.mount()?;
        Ok(Some(subject))
    }

    fn unmounted(server: Server, s3: &Servers, delay: Delay, home: PathBuf) -> Result<Self> {
        let (endpoint, bucket) = (s3.endpoint(delay), format!("{}-volume", server.name));
        s3.make_bucket(delay, &bucket)?;
        Ok(Self { server, delay: Some(delay), endpoint, bucket, home, mounted: None })
    }

    /// Its column in tables.
    pub(super) fn column(&self) -> &'static str {
        if self.delay.is_some() { self.server.name } else { DIR }
    }

    pub(super) fn delay(&self) -> Option<Delay> {
        self.delay
    }

    /// Whether it is one of [`PEERS`].
    pub(super) fn is_peer(&self) -> bool {
        PEERS.contains(&self.server.name)
    }

    pub(super) fn path(&self) -> PathBuf {
        mountpoint_in(&self.home)
    }

    pub(super) fn pid(&self) -> Result<u32> {
        Ok(self.mounted.as_ref().context("it is not mounted")?.pid())
    }

    /// The server's file of the object with the data of a file, if it is one of the peers.
    pub(super) fn object_of(&self, s3: &Servers, file: &str) -> Option<PathBuf> {
        let delay = self.delay.filter(|_| self.is_peer())?;
        Some(s3.object(delay, Path::new(&self.bucket).join(file)))
    }

    /// Mounts it and returns the time until the first answer.
    pub(super) fn mount(&mut self) -> Result<Duration> {
        let mounted = match self.delay {
            Some(_) => Mounted::start(&self.server, self.command()?, &self.home),
            None => Mounted::new(&self.server, &self.home, CACHE_BYTES),
        };
        let mounted = mounted.with_context(|| format!("cannot mount {}", self.column()))?;
        Ok(self.mounted.insert(mounted).mount_time)
    }

    /// Unmounts it, which makes everything durable.
    pub(super) fn umount(&mut self) -> Result<Duration> {
        let mounted = self.mounted.take().context("it is not mounted")?;
        mounted.umount().map(|times| times.server).with_context(|| format!("cannot unmount {}", self.column()))
    }

    /// Empties its caches and those of the kernel.
    pub(super) fn remount(&mut self) -> Result<Duration> {
        self.umount()?;
        self.mount()
    }

    /// Makes everything durable. Peers need an fsync of each file.
    pub(super) fn settle(&self) -> Result<()> {
        self.mounted.as_ref().context("it is not mounted")?.settle()
    }

    fn url(&self) -> String {
        format!("s3://{}/prefix", self.bucket)
    }

    /// Tells the client of the store in `command` where the store is.
    fn tell_store(&self, command: &mut Command) {
        command.env("AWS_ENDPOINT_URL", &self.endpoint).env("AWS_ALLOW_HTTP", "true").env("AWS_REGION", REGION);
        // There is no TLS, and rclone cannot start with certificates of its own.
        command.env_remove("AWS_CA_BUNDLE");
        command.env("AWS_ACCESS_KEY_ID", ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
    }

    /// The command that mounts it and runs until it is unmounted.
    fn command(&self) -> Result<Command> {
        let mountpoint = self.path();
        // Ours unmounts when it gets this signal.
        let mut command = tied(self.server.program(), "TERM");
        self.tell_store(&mut command);
        match self.server.name {
            OURS => {
                command.args(["mount", "--foreground", "--dirty-ratio", "75", "--cache", &CACHE_BYTES.to_string()]);
                command.arg("--arena").arg(arena_in(&self.home)).arg(self.url()).arg(mountpoint);
            }
            RCLONE => {
                command.args(["mount", "--config", "/dev/null", "--vfs-cache-mode", "writes"]);
                // Uploads begin at close, not 5 s later.
                command.args(["--vfs-write-back", "0s"]);
                // It would ask for the time of each file in a listing.
                command.arg("--use-server-modtime");
                command.arg("--cache-dir").arg(self.home.join("cache"));
                command.env("RCLONE_S3_PROVIDER", "Other").env("RCLONE_S3_ENDPOINT", &self.endpoint);
                command.env("RCLONE_S3_ENV_AUTH", "true").env("RCLONE_S3_REGION", REGION);
                command.arg(format!(":s3:{}", self.bucket)).arg(mountpoint);
            }
            S3FS => {
                let key = self.home.join("key");
                let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&key);
                let written = file.and_then(|mut file| writeln!(file, "{ACCESS_KEY}:{SECRET_KEY}"));
                written.with_context(|| format!("cannot write {}", key.display()))?;
                command.arg(&self.bucket).arg(mountpoint).arg("-f");
                // It hangs in the upload of a file in parts to a server that it does not know.
                let options = format!("url={},use_path_request_style,endpoint={REGION},nomultipart", self.endpoint);
                command.arg("-o").arg(options).arg("-o").arg(format!("passwd_file={}", key.display()));
            }
            other => unreachable!("no subject has the name {other}"),
        }
        Ok(command)
    }

    pub(super) fn is_mounted(&self) -> bool {
        self.mounted.is_some()
    }

    /// Ends it, whatever its state.
    pub(super) fn abandon(&mut self) {
        self.mounted = None;
    }

    /// Ends it.
    pub(super) fn end(mut self) -> Result<()> {
        ensure!(self.mounted.is_some(), "{} is not mounted", self.column());
        self.umount().map(drop)
    }
}
