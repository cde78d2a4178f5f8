//! Test fixtures: scratch directories, mounts and processes, all cleaned up at the end of a test.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod arena;

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags, fsconfig_create, fsmount, fsopen, unmount,
};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use slackwater_fuse::abort_connection;
use slackwater_testkit::Random;

/// Limit for every wait. Nothing takes that long, even on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A killed process that has not ended then needs help.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// Environment variable with the directory of the registry.
const REGISTRY_VARIABLE: &str = "SLACKWATER_RUNTIME_DIR";

/// The command that the tests run: the one that is built with them, or the one that `SLACKWATER_TEST_COMMAND` names.
pub(crate) fn slackwater() -> &'static str {
    static NAMED: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("SLACKWATER_TEST_COMMAND").ok());
    NAMED.as_deref().unwrap_or(env!("CARGO_BIN_EXE_slackwater"))
}

/// Exit status of a command that found something in use.
pub(crate) const BUSY: i32 = 3;
/// Exit status of a command that found no mount.
pub(crate) const NOT_MOUNTED: i32 = 5;
/// The longest moment in which descriptors of a test are also those of a child that another test has just started.
const BUSY_WITHIN: Duration = Duration::from_secs(10);

/// Begins a shell script in a new mount namespace. Copies of the mounts that other tests have would keep their volumes
/// in use. A copy that goes meanwhile, with its directory, makes umount fail.
pub(crate) const UNMOUNT_COPIES: &str =
    "umount -l -a -t fuse.slackwater || if grep ' fuse.slackwater ' /proc/self/mounts; then exit 97; fi\n";

/// How long a thread takes to stop if it waits for no other server.
const STOPS_WITHIN: Duration = Duration::from_secs(10);

/// Fails a test where nothing can be mounted. Passing there would claim something that was not tested.
#[track_caller]
pub(crate) fn need_fuse() {
    assert!(rustix::process::geteuid().is_root(), "real mounts are tested as root");
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    assert!(device.is_ok(), "real mounts are tested with /dev/fuse: {device:?}");
}

/// A directory in /tmp for the files of a test. Dropping it removes it with everything in it, mounts included.
pub(crate) struct Scratch {
    pub(crate) path: PathBuf,
}

impl Scratch {
    /// Copies the command to a place where an unprivileged user can execute it; a checkout may be below a private directory.
    /// Another process makes the copy: a child that another test starts at this moment would inherit a descriptor for
    /// writing, and the file would be busy.
    pub(crate) fn command_for_all(&self) -> PathBuf {
        let binary = self.path.join("slackwater");
        let copied = Command::new("install").args(["-m", "755"]).arg(slackwater()).arg(&binary).status();
        assert!(copied.unwrap().success());
        binary
    }

    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("slackwater-cli-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        // Other users need to enter it in tests of permissions.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let scratch = Self { path };
        scratch.dir("run", 0o700);
        scratch
    }

    /// Creates a directory.
    pub(crate) fn dir(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.path.join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// Creates a source directory and a mount point.
    pub(crate) fn pair(&self, name: &str) -> (PathBuf, PathBuf) {
        (self.dir(&format!("{name}-source"), 0o755), self.dir(&format!("{name}-mount"), 0o755))
    }

    /// The path of an arena in memory. The file is removed with the scratch directory.
    pub(crate) fn arena(&self, name: &str) -> PathBuf {
        let own = self.path.file_name().unwrap().to_string_lossy().into_owned();
        Path::new("/dev/shm").join(format!("{own}-{name}.arena"))
    }

    /// The command, with its registry in the scratch directory.
    pub(crate) fn command<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Command {
        let mut command = Command::new(slackwater());
        command.args(arguments).env(REGISTRY_VARIABLE, self.path.join("run")).stdin(Stdio::null());
        command
    }

    /// Runs the command to its end.
    pub(crate) fn run<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Output {
        run(self.command(arguments))
    }

    /// Runs the command as [`run`](Self::run) does, again and again while something is in use, see [`repeat_while`].
    pub(crate) fn run_when_free<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I> + Clone) -> Output {
        repeat_while(Output::is_busy, || self.run(arguments.clone()))
    }

    /// Runs `status` until it knows of a dead process. A child that another test has just started may have the lock of
    /// that process, see [`repeat_while`].
    pub(crate) fn status_after_death(&self) -> Output {
        repeat_while(|output: &Output| !output.text.contains("which died"), || self.run(["status"]))
    }

