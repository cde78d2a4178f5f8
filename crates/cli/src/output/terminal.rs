//! Printing that survives its reader. The standard macros panic when a pipe is closed, and a mount must not end because
//! nobody listens any more.

/// A line on standard output.
macro_rules! outln {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

/// A line on standard error.
macro_rules! errln {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

pub(crate) use {errln, outln};
