//! Ctrl-C as a question that long work asks now and then.
//!
//! The first interrupt lets the running step end, so that everything temporary goes the ordinary way. The
//! second removes it at once and ends the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{cgroups, scratch};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// What the shell expects of a process that ended by an interrupt.
pub(crate) const EXIT_CODE: u8 = 130;

/// Takes over Ctrl-C and SIGTERM.
pub(crate) fn install() -> Result<()> {
    let on_signal = || {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            cgroups::remove_all();
            scratch::remove_all();
            std::process::exit(EXIT_CODE.into());
        }
        eprintln!("\nstopping and cleaning up; once more to stop at once");
    };
    ctrlc::set_handler(on_signal).context("cannot take over Ctrl-C")
}

/// Whether an interrupt came.
pub(crate) fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Fails when an interrupt came.
pub(crate) fn check() -> Result<()> {
    if is_interrupted() {
        bail!("interrupted");
    }
    Ok(())
}

/// Sleeps for `time`, in pieces; fails when an interrupt came.
pub(crate) fn sleep(time: Duration) -> Result<()> {
    const PIECE: Duration = Duration::from_millis(200);
    let end = Instant::now() + time;
    loop {
        check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(PIECE));
    }
}
