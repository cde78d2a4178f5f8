//! Mounts with `--keep`: another process takes them over, and programs notice a pause at most.

mod commands;
mod ends;
mod inherited;
mod kept;
mod load;
mod refusals;
mod requests;
mod upgrade;
