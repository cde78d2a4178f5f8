//! Byte sizes as people write them: parsed from arguments, options and configurations, and printed for people.
//!
//! A unit of one letter counts in steps of 1024, as in mount(8), dd(1) and the kernel. A unit that ends in `B` is
//! explicit: `MiB` is 1024 * 1024 and `MB` is 1,000,000. Integers are exact.

use thiserror::Error;

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

/// Why a text is not a size.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Error)]
pub enum SizeError {
    /// There is no number, or the unit is unknown.
    #[error("not a size; write for example 256MiB, 1.5GiB or 64k")]
    Malformed,
    /// 16 EiB or more.
    #[error("does not fit in 64 bits")]
    TooLarge,
}

/// Reads a number of bytes such as `256MiB`, `1.5 GiB`, `64k` (1024 each) or `10MB` (a million each).
///
/// # Errors
/// The text is not a size, or the number does not fit in 64 bits.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = UNITS.iter().find(|(name, _)| *name == unit.trim()).map(|(_, factor)| *factor);
    let factor = factor.ok_or(SizeError::Malformed)?;
    if !number.starts_with(|letter: char| letter.is_ascii_digit()) {
        return Err(SizeError::Malformed);
    }
    if number.bytes().all(|digit| digit.is_ascii_digit()) {
        let whole = number.parse::<u64>().map_err(|_| SizeError::TooLarge)?;
        return whole.checked_mul(factor).ok_or(SizeError::TooLarge);
    }
    let product = number.parse::<f64>().map_err(|_| SizeError::Malformed)? * factor as f64;
    if product < u64::MAX as f64 { Ok(product as u64) } else { Err(SizeError::TooLarge) }
}

/// The size with one decimal at most, such as `1.5 GiB` or `200 MiB`.
pub fn text(bytes: u64) -> String {
    const NAMES: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut name = 0;
    while value >= 1024.0 && name + 1 < NAMES.len() {
        value /= 1024.0;
        name += 1;
    }
    match value {
        _ if name == 0 => format!("{bytes} B"),
        value if value >= 99.5 => format!("{value:.0} {}", NAMES[name]),
        value => format!("{value:.1} {}", NAMES[name]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_all_common_units() {
        for (text, expected) in [
            ("256MiB", 256 << 20),
            ("256 mib", 256 << 20),
            ("256M", 256 << 20),
            ("1.5GiB", 3 << 29),
            ("64k", 64 << 10),
            ("2G", 2 << 30),
            ("1t", 1 << 40),
            ("2TiB", 2 << 40),
            ("3GB", 3_000_000_000),
            ("4 tb", 4_000_000_000_000),
            ("5kB", 5000),
            ("10MB", 10_000_000),
            ("4096", 4096),
            ("4096B", 4096),
            ("0", 0),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn malformed_sizes_are_refused_with_an_example() {
        for text in ["", "MiB", "12XiB", "-1", "1..5M", "1e9", "1.5e", ".5M", "inf", "nanMiB"] {
            assert_eq!(parse(text), Err(SizeError::Malformed), "{text}");
        }
        assert!(SizeError::Malformed.to_string().contains("256MiB"));
    }

    #[test]
    fn sizes_beyond_64_bits_are_refused() {
        for text in ["99999999TiB", "99999999999999999999999", "99999999999.5TiB"] {
            assert_eq!(parse(text), Err(SizeError::TooLarge), "{text}");
        }
    }

    #[test]
    fn a_printed_size_is_short_and_can_be_parsed() {
        assert_eq!([0, 1536 << 20, 200 << 20].map(text), ["0 B", "1.5 GiB", "200 MiB"]);
        assert_eq!(parse(&text(7 << 20)), Ok(7 << 20));
    }
}
