//! What was published of the kernel before and after the change: NVMe, XFS, 251 GiB of memory, MB/s and microseconds;
//! sem. 12.4. `None`: not published.

use super::jobs::Job;
use super::site::Subject;

/// Figures of a job; before the change with [`Subject::Inline`], after it with [`Subject::Kick`].
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Published {
    pub(super) mb_per_s: Option<f64>,
    pub(super) p99_us: Option<f64>,
    pub(super) p999_us: Option<f64>,
    pub(super) peak_dirty_mb: Option<f64>,
}

pub(super) fn of(job: Job, subject: Subject) -> Published {
    let full = |mb_per_s, p99_us, p999_us| Published {
        mb_per_s: Some(mb_per_s),
        p99_us: Some(p99_us),
        p999_us: Some(p999_us),
        peak_dirty_mb: None,
    };
    let speed = |mb_per_s| Published { mb_per_s: Some(mb_per_s), ..Published::default() };
    let many = |mb_per_s, p99_us, peak_dirty_mb| Published {
        mb_per_s: Some(mb_per_s),
        p99_us: Some(p99_us),
        p999_us: None,
        peak_dirty_mb: Some(peak_dirty_mb),
    };
    match (job, subject) {
        (Job::Sequential, Subject::Inline) => full(298.0, 135_266.0, 8_925_479.0),
        (Job::Sequential, Subject::Kick) => full(897.0, 23_986.0, 28_443.0),
        (Job::Random, Subject::Inline) => speed(131.0),
        (Job::Random, Subject::Kick) => speed(236.0),
        (Job::FourWriters, Subject::Inline) => full(2529.0, 8553.0, 109_314.0),
        (Job::FourWriters, Subject::Kick) => full(4532.0, 1002.0, 1057.0),
        (Job::FourWriters, Subject::Buffered) => speed(4616.0),
        (Job::ManyFiles, Subject::Inline) => many(1548.0, 10_170.0, 1837.0),
        (Job::ManyFiles, Subject::Kick) => many(3499.0, 602.0, 213.0),
        (Job::Competing, Subject::Inline) => speed(1284.0),
        (Job::Competing, Subject::Kick) => speed(866.0),
        (Job::Competing, Subject::Buffered) => speed(863.0),
        _ => Published::default(),
    }
}

/// Of two that compete: the ordinary writer, and the other one.
pub(super) fn competing(subject: Subject) -> Option<(f64, f64)> {
    match subject {
        Subject::Inline => Some((868.0, 415.0)),
        Subject::Kick => Some((433.0, 433.0)),
        Subject::Buffered | Subject::KernelBuffered | Subject::KernelDontcache | Subject::KernelDirect => None,
    }
}