    /// Mounts in the foreground, with `more` arguments.
    pub(crate) fn mount(&self, source: &Path, mountpoint: &Path, more: &[&str]) -> Mount {
        let name = mountpoint.file_name().unwrap().to_string_lossy().into_owned();
        let arena = self.arena(&name);
        let arena = arena.to_str().unwrap();
        let has_arena = more.contains(&"--arena");
        let mut arguments = vec!["mount", source.to_str().unwrap(), mountpoint.to_str().unwrap()];
        arguments.extend(["--cache", "64MiB"].iter().filter(|_| !more.contains(&"--cache")));
        arguments.extend(["--arena", arena].iter().filter(|_| !has_arena));
        arguments.extend(more);
        Mount::start(self.command(arguments), mountpoint)
    }

    /// Mounts as [`mount`](Self::mount) does, for a test that stops the process by a signal. Over io_uring, processes
    /// that wait for it could not be killed (ADR 0028).
    pub(crate) fn mount_to_be_stopped(&self, source: &Path, mountpoint: &Path) -> Mount {
        self.mount(source, mountpoint, &["--transport", "dev"])
    }

    /// Unmounts and expects success. Repeats that while the volume is in use, see [`umount_when_free`].
    #[track_caller]
    pub(crate) fn umount(&self, mountpoint: &Path) {
        self.umount_with(mountpoint, &[]);
    }

    /// Unmounts as [`umount`](Self::umount) does, with `more` arguments.
    #[track_caller]
    pub(crate) fn umount_with(&self, mountpoint: &Path, more: &[&str]) {
        let words = [&["umount", mountpoint.to_str().unwrap()], more].concat();
        umount_when_free(|| self.run(&words)).expect(0, &[]);
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap_or_default();
        for point in mounts.lines().rev().filter_map(|line| line.split(' ').nth(1)).map(Path::new) {
            if point.starts_with(&self.path) {
                let _ = unmount(point, UnmountFlags::DETACH);
            }
        }
        let own = self.path.file_name().unwrap().to_string_lossy().into_owned();
        for entry in fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&format!("{own}-")) {
                let _ = fs::remove_file(entry.path());
            }
        }
        if !thread::panicking() {
            fs::remove_dir_all(&self.path).unwrap();
        } else {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Exit status and output of a command.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) text: String,
}

impl Output {
    /// Asserts the status, and that the output contains `words`.
    #[track_caller]
    pub(crate) fn expect(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.text);
        for word in words {
            assert!(self.text.contains(word), "{word:?} is not in: {}", self.text);
        }
    }

    /// Whether the command found something in use.
    pub(crate) fn is_busy(&self) -> bool {
        self.code == Some(BUSY)
    }
}

/// Runs a command and waits for its end; kills it if it hangs.
#[track_caller]
pub(crate) fn run(command: Command) -> Output {
    run_within(command, PATIENCE)
}

/// Runs a command as [`run`] does, with another time limit.
#[track_caller]
pub(crate) fn run_within(mut command: Command, limit: Duration) -> Output {
    let mut child = Process(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let (stdout, stderr) = (child.0.stdout.take().unwrap(), child.0.stderr.take().unwrap());
    let readers = [read_all(stdout), read_all(stderr)];
    let status = child.wait_within(limit);
    let text = readers.map(|reader| reader.join().unwrap()).concat();
    Output { code: status.code(), text }
}

fn read_all(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut text = Vec::new();
        let _ = from.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    })
}

fn follow(from: impl Read + Send + 'static, said: Arc<Mutex<String>>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            *said.lock().unwrap() += &(line + "\n");
        }
    })
}

