//! Published figures of the four forms in the kernel: 16 virtual CPUs, ext4, milliseconds of the umount command; sem. 12.1.

use slackwater::UmountForm;

use super::axes::Scenario;

/// 50th, 95th and 99th percentile, and the longest.
pub(crate) type Quantiles = [f64; 4];

/// An idle target without any load.
pub(crate) const NO_PRESSURE: Quantiles = [4.9, 5.9, 6.3, 6.7];

/// The number of unmounts that [`drain`] sums up.
pub(crate) const DRAINS: f64 = 340.0;

/// Under churn.
pub(crate) fn umount(scenario: Scenario, form: UmountForm) -> Quantiles {
    match (scenario, form) {
        (Scenario::OwnWriter, UmountForm::Base) => [99.7, 112.9, 112.9, 127.2],
        (Scenario::OwnWriter, UmountForm::Race) => [110.2, 153.8, 153.8, 160.4],
        (Scenario::OwnWriter, UmountForm::RmBarrier) => [67.6, 88.3, 88.3, 96.8],
        (Scenario::OwnWriter, UmountForm::PerSb) => [7.9, 10.0, 10.0, 10.1],
        (Scenario::Quiet, UmountForm::Base) => [92.0, 123.5, 136.5, 141.3],
        (Scenario::Quiet, UmountForm::Race) => [118.8, 154.6, 164.7, 165.3],
        (Scenario::Quiet, UmountForm::RmBarrier) => [62.7, 95.4, 108.1, 108.6],
        (Scenario::Quiet, UmountForm::PerSb) => [5.3, 6.9, 7.4, 7.4],
        (Scenario::EightQuiet, UmountForm::Base) => [137.5, 166.9, 166.9, 171.3],
        (Scenario::EightQuiet, UmountForm::Race) => [162.2, 183.9, 183.9, 217.0],
        (Scenario::EightQuiet, UmountForm::RmBarrier) => [61.3, 99.5, 99.5, 113.7],
        (Scenario::EightQuiet, UmountForm::PerSb) => [8.1, 9.1, 9.1, 9.5],
    }
}

/// Milliseconds inside the drain, summed over all unmounts of all scenarios.
pub(crate) fn drain(form: UmountForm) -> f64 {
    match form {
        UmountForm::Base => 21240.0,
        UmountForm::Race => 24966.0,
        UmountForm::RmBarrier => 12371.0,
        UmountForm::PerSb => 1.37,
    }
}
