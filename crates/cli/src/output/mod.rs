//! Output for people: lines on the terminal, progress, and commands to copy.

pub(crate) mod progress;
pub(crate) mod shell;
pub(crate) mod terminal;
