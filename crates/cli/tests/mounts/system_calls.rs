//! How many system calls the process of a mount makes for an operation of one client. docs/PERFORMANCE.md states the
//! same numbers.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::process::Signal;

use crate::needs;
use crate::rig::{Process, Scratch, need_fuse};

/// Operations per count.
const MANY: usize = 100;
/// The most counts per operation. On a loaded machine, other work of the process may come between.
const COUNTS: usize = 5;
/// The call that answers a request.
const ANSWER: &str = "writev";
/// The other calls of the transport. Their number depends on the speed of the client: strace slows it down so much that one
/// thread does not serve it alone all the time. The tests of the transport have their own check of that.
const READING: [&str; 3] = ["readv", "epoll_ctl", "epoll_pwait"];

/// Calls that are not made for a request: of the watcher, of write-back, of memory management, and of the standard
/// library's checks in a debug build.
#[rustfmt::skip]
const UNRELATED: [&str; 12] = [
    "fallocate", "fcntl", "futex", "madvise", "mmap", "mprotect", "munmap", "pwrite64", "pwritev", "pwritev2",
    "restart_syscall", "rt_sigprocmask",
];

/// How often the process made each system call, per operation.
type Calls = BTreeMap<String, f64>;

/// An operation, its number of requests and of calls on the source, and a function that counts the calls; `None` if they
/// cannot be counted here.
type Step<'a> = (&'a str, f64, f64, &'a dyn Fn() -> Option<Calls>);

/// Makes requests through `work` and returns how often the process made each system call, per operation.
fn count(pid: u32, table: &Path, work: impl Fn(usize)) -> Option<Calls> {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-c", "-U", "calls,name", "-o"]).arg(table).args(["-p", &pid.to_string()]);
    let mut strace = Process::spawn(strace.stderr(Stdio::null()));
    let is_traced = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        !status.contains("TracerPid:\t0\n")
    };
    let start = Instant::now();
    while !is_traced() {
        if strace.0.try_wait().unwrap().is_some() || start.elapsed() > Duration::from_secs(20) {
            needs::skip("strace cannot attach to a process here");
            return None;
        }
        thread::sleep(Duration::from_millis(1));
    }
    // The threads of the process are attached one after the other.
    thread::sleep(Duration::from_millis(100));
    (0..MANY).for_each(&work);
    strace.signal(Signal::INT);
    strace.wait();
    let text = fs::read_to_string(table).unwrap();
    let rows = text.lines().filter_map(|line| {
        let (calls, name) = line.trim().split_once(char::is_whitespace)?;
        Some((name.trim().to_owned(), calls.parse::<f64>().ok()? / MANY as f64))
    });
    let is_related = |name: &str| name != "total" && !UNRELATED.contains(&name);
    Some(rows.filter(|(name, per_operation)| is_related(name) && *per_operation >= 0.05).collect())
}

fn stat_of_server(path: &Path) {
    statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).unwrap();
}

#[test]
fn an_operation_of_one_client_takes_few_system_calls() {
    need_fuse();
    if needs::are_missing(&["strace"]) {
        return;
    }
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mount = scratch.mount(&source, &mountpoint, &["--transport", "dev"]);
    let pid = mount.process.0.id();
    let table = scratch.dir("traces", 0o755).join("calls");
    let directory = mountpoint.join("names");
    fs::create_dir(&directory).unwrap();
    let sets = Cell::new(0);
    let paths = |kind: &str| -> Vec<_> {
        let nth = sets.replace(sets.get() + 1);
        (0..MANY).map(|at| directory.join(format!("{kind}-{nth}-{at}"))).collect()
    };
    let file = File::create(directory.join("file")).unwrap();

    let steps: [Step<'_>; 4] = [
        ("write of 4 KiB", 1.0, 0.0, &|| {
            count(pid, &table, |at| file.write_all_at(&[7; 4096], at as u64 * 4096).unwrap())
        }),
        ("create and close", 5.0, 5.0, &|| {
            let paths = paths("new");
            count(pid, &table, |at| drop(File::create_new(&paths[at]).unwrap()))
        }),
        ("stat", 1.0, 0.0, &|| count(pid, &table, |_| stat_of_server(&directory.join("file")))),
        // At once: the kernel has a name for a second only. The figures of an unlink are those of both without a create.
        ("create, close and unlink", 7.0, 12.0, &|| {
            let paths = paths("old");
            count(pid, &table, |at| {
                drop(File::create_new(&paths[at]).unwrap());
                fs::remove_file(&paths[at]).unwrap();
            })
        }),
    ];
    for (name, requests, source, step) in steps {
        // Names may expire meanwhile, and are looked up again.
        let (most_answers, most_on_source) = (requests + 0.25, source + 1.0);
        let (mut answers, mut on_source) = (0.0, 0.0);
        for _ in 0..COUNTS {
            let Some(calls) = step() else { return };
            let sum_if = |counts: &dyn Fn(&str) -> bool| -> f64 {
                calls.iter().filter(|(name, _)| counts(name)).fold(0.0, |sum, (_, per_operation)| sum + per_operation)
            };
            answers = sum_if(&|call| call == ANSWER);
            on_source = sum_if(&|call| call != ANSWER && !READING.contains(&call));
            println!("{name}: {answers:.2} answers, {on_source:.2} calls on the source: {calls:.2?}");
            if answers <= most_answers && on_source <= most_on_source {
                break;
            }
        }
        assert!(answers <= most_answers, "{name} takes {answers:.2} requests, not {requests}");
        assert!(on_source <= most_on_source, "{name} makes {on_source:.2} calls on the source, not {source}");
    }
    drop(file);
    scratch.umount(&mountpoint);
    drop(mount);
}
