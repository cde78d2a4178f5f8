//! Points on the path of a request at which a test kills the process.
//!
//! The file that `SLACKWATER_DIE_AT` names says where: `POINT OPCODE TIMES`, such as `carried_out 9 2`. The process that
//! passes that point with a request of that opcode kills itself, so many times in a row. Builds without
//! `debug_assertions` have no such points.

/// Points that a request passes, in this order.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Point {
    /// The request was read, and nothing is recorded.
    Read,
    /// The request is recorded as begun.
    Begun,
    /// The request was carried out, and the outcome is not recorded.
    CarriedOut,
    /// The outcome is recorded.
    Recorded,
    /// The kernel has the reply.
    Answered,
}

#[cfg(not(debug_assertions))]
#[inline(always)]
pub(crate) fn pass(_point: Point, _unique: u64, _opcode: Option<u32>) {}

#[cfg(debug_assertions)]
pub(crate) use armed::pass;

#[cfg(debug_assertions)]
mod armed {
    use std::fs;
    use std::path::PathBuf;

    use rustix::process::{Signal, getpid, kill_process};
    use slackwater_sync::lock::Mutex;
    use slackwater_sync::shim::{OnceLock, thread};

    use super::Point;
    use crate::lock_order::LAST;

    /// Where to die: the point, the opcode, and how often.
    type Order = (String, u32, u32);

    /// The request that the file means, once it was seen.
    static MEANT: Mutex<Option<u64>> = Mutex::new(LAST, None);

    /// Kills the process here if the test says so. Points after the first need no opcode.
    pub(crate) fn pass(point: Point, unique: u64, opcode: Option<u32>) {
        static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
        let Some(file) = FILE.get_or_init(|| std::env::var_os("SLACKWATER_DIE_AT").map(PathBuf::from)) else { return };
        let Some((name, meant, times)) = order(file) else { return };
        let is_meant = match opcode {
            Some(opcode) if opcode == meant => {
                *MEANT.lock() = Some(unique);
                true
            }
            Some(_) => false,
            None => *MEANT.lock() == Some(unique),
        };
        if !is_meant || name != format!("{point:?}") {
            return;
        }
        let left = if times > 1 { format!("{name} {meant} {}", times - 1) } else { String::new() };
        if fs::write(file, left).is_ok() {
            let _ = kill_process(getpid(), Signal::KILL);
            loop {
                thread::yield_now(); // until it is dead
            }
        }
    }

    fn order(file: &PathBuf) -> Option<Order> {
        let text = fs::read_to_string(file).ok()?;
        let mut words = text.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    }
}
