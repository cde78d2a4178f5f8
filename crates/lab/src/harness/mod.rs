//! Everything that experiments share.
//!
//! | Part | Modules |
//! |---|---|
//! | Arguments and amounts | [`options`] |
//! | Axes and processes | [`axis`](macro@axis), [`process`] |
//! | Taking turns, threads and CPUs | [`rounds`], [`threads`], [`placement`] |
//! | From samples to figures | [`samples`], [`statistics`], [`quantity`] |
//! | Promises | [`targets`] |
//! | Presentation | [`table`], [`plot`], [`bars`], [`page`], [`machine`], [`report`] |
//!
//! An experiment adds its subjects and its turns, which put samples into the [`Series`] of its [`Report`], and then its tables
//! and targets.

pub(crate) mod axis;
pub(crate) mod bars;
pub(crate) mod machine;
pub(crate) mod options;
pub(crate) mod page;
pub(crate) mod placement;
pub(crate) mod plot;
pub(crate) mod process;
pub(crate) mod quantity;
#[cfg(test)]
mod recorded;
pub(crate) mod report;
pub(crate) mod rounds;
pub(crate) mod samples;
pub(crate) mod statistics;
pub(crate) mod table;
pub(crate) mod targets;
pub(crate) mod threads;

pub(crate) use self::axis::axis;
pub(crate) use self::bars::Stacks;
pub(crate) use self::options::{Options, amounts};
pub(crate) use self::plot::{Curve, Marks, Plot};
pub(crate) use self::quantity::{mb_per_s, ms};
pub(crate) use self::report::{Report, Source};
pub(crate) use self::samples::{Samples, Series, p50, p99, ratio, time_us};
pub(crate) use self::statistics::{Estimate, median, median_estimate, ratios};
pub(crate) use self::table::Table;
pub(crate) use self::targets::Bound::{self, AtLeast, AtMost, Exactly};
