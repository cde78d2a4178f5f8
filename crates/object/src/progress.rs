//! How far a check or a collection has come.

/// A step of a check or a collection, for people to watch.
#[derive(Clone, Debug)]
pub struct Progress {
    /// The work of the step, such as "reading the tree".
    pub step: &'static str,
    /// How far it is.
    pub done: u64,
}
