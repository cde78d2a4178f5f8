//! A C interface to the engine, small enough to stay as it is: engines, volumes in directories, and their files.
//!
//! `include/slackwater.h` documents it. `calls` has its functions as methods of the three handles, in safe Rust. `sys`
//! exports them: it turns pointers into references and handles, and outcomes into numbers. `failure` is the error of
//! both, with its errno and message.
//!
//! A test compares the header with the exported functions, and runs the examples in C and Python.

mod calls;
mod failure;
mod sys;
