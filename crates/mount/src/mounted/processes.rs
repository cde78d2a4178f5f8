//! Reads `/proc` entries of all processes, without waiting for a process that hangs.
//!
//! The kernel locks a process while it executes a program. In this time the process closes files, and a close waits for
//! the server of its file system. Most of its entries in `/proc` wait for this lock. So a server that hangs would stop
//! each reader of `/proc`, and with it the unmounts of other volumes. Here a thread reads, and its caller goes on.
//!
//! # Invariants
//! W1. Once a process has not answered in time, it is not asked again while a thread waits for it. Each such thread ends when
//!     its process answers. Iterators that ask at the same time may each have one.
//! W2. At most [`STUCK_MAX`] processes are waited for. With so many, nothing more is read, and an iterator says that it is
//!     incomplete.
//!
//! # Kernel counterpart
//! `begin_new_exec`, which closes files with `exec_update_lock` held; `proc_mem_open` and `proc_pid_get_link`, which take
//! it.

use std::any::Any;
use std::collections::{HashSet, VecDeque};
use std::fs;
use std::time::Duration;

use slackwater_sync::Completion;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::{Arc, Weak, thread};

use crate::lock_order::LEAF;

/// How long a process may take to answer.
const ANSWER_MAX: Duration = Duration::from_millis(200);
/// W2.
const STUCK_MAX: usize = 64;
/// Processes that may be silent before an iterator ends.
const SILENT_MAX: usize = 5;

/// Processes that have not answered in time. A thread waits for each, as long as the second field can be upgraded.
static STUCK: Mutex<Vec<(u32, Weak<dyn Any + Send + Sync>)>> = Mutex::new(LEAF, Vec::new());

/// The results of `read` for all processes, in the order of their ids. A process that does not answer is left out.
///
/// # Blocking
/// The iterator waits [`ANSWER_MAX`] for a process that does not answer, and for at most [`SILENT_MAX`] of them.
pub(super) fn each_process<T: Send + 'static>(read: impl Fn(u32) -> Option<T> + Send + Sync + 'static) -> Processes<T> {
    Processes { left: pids(), read: Arc::new(read), reader: None, silent: 0, is_incomplete: false }
}

/// An iterator over processes.
pub(super) struct Processes<T> {
    /// Processes that have not answered yet.
    left: VecDeque<u32>,
    read: Arc<dyn Fn(u32) -> Option<T> + Send + Sync>,
    reader: Option<Arc<Answers<T>>>,
    /// Processes that have not answered in time.
    silent: usize,
    is_incomplete: bool,
}

/// The answers that a thread has read. It ends when it is the last that refers to them.
struct Answers<T> {
    /// Completed once for each of the answers.
    ready: Completion,
    answers: Mutex<VecDeque<Option<T>>>,
}

impl<T: Send + 'static> Iterator for Processes<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        loop {
            let reader = match self.reader.take() {
                Some(reader) => reader,
                None => self.start()?,
            };
            let pid = self.left.pop_front()?;
            if reader.ready.wait_timeout(ANSWER_MAX) {
                tracing::debug!(pid, "the process does not answer: it executes a program and waits for a file system");
                let waiting: Weak<Answers<T>> = Arc::downgrade(&reader);
                STUCK.lock().push((pid, waiting));
                (self.silent, self.is_incomplete) = (self.silent + 1, true);
                continue;
            }
            let answer = reader.answers.lock().pop_front().flatten();
            self.reader = Some(reader);
            if answer.is_some() {
                return answer;
            }
        }
    }
}

impl<T: Send + 'static> Processes<T> {
    /// Whether processes were left out, of those that the iterator has come to.
    pub(super) fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// Starts a thread for the processes that are left, without those that another thread waits for. `None` if no process
    /// is left, too many are silent, or the system has no thread.
    fn start(&mut self) -> Option<Arc<Answers<T>>> {
        let stuck: HashSet<u32> = {
            let mut stuck = STUCK.lock();
            stuck.retain(|(_, waiting)| waiting.strong_count() > 0);
            stuck.iter().map(|(pid, _)| *pid).collect()
        };
        let all = self.left.len();
        self.left.retain(|pid| !stuck.contains(pid));
        self.is_incomplete |= self.left.len() < all;
        if self.left.is_empty() {
            return None;
        }
        if stuck.len() >= STUCK_MAX || self.silent >= SILENT_MAX {
            tracing::warn!(silent = stuck.len(), "too many processes do not answer: not all are examined");
            self.is_incomplete = true;
            return None;
        }
        let reader = Arc::new(Answers { ready: Completion::new(), answers: Mutex::new(LEAF, VecDeque::new()) });
        let (shared, pids, read) = (Arc::clone(&reader), self.left.clone(), Arc::clone(&self.read));
        let work = move || {
            for pid in pids {
                if Arc::strong_count(&shared) == 1 {
                    return;
                }
                let answer = read(pid);
                shared.answers.lock().push_back(answer);
                shared.ready.complete();
            }
        };
        let started = thread::Builder::new().name("sw-proc".to_owned()).spawn(work);
        self.is_incomplete |= started.is_err();
        started.is_ok().then_some(reader)
    }
}

/// All process ids, sorted.
fn pids() -> VecDeque<u32> {
    let Ok(processes) = fs::read_dir("/proc") else { return VecDeque::new() };
    let mut pids: Vec<u32> = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids.into()
}

#[cfg(test)]
mod tests {
    use slackwater_sync::shim::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_process_is_asked_in_the_order_of_their_ids() {
        // On a very busy machine a process may not answer in time.
        assert!((0..20).any(|_| {
            let asked: Vec<u32> = each_process(Some).collect();
            assert!(asked.is_sorted(), "{asked:?}");
            asked.contains(&std::process::id())
        }));
    }

    #[test]
    fn a_process_that_does_not_answer_is_left_out_and_not_asked_again() {
        // Other tests look for this process meanwhile.
        let silent = pids().into_iter().find(|pid| *pid != std::process::id()).unwrap();
        let (asked, release) = (Arc::new(AtomicUsize::new(0)), Arc::new(Completion::new()));
        let (count, hold) = (Arc::clone(&asked), Arc::clone(&release));
        let read = move |pid| {
            if pid == silent {
                count.fetch_add(1, Ordering::Relaxed);
                hold.wait();
            }
            Some(pid)
        };
        // At the same time, each asks it: that does not use up the limit for silent processes.
        let first: Vec<_> = (0..SILENT_MAX + 3)
            .map(|_| {
                let read = read.clone();
                thread::spawn(move || each_process(read).collect::<Vec<u32>>())
            })
            .collect();
        for others in first {
            let others = others.join().unwrap();
            assert!(!others.contains(&silent) && !others.is_empty(), "{others:?}");
        }
        let before = asked.load(Ordering::Relaxed);
        let mut again = each_process(read.clone());
        assert!(again.by_ref().count() > 0 && again.is_incomplete());
        assert_eq!(asked.load(Ordering::Relaxed), before, "a later iterator leaves it out");
        release.complete_all();
        // The process is asked again once its threads have ended.
        while !each_process(read.clone()).any(|pid| pid == silent) {
            thread::yield_now();
        }
    }
}
