//! `slackwater top`: volumes and tenants with their unwritten data and write-back rates.
//!
//! ```text
//! look (of the crate)   queries all mount processes at the same time
//!   rates               turns two samples into figures and rates, as --json prints them
//!     groups            volumes with their tenants, or tenants with their volumes, sorted
//!       screen          the visible part, and what each key does
//!         columns       the text of a row, in the columns that fit; cells has the parts
//!           draw        the lines of the screen; live runs the terminal
//!           once        prints the rows once instead
//! ```
//!
//! Everything except `live` and the two samples of `once` is arithmetic, and is tested without a terminal.

mod cells;
mod columns;
mod draw;
mod groups;
mod live;
mod once;
#[cfg(test)]
mod picture;
mod rates;
mod screen;
#[cfg(test)]
pub(crate) mod tests;

use std::io::{IsTerminal, stdout};

use slackwater_control::exit::Failure;

use crate::arguments::TopArguments;

use self::draw::Palette;
pub(crate) use self::rates::{Snapshot, Watch};

/// Shows or prints the table.
pub(crate) fn run(arguments: &TopArguments) -> Result<(), Failure> {
    if arguments.once {
        return once::run(&arguments.at, arguments.interval, arguments.json);
    }
    if !stdout().is_terminal() {
        return Err(Failure::usage("top needs a terminal, and standard output is not one")
            .advise("slackwater top --once prints one table, or with --json one JSON object"));
    }
    let has = |name, is_so: fn(&str) -> bool| std::env::var(name).is_ok_and(|value| is_so(&value));
    let is_plain =
        arguments.no_color || has("NO_COLOR", |value| !value.is_empty()) || has("TERM", |value| value == "dumb");
    live::run(&arguments.at, arguments.interval, if is_plain { Palette::Plain } else { Palette::Colours })
}