/// A child process that is killed at the end of the test.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    #[track_caller]
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    /// Starts the command with these arguments, and waits until it listens at `socket`.
    #[track_caller]
    pub(crate) fn listening(arguments: &[String], registry: &Path, socket: &Path) -> Self {
        let mut command = Command::new(slackwater());
        command.args(arguments).env(REGISTRY_VARIABLE, registry).stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = Self::spawn(&mut command);
        wait_until("it listens", || {
            assert!(process.0.try_wait().unwrap().is_none(), "it has ended");
            UnixStream::connect(socket).is_ok()
        });
        process
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Sends SIGSTOP and waits until the threads have stopped, since they may answer requests until then. A thread that waits
    /// for another server stops later.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        let start = Instant::now();
        while !self.has_stopped() && start.elapsed() < STOPS_WITHIN {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn has_stopped(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0.id())).into_iter().flatten().flatten();
        let mut stats = tasks.map(|task| fs::read_to_string(task.path().join("stat")).unwrap_or_default());
        stats.all(|stat| stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T')))
    }

    /// Whether there is a thread of this name, of which the kernel shows 15 bytes.
    pub(crate) fn has_thread(&self, name: &str) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0.id())).into_iter().flatten().flatten();
        let mut names = tasks.map(|task| fs::read_to_string(task.path().join("comm")).unwrap_or_default());
        names.any(|found| found.trim_end() == name)
    }

    /// Waits for the end of the process.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.wait_within(PATIENCE)
    }

    fn wait_within(&mut self, limit: Duration) -> ExitStatus {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "a process does not end: {:?}", self.0);
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A stopped process is killed too. A process that waits for a source which another process has to free does not
        // end here.
        let _ = self.0.kill();
        let deadline = Instant::now() + PATIENCE / 12;
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Aborts the connections that a killed process has at a mount point, as the next command would. No command can do it here:
/// as a child of this process, it has a copy of each file that is open on the mount, and closing that waits for the killed
/// process too.
fn abort_connections_of(pid: u32, mountpoint: &Path) {
    let is_mounted = |number: u32| {
        let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let (device, point) = (format!(" 0:{number} "), format!(" {} ", mountpoint.display()));
        mounts.lines().any(|mount| mount.contains(&device) && mount.contains(&point))
    };
    let list = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    for descriptor in list(Path::new(&format!("/proc/{pid}/task"))).flat_map(|thread| list(&thread.join("fdinfo"))) {
        let text = fs::read_to_string(descriptor).unwrap_or_default();
        if let Some(number) = text.lines().find_map(|line| line.strip_prefix("fuse_connection:")) {
            let number = number.trim().parse().unwrap();
            abort_connection(number, || is_mounted(number)).unwrap();
        }
    }
}

/// A mount in the foreground that has printed its announcement.
pub(crate) struct Mount {
    pub(crate) process: Process,
    pub(crate) mountpoint: PathBuf,
    /// The lines that it printed on standard output when it was mounted.
    pub(crate) announcement: String,
    stdout: Option<thread::JoinHandle<String>>,
    stderr: Option<thread::JoinHandle<()>>,
    /// Everything printed on standard error so far.
    said: Arc<Mutex<String>>,
}

impl Mount {
    #[track_caller]
    pub(crate) fn start(mut command: Command, mountpoint: &Path) -> Self {
        let mut process = Process::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        let said = Arc::new(Mutex::new(String::new()));
        let stderr = follow(process.0.stderr.take().unwrap(), Arc::clone(&said));
        let mut stdout = BufReader::new(process.0.stdout.take().unwrap());
        let mut announcement = String::new();
        while !announcement.contains("Unmount with") {
            if stdout.read_line(&mut announcement).unwrap() == 0 {
                let status = process.wait();
                stderr.join().unwrap();
                panic!("mount ended with {status}: {}", said.lock().unwrap());
            }
        }
        let stdout = Some(read_all(stdout));
        Self { process, mountpoint: mountpoint.to_path_buf(), announcement, stdout, stderr: Some(stderr), said }
    }

