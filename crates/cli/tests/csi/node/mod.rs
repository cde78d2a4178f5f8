//! The life of volumes on a node: calls that are repeated and cut off, processes that are killed, mounts that other programs
//! remove.
//!
//! ```text
//! machine    a daemon, a plugin, and the calls of a kubelet
//! model      what each call has to answer, by the state of the volume
//! sequences  random calls against the model, with kills of the plugin
//! failures   one failure at a time
//! expansion  volumes that become larger
//! ```

mod expansion;
mod failures;
mod machine;
mod model;
mod sequences;
