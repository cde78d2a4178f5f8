//! The Container Storage Interface, version 1.13.0: its messages, and its services as traits and clients.
//!
//! Everything here is generated from the protocol file of the specification, whose comments are the documentation.
//! The file is under the Apache License, Version 2.0.

#[allow(
    missing_docs,
    clippy::all,
    clippy::missing_errors_doc,
    clippy::allow_attributes_without_reason,
    rustdoc::all,
    reason = "generated"
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/csi.v1.rs"));
}

pub use generated::*;
