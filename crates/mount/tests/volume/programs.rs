//! Programs and processes that a test starts, and waiting for them and for conditions.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longer than any step takes on a loaded machine; only a failing test waits that long.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Waits until `condition` holds.
#[track_caller]
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "timed out waiting: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Starts a program.
pub(crate) fn spawn(program: &str, arguments: &[&str]) -> Child {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    command.spawn().unwrap()
}

/// Waits for a child; `None` if it takes too long.
pub(crate) fn wait(child: &mut Child) -> Option<ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < LONG {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    None
}

/// Runs a test in a process of its own. It may count the threads and the memory of the process. Or it may open so many
/// files that the programs of other tests would be slow to close their copies.
pub(crate) fn in_own_process(name: &str, test: impl FnOnce()) {
    const INSIDE: &str = "SLACKWATER_ALONE";
    if std::env::var_os(INSIDE).is_some() {
        return test();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let command = command.args(["--exact", name, "--include-ignored", "--nocapture"]).env(INSIDE, "1");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    println!("{text}");
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
