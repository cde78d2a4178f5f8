//! How rates and other figures are written.

use std::time::Duration;

/// Millions of bytes per second.
pub(crate) fn mb_per_s(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64().max(1e-9)
}

pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Two or three significant digits, without an exponent.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.0995 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_two_or_three_digits() {
        assert_eq!(
            [1234.5, 99.96, 12.34, 1.0, 0.1234, 0.0123, 0.0].map(figure),
            ["1234", "100", "12.3", "1.00", "0.12", "0.012", "0.00"]
        );
    }
}
