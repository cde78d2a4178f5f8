//! The signals that end a process, waited for instead of delivered.
//!
//! # Invariants
//! G1. [`Signals::block`] runs before the first thread starts. A signal that is not blocked in every thread ends the
//!     process from whichever thread receives it.

#![allow(unsafe_code, reason = "the C library's calls on signal sets")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};

/// Why this process should end.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// End in an orderly way.
    Terminate,
    /// The terminal is gone.
    HangUp,
}

impl From<Signal> for rustix::process::Signal {
    fn from(signal: Signal) -> Self {
        match signal {
            Signal::Interrupt => Self::INT,
            Signal::Terminate => Self::TERM,
            Signal::HangUp => Self::HUP,
        }
    }
}

/// The signals that are waited for instead of being delivered.
pub struct Signals {
    set: libc::sigset_t,
    /// Whether SIGHUP was ignored before, as after `nohup`.
    ignores_hang_up: bool,
}

impl Signals {
    /// Blocks these signals in this thread and in all threads that it starts (G1). Blocked signals stay pending even
    /// where they were ignored.
    pub fn block() -> Self {
        let mut set = MaybeUninit::uninit();
        let mut hang_up = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the set is initialised by the first call before the others read it; the pointers are valid
        // for the calls, and a null action asks for the present one.
        #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one protocol of the C library")]
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            libc::sigaction(libc::SIGHUP, std::ptr::null(), hang_up.as_mut_ptr());
            let ignores_hang_up = hang_up.assume_init().sa_sigaction == libc::SIG_IGN;
            Self { set: set.assume_init(), ignores_hang_up }
        }
    }

    /// A descriptor that is readable when a signal waits.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: the set was initialised by `block`.
        let number = unsafe { libc::signalfd(-1, &raw const self.set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if number == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nothing else has its number.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }

    /// The signal that waits at [`descriptor`](Self::descriptor), if it is of interest.
    pub fn next_of(&self, descriptor: &OwnedFd) -> Option<Signal> {
        // The number comes first.
        let mut information = [0; size_of::<libc::signalfd_siginfo>()];
        rustix::io::read(descriptor, &mut information).ok()?;
        let (number, _) = information.split_first_chunk::<4>()?;
        self.of_interest(i32::from_ne_bytes(*number))
    }

    fn of_interest(&self, signal: libc::c_int) -> Option<Signal> {
        match signal {
            libc::SIGINT => Some(Signal::Interrupt),
            libc::SIGTERM => Some(Signal::Terminate),
            libc::SIGHUP if !self.ignores_hang_up => Some(Signal::HangUp),
            _ => None,
        }
    }

    /// Returns the next signal of interest.
    ///
    /// # Blocking
    /// Until a signal arrives.
    pub fn wait(&self) -> Signal {
        loop {
            let mut signal = 0;
            // SAFETY: the set was initialised by `block`, and `signal` is a valid place for the answer.
            let error = unsafe { libc::sigwait(&raw const self.set, &raw mut signal) };
            if let Some(signal) = self.of_interest(signal).filter(|_| error == 0) {
                return signal;
            }
        }
    }
}
