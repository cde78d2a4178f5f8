//! A child process that does not outlive its owner.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::threads::wait_until;

/// A process, killed and reaped when dropped.
pub(crate) struct Process(Child);

impl Process {
    /// Starts `command` without input, in a process group of its own: Ctrl-C is meant for this process, which ends the
    /// child in its own way.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null());
        Self::start_with_input(command)
    }

    /// The same, with the input that `command` has.
    pub(crate) fn start_with_input(command: &mut Command) -> Result<Self> {
        let child = command.process_group(0).spawn();
        Ok(Self(child.with_context(|| format!("cannot start {}", command.get_program().display()))?))
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.0.try_wait()?.is_some())
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.0), signal).context("cannot signal a process")
    }

    /// Waits until it has ended; fails with `what` when that takes too long.
    pub(crate) fn wait(&mut self, what: &str) -> Result<ExitStatus> {
        let mut status = None;
        wait_until(what, || {
            status = self.0.try_wait()?;
            Ok(status.is_some())
        })?;
        status.context("it has ended")
    }

    /// Kills it, unless it has ended.
    pub(crate) fn kill(&mut self) {
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
