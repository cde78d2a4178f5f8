//! `slackwater completions`: the completion script of a shell, generated from the definition of the command line.

use std::io;

use clap::CommandFactory;

use crate::arguments::Arguments;

/// Prints the script for `shell`.
pub(crate) fn run(shell: clap_complete::Shell) {
    clap_complete::generate(shell, &mut Arguments::command(), "slackwater", &mut io::stdout());
}
