//! Ctrl-C as a flag that long work checks.
//!
//! After the first interrupt the running step ends and temporary files are removed in the ordinary way. The second interrupt
//! removes them at once and ends the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{cgroups, scratch};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The exit status of a process that an interrupt has ended.
pub(crate) const EXIT_CODE: u8 = 130;

/// Handles Ctrl-C and SIGTERM.
pub(crate) fn install() -> Result<()> {
    let on_signal = || {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            cgroups::remove_all();
            scratch::remove_all();
            std::process::exit(EXIT_CODE.into());
        }
        eprintln!("\nstopping and cleaning up; interrupt again to stop at once");
    };
    ctrlc::set_handler(on_signal).context("cannot handle Ctrl-C")
}

/// Whether there was an interrupt.
pub(crate) fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Fails after an interrupt.
pub(crate) fn check() -> Result<()> {
    if is_interrupted() {
        bail!("interrupted");
    }
    Ok(())
}

/// Sleeps for `time`; fails soon after an interrupt.
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