    /// Stops the server while it has no request: the kernel does not end a thread whose request the server has read, so a
    /// mount above could not end either.
    pub(crate) fn stop_at_rest(&self) {
        let control = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
        fsconfig_create(&control).unwrap();
        let connections = fsmount(&control, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).unwrap();
        let connection = rustix::fs::minor(fs::metadata(&self.mountpoint).unwrap().dev());
        let path = format!("{connection}/waiting");
        let requests = || {
            let waiting = openat(&connections, &path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
            io::read_to_string(fs::File::from(waiting)).unwrap()
        };
        wait_until("the server stops at rest", || {
            self.process.stop();
            let is_at_rest = requests().trim() == "0";
            if !is_at_rest {
                self.process.signal(Signal::CONT);
            }
            is_at_rest
        });
    }

    /// Kills the process, as a crash would. If it waits in the kernel for an answer of its own at that moment, it cannot end
    /// until its connection is aborted.
    pub(crate) fn kill(&mut self) {
        self.process.0.kill().unwrap();
        let deadline = Instant::now() + ENDS_WITHIN;
        while self.process.0.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                abort_connections_of(self.process.0.id(), &self.mountpoint);
                self.process.wait();
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for the process to end without being killed. Returns its status, and its output after the announcement.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> Output {
        let code = self.process.wait().code();
        let mut text = self.stdout.take().unwrap().join().unwrap();
        self.stderr.take().unwrap().join().unwrap();
        text += &self.said.lock().unwrap();
        Output { code, text }
    }

    /// Everything that has appeared on standard error so far.
    pub(crate) fn errors(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// How often `words` have appeared on standard error so far.
    pub(crate) fn said(&self, words: &str) -> usize {
        self.said.lock().unwrap().matches(words).count()
    }

    /// Waits until `words` have appeared so often on standard error.
    #[track_caller]
    pub(crate) fn wait_said(&self, words: &str, times: usize) {
        wait_said(&self.said, words, times);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = self.process.0.kill();
        let _ = unmount(&self.mountpoint, UnmountFlags::DETACH);
    }
}

/// A free address. No other process listens at this address of the loopback interface, so that a free port stays free.
pub(crate) fn free_address() -> SocketAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    TcpListener::bind((Ipv4Addr::new(127, 98, high, low), 0)).unwrap().local_addr().unwrap()
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(|| is_so().then_some(()), || format!("waited in vain until {what}"))
}

/// Waits until `look` finds something, at most for [`PATIENCE`]; `failure` tells what is wrong then.
#[track_caller]
pub(crate) fn wait_for<T>(mut look: impl FnMut() -> Option<T>, failure: impl Fn() -> String) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{}", failure());
        thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until `words` are so often in the output of a program. A thread reads the output, so it may come later than an
/// answer or the end of the program.
#[track_caller]
pub(crate) fn wait_said(said: &Mutex<String>, words: &str, times: usize) {
    let text = || said.lock().unwrap().clone();
    let count = |text: &str| text.matches(words).count();
    let failure = || format!("{words:?} is there {} times, not {times}: {}", count(&text()), text());
    wait_for(|| (count(&text()) == times).then_some(()), failure)
}

/// Repeats a request while `is_busy` holds for its answer, at most for [`BUSY_WITHIN`], and returns the last answer. A
/// volume may be in use for a moment: a child that another test starts has copies of our descriptors.
pub(crate) fn repeat_while<A>(is_busy: impl Fn(&A) -> bool, mut ask: impl FnMut() -> A) -> A {
    let deadline = Instant::now() + BUSY_WITHIN;
    loop {
        let answer = ask();
        if !is_busy(&answer) || Instant::now() > deadline {
            return answer;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Unmounts, again and again while the mount is in use, see [`repeat_while`]. When a copy of an unmounted mount goes
/// away, the mount ends, and there is none any more: that is a success too.
pub(crate) fn umount_when_free(mut umount: impl FnMut() -> Output) -> Output {
    let mut was_elsewhere = false;
    let mut output = repeat_while(Output::is_busy, || {
        let output = umount();
        was_elsewhere |= output.text.contains("in use elsewhere");
        output
    });
    if was_elsewhere && output.code == Some(NOT_MOUNTED) {
        output.code = Some(0);
    }
    output
}

/// Waits until a change of a file gives it another time than this one. Files carry the time of the last timer
/// interrupt. A machine that is short of CPU time may have none for longer than any fixed wait.
#[track_caller]
pub(crate) fn wait_for_a_later_time(time: (i64, i64)) {
    wait_until("a later time is another", || {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        (now.tv_sec, now.tv_nsec) > time
    });
}

/// How often a test repeats what happens at random: `default`, or the value of the variable.
pub(crate) fn runs(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|runs| runs.parse().ok()).unwrap_or(default)
}

/// Whether `done` of the [`runs`] are enough. On a loaded machine, a process may be killed before its first operation
/// has completed. So there are further runs while a program is idle, up to a limit.
pub(crate) fn is_enough(done: u64, variable: &str, default: u64, is_idle: bool) -> bool {
    done >= runs(variable, default) && (!is_idle || done >= 10 * default)
}

/// `count` bytes that differ between positions and between seeds.
pub(crate) fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(count.next_multiple_of(8));
    (0..count.div_ceil(8)).for_each(|_| bytes.extend_from_slice(&random.next().to_le_bytes()));
    bytes.truncate(count);
    bytes
}
