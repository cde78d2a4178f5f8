//! Printing that ignores a closed pipe. The standard macros panic then, and a mount must not end because its reader is
//! gone.

use serde::Serialize;

use crate::exit::Failure;

/// Prints a line on standard output.
#[macro_export]
macro_rules! outln {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

/// Prints a line on standard error.
#[macro_export]
macro_rules! errln {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// Prints a document as JSON.
///
/// # Errors
/// The value cannot be encoded as JSON.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|error| Failure::failed(format!("cannot encode the answer: {error}")))?;
    outln!("{text}");
    Ok(())
}
