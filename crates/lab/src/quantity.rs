//! Sizes, rates and times as people write them.

use std::time::Duration;

const UNITS: [(&str, u64); 14] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("b", 1),
    ("", 1),
];

/// Reads a number of bytes such as `256MiB`, `1.5 GiB`, `64k` (1024 each) or `10MB` (a million each).
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let refuse = || format!("{text:?} is not a size; write for example 256MiB, 1.5GiB or 64k");
    let text_lower = text.trim().to_ascii_lowercase();
    let digits = text_lower.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text_lower.len());
    let (number, unit) = text_lower.split_at(digits);
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit.trim()).ok_or_else(refuse)?;
    let bytes = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(*factor),
        Err(_) => {
            let product = number.parse::<f64>().map_err(|_| refuse())? * *factor as f64;
            (product < u64::MAX as f64).then_some(product as u64)
        }
    };
    bytes.ok_or_else(|| format!("{text:?} is more than 64 bits can count"))
}

/// `1.5 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const NAMES: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut name = 0;
    while value >= 1024.0 && name + 1 < NAMES.len() {
        value /= 1024.0;
        name += 1;
    }
    match name {
        0 => format!("{bytes} B"),
        _ => format!("{} {}", figure(value), NAMES[name]),
    }
}

/// Millions of bytes per second.
pub(crate) fn mb_per_s(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64().max(1e-9)
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

/// Seconds with milliseconds.
pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_all_customary_units() {
        for (text, expected) in [
            ("256MiB", 256 << 20),
            ("256 mib", 256 << 20),
            ("256M", 256 << 20),
            ("1.5GiB", 3 << 29),
            ("64k", 64 << 10),
            ("10MB", 10_000_000),
            ("4096", 4096),
            ("4096B", 4096),
            ("0", 0),
        ] {
            assert_eq!(parse_bytes(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for text in ["", "MiB", "12XiB", "-1", "1..5M", "1e9"] {
            let error = parse_bytes(text).expect_err(text);
            assert!(error.contains("256MiB"), "{error}");
        }
        assert!(parse_bytes("99999999TiB").is_err() && parse_bytes("1.5e").is_err());
    }

    #[test]
    fn what_is_written_can_be_read_again() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1536 << 20), "1.50 GiB");
        assert_eq!(parse_bytes(&bytes(7 << 20)), Ok(7 << 20));
    }

    #[test]
    fn figures_have_two_or_three_digits() {
        assert_eq!(
            [1234.5, 99.96, 12.34, 1.0, 0.1234, 0.0123, 0.0].map(figure),
            ["1234", "100", "12.3", "1.00", "0.12", "0.012", "0.00"]
        );
    }
}
