//! A store for a test, with the commands that use it: a directory, or the local S3 server.

use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::needs;
use crate::rig::{Mount, Output, Process, Scratch, run};

/// A place for a volume, on which there is none yet.
pub(crate) struct Store {
    pub(crate) url: String,
    /// The variables that lead to the store.
    pub(crate) environment: Vec<(String, String)>,
    /// The directory of a `file:` store.
    pub(crate) objects: Option<PathBuf>,
    /// Arenas and local logs, in memory.
    memory: PathBuf,
    server: Option<Process>,
}

/// The stores on which a test runs: a directory, and the S3 server if it is built.
pub(crate) fn stores(scratch: &Scratch) -> Vec<Store> {
    let mut stores = vec![Store::directory(scratch)];
    let server = Path::new(env!("CARGO_BIN_EXE_slackwater")).with_file_name("slackwater-s3-server");
    match server.is_file() {
        true => stores.push(Store::s3(&server)),
        false => needs::skip("the local S3 server is not built: cargo build -p slackwater-s3-server"),
    }
    stores
}

fn memory() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = PathBuf::from(format!("/dev/shm/slackwater-object-{}-{number}", std::process::id()));
    fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
    path
}

impl Store {
    /// A store in a directory that does not exist yet.
    pub(crate) fn directory(scratch: &Scratch) -> Self {
        let memory = memory();
        let objects = scratch.path.join(memory.file_name().unwrap());
        let url = format!("file://{}", objects.display());
        Self { url, environment: Vec::new(), objects: Some(objects), memory, server: None }
    }

    fn s3(server: &Path) -> Self {
        let mut command = Command::new(server);
        let mut server = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let lines = BufReader::new(server.0.stdout.take().unwrap()).lines().map(Result::unwrap);
        let variables = lines.take_while(|line| !line.is_empty());
        let environment =
            variables.map(|line| line.split_once('=').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap()).collect();
        let url = "s3://test/some/volume".to_owned();
        Self { url, environment, objects: None, memory: memory(), server: Some(server) }
    }

    /// The variables that lead to the store, with keys that it refuses: for processes that have a volume with credentials of
    /// its own.
    pub(crate) fn decoys(&self) -> Vec<(String, String)> {
        let mut decoys = self.environment.clone();
        for (_, value) in decoys.iter_mut().filter(|(name, _)| name.contains("KEY")) {
            *value = "decoy".to_owned();
        }
        decoys.push(("AWS_SESSION_TOKEN".to_owned(), "decoy".to_owned()));
        decoys
    }

    /// Writes the variables that lead to the store to a file for `--credentials`. Commands get [`decoys`](Self::decoys) now.
    pub(crate) fn move_environment_to_file(&mut self, scratch: &Scratch) -> PathBuf {
        let decoys = self.decoys();
        let lines = std::mem::replace(&mut self.environment, decoys);
        let lines = lines.into_iter().map(|(name, value)| format!("{name}={value}\n"));
        let (path, text) = (scratch.path.join("keys"), lines.collect::<String>());
        let file = fs::File::options().write(true).create_new(true).mode(0o600).open(&path);
        file.unwrap().write_all(text.as_bytes()).unwrap();
        path
    }

    /// The value of a variable that leads to the store.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.environment.iter().find(|(variable, _)| variable == name).map(|(_, value)| value.as_str())
    }

    /// The arena of a mount, below a private directory.
    pub(crate) fn arena(&self, name: &str) -> PathBuf {
        self.memory.join(format!("{name}.arena"))
    }

    /// Everything that mounts have left in memory.
    pub(crate) fn left(&self) -> Vec<String> {
        let names = fs::read_dir(&self.memory).unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).collect()
    }

    /// The machine crashed: no arena and no local log is left.
    pub(crate) fn lose_memory(&self) {
        self.left().iter().for_each(|name| self.lose(name));
    }

    /// The arena of a mount at `mountpoint` is lost, with its local log.
    pub(crate) fn lose_arena(&self, mountpoint: &Path) {
        let stem = mountpoint.file_name().unwrap().to_string_lossy() + ".";
        self.left().iter().filter(|name| name.starts_with(&*stem)).for_each(|name| self.lose(name));
    }

    fn lose(&self, name: &str) {
        let path = self.memory.join(name);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }

    /// New mount points, with names that no other store of the test uses.
    pub(crate) fn mountpoints<const N: usize>(&self, scratch: &Scratch) -> [PathBuf; N] {
        let kind = if self.objects.is_some() { "directory" } else { "s3" };
        std::array::from_fn(|nth| scratch.dir(&format!("{kind}-{nth}"), 0o755))
    }

    /// The command, with the environment of the store.
    pub(crate) fn command(&self, scratch: &Scratch, words: &[&str]) -> Command {
        let mut command = scratch.command(words);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs the command to its end.
    #[track_caller]
    pub(crate) fn run(&self, scratch: &Scratch, words: &[&str]) -> Output {
        run(self.command(scratch, words))
    }

    /// Makes the volume.
    #[track_caller]
    pub(crate) fn mkfs(&self, scratch: &Scratch) {
        self.run(scratch, &["mkfs", &self.url]).expect(0, &["Made an empty volume at", &self.url]);
    }

    /// The words of a mount at `mountpoint`, whose arena has the name of `mountpoint`.
    fn words(&self, mountpoint: &Path, more: &[&str]) -> Vec<String> {
        let arena = self.arena(&mountpoint.file_name().unwrap().to_string_lossy());
        let fixed = ["mount", &self.url, mountpoint.to_str().unwrap(), "--cache", "64MiB", "--arena"];
        let words = fixed.into_iter().chain([arena.to_str().unwrap()]).chain(more.iter().copied());
        words.map(str::to_owned).collect()
    }

    /// The command that mounts in the foreground, with `more` words.
    pub(crate) fn mount_command(&self, scratch: &Scratch, mountpoint: &Path, more: &[&str]) -> Command {
        let words = self.words(mountpoint, more);
        self.command(scratch, &words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// That command as another user's, whose registry, the directory `elsewhere`, does not know the mounts of the test.
    pub(crate) fn elsewhere(&self, scratch: &Scratch, mountpoint: &Path, more: &[&str]) -> Command {
        let mut command = self.mount_command(scratch, mountpoint, more);
        command.env("SLACKWATER_RUNTIME_DIR", scratch.path.join("elsewhere"));
        command
    }

    /// Mounts in the foreground, with `more` words.
    #[track_caller]
    pub(crate) fn mount(&self, scratch: &Scratch, mountpoint: &Path, more: &[&str]) -> Mount {
        Mount::start(self.mount_command(scratch, mountpoint, more), mountpoint)
    }

    /// Tries to mount, for an error.
    #[track_caller]
    pub(crate) fn refused(&self, scratch: &Scratch, mountpoint: &Path, more: &[&str]) -> Output {
        run(self.mount_command(scratch, mountpoint, more))
    }

    /// Asserts that a check finds no errors.
    #[track_caller]
    pub(crate) fn fsck(&self, scratch: &Scratch) {
        self.run(scratch, &["fsck", &self.url, "--data"]).expect(0, &["No errors."]);
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            // It ends with its standard input, and removes its objects.
            drop(server.0.stdin.take());
            let _ = server.0.wait();
        }
        let _ = fs::remove_dir_all(&self.memory);
    }
}
