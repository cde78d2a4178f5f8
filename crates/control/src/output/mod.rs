//! Output for people: lines on the terminal, and commands to copy.

pub mod shell;
pub mod terminal;
