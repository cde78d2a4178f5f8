//! `slackwater top`: volumes and tenants, how much of each is not in the source yet, and how fast it gets there.
//!
//! ```text
//! look (of the crate)   asks all mount processes at once
//!   rates               two looks become figures and rates, in the form that --json prints
//!     groups            volumes with their tenants or the other way round, sorted
//!       screen          what is shown of them, and what each key does to it
//!         columns       the text of a row, in as many columns as there is room for; cells has the parts
//!           draw        the lines of a terminal; live runs one
//!           once        or the rows alone, printed
//! ```
//!
//! All but `live` and the two looks of `once` is arithmetic on what was asked for, and tested without a terminal.

mod cells;
mod columns;
mod draw;
mod groups;
mod live;
mod once;
mod rates;
mod screen;
#[cfg(test)]
pub(crate) mod tests;

use std::io::{IsTerminal, stdout};

use crate::arguments::TopArguments;
use crate::exit::Failure;

use self::draw::Palette;

/// Shows or prints it.
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
