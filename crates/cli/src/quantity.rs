//! Sizes and times as people write them.

use std::time::Duration;

const SIZES: [(&str, u64); 14] = [
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

/// In milliseconds. A number alone is not taken: the kernel's knobs of that kind count hundredths.
const TIMES: [(&str, u64); 8] = [
    ("ms", 1),
    ("s", 1_000),
    ("sec", 1_000),
    ("m", 60_000),
    ("min", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
    ("w", 604_800_000),
];

/// Why a text is no quantity.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum QuantityError {
    #[error("not a size; write for example 256MiB, 1.5GiB or 64k")]
    Size,
    #[error("not a time; write for example 30s, 500ms, 5m or 1h")]
    Time,
    #[error("more than 64 bits can count")]
    TooLarge,
}

/// Reads a number of bytes such as `256MiB`, `1.5 GiB`, `64k` (1024 each) or `10MB` (a million each).
pub(crate) fn parse_bytes(text: &str) -> Result<u64, QuantityError> {
    parse(text, &SIZES, QuantityError::Size)
}

/// Reads a time such as `30s`, `500ms`, `1.5m` or `1h`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, QuantityError> {
    parse(text, &TIMES, QuantityError::Time).map(Duration::from_millis)
}

fn parse(text: &str, units: &[(&str, u64)], refused: QuantityError) -> Result<u64, QuantityError> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = units.iter().find(|(name, _)| *name == unit.trim()).map(|(_, factor)| *factor);
    let factor = factor.ok_or_else(|| refused.clone())?;
    if number.is_empty() || !number.starts_with(|letter: char| letter.is_ascii_digit()) {
        return Err(refused);
    }
    if number.bytes().all(|digit| digit.is_ascii_digit()) {
        let whole = number.parse::<u64>().map_err(|_| QuantityError::TooLarge)?;
        return whole.checked_mul(factor).ok_or(QuantityError::TooLarge);
    }
    let product = number.parse::<f64>().map_err(|_| refused)? * factor as f64;
    if product < u64::MAX as f64 { Ok(product as u64) } else { Err(QuantityError::TooLarge) }
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
    match value {
        _ if name == 0 => format!("{bytes} B"),
        value if value >= 99.5 => format!("{value:.0} {}", NAMES[name]),
        value => format!("{value:.1} {}", NAMES[name]),
    }
}

/// `350 ms`, `12 s`, `3 min 20 s`, `2 h 5 min`.
pub(crate) fn duration(time: Duration) -> String {
    let (seconds, ms) = (time.as_secs(), time.as_millis());
    match seconds {
        0 => format!("{ms} ms"),
        1..120 => format!("{seconds} s"),
        120..7200 => two((seconds / 60, "min"), (seconds % 60, "s")),
        _ => two((seconds / 3600, "h"), (seconds % 3600 / 60, "min")),
    }
}

fn two(large: (u64, &str), small: (u64, &str)) -> String {
    match small.0 {
        0 => format!("{} {}", large.0, large.1),
        _ => format!("{} {} {} {}", large.0, large.1, small.0, small.1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_all_customary_units() {
        for (text, expected) in [
            ("256MiB", 256 << 20),
            ("256 mib", 256 << 20),
            ("1.5GiB", 3 << 29),
            ("64k", 64 << 10),
            ("2G", 2 << 30),
            ("10MB", 10_000_000),
            ("4096", 4096),
            ("0", 0),
        ] {
            assert_eq!(parse_bytes(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn times_are_read_with_their_unit() {
        for (text, ms) in [("30s", 30_000), ("500 ms", 500), ("1.5m", 90_000), ("2h", 7_200_000), ("0s", 0)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "MiB", "12XiB", "-1", "1..5M", "1e9", ".5M", "inf", "nanMiB"] {
            assert_eq!(parse_bytes(text), Err(QuantityError::Size), "{text}");
        }
        for text in ["", "30", "s", "-1s", "1x"] {
            assert_eq!(parse_duration(text), Err(QuantityError::Time), "{text}");
        }
        for text in ["99999999999TiB", "99999999999999999999999", "99999999999.5TiB"] {
            assert_eq!(parse_bytes(text), Err(QuantityError::TooLarge), "{text}");
        }
    }

    #[test]
    fn what_is_printed_is_short() {
        assert_eq!([0, 1536 << 20, 200 << 20].map(bytes), ["0 B", "1.5 GiB", "200 MiB"]);
        let times = [35, 12_000, 200_000, 7_500_000].map(|ms| duration(Duration::from_millis(ms)));
        assert_eq!(times, ["35 ms", "12 s", "3 min 20 s", "2 h 5 min"]);
    }
}
