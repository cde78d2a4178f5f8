//! Figures and names in the cells of the table.

use ratatui::text::Span;
use slackwater_host::size;

use super::rates::Figures;

/// Terminal columns that a text occupies.
pub(super) fn width(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { Span::raw(text).width() }
}

/// `1.5G`: powers of 1024. Five columns below 1000 TiB.
pub(super) fn bytes(bytes: u64) -> String {
    let text = size::text(bytes);
    text.trim_end_matches("iB").trim_end_matches('B').replace(' ', "")
}

/// `99.9%`; `100%` has no decimal. Five columns.
pub(super) fn percent(percent: f64) -> String {
    if percent < 100.0 { format!("{percent:.1}%") } else { "100%".to_owned() }
}

/// `12s`, in the largest unit that does not round it away. Five columns below 27 years.
pub(super) fn time(ms: u64) -> String {
    const SECOND: u64 = 1000;
    const MINUTE: u64 = 60 * SECOND;
    const HOUR: u64 = 60 * MINUTE;
    match ms {
        0 => "0".to_owned(),
        ms if ms < SECOND => format!("{ms}ms"),
        ms if ms < 10 * SECOND => format!("{}.{}s", ms / SECOND, ms % SECOND / 100),
        ms if ms < 100 * SECOND => format!("{}s", ms / SECOND),
        ms if ms < 100 * MINUTE => format!("{}m", ms / MINUTE),
        ms if ms < 100 * HOUR => format!("{}h", ms / HOUR),
        ms => format!("{}d", ms / (24 * HOUR)),
    }
}

/// A name shortened to `columns` by cutting out its middle: both ends carry more information.
pub(super) fn shortened(name: &str, columns: usize) -> String {
    const GAP: &str = "..";
    if width(name) <= columns {
        return name.to_owned();
    }
    let Some(left) = columns.checked_sub(GAP.len()) else { return GAP[..columns].to_owned() };
    // The end distinguishes more names than the beginning.
    let head = taken(name.chars(), left / 3);
    let tail: Vec<char> = taken(name.chars().rev(), left - left / 3).chars().rev().collect();
    head + GAP + &String::from_iter(tail)
}

/// The first of `letters` that fit into `columns`.
fn taken(letters: impl Iterator<Item = char>, columns: usize) -> String {
    let mut left = columns;
    let fits = |letter: &char| {
        let rest = left.checked_sub(width(letter.encode_utf8(&mut [0; 4])));
        rest.inspect(|rest| left = *rest).is_some()
    };
    letters.take_while(fits).collect()
}

/// Text aligned left in its cell, cut off at the end.
pub(super) fn left(text: &str, columns: usize) -> String {
    let text = taken(text.chars(), columns);
    let blank = columns - width(&text);
    text + &" ".repeat(blank)
}

/// A figure aligned right in its cell. Stars if it does not fit: a part of a figure would be another figure.
pub(super) fn right(figure: &str, columns: usize) -> String {
    if width(figure) > columns { "*".repeat(columns) } else { format!("{figure:>columns$}") }
}

/// The held part of the limit: `#` is dirty, `=` being written, `-` not yet durable, `+` dirtied in others' files.
/// Without a dot only when no more is allowed. Blank without a limit.
pub(super) fn bar(figures: &Figures, columns: usize) -> String {
    let (Some(limit), Some(space)) = (figures.limit_bytes, columns.checked_sub(2)) else { return " ".repeat(columns) };
    let part = |of: u128, whole: u128| (space as u128 * of / whole.max(1)).min(space as u128) as usize;
    let held = u128::from(figures.held_bytes);
    let filled = match part(held, u128::from(limit)) {
        0 if held > 0 => space.min(1),
        _ if held >= u128::from(limit) && held > 0 => space,
        filled => filled,
    };
    let (mut text, mut sum) = (String::from("["), 0);
    for (letter, bytes) in [('#', figures.dirty_bytes), ('=', figures.writeback_bytes), ('-', figures.unstable_bytes)] {
        sum += u128::from(bytes);
        let end = (filled as u128 * sum).div_ceil(held.max(1)).min(filled as u128) as usize;
        (text.len() - 1..end).for_each(|_| text.push(letter));
    }
    (text.len() - 1..filled).for_each(|_| text.push('+'));
    (text.len() - 1..space).for_each(|_| text.push('.'));
    text + "]"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_five_columns() {
        let texts = [0, 512, 4096, 1536 << 20, 200 << 20, (1 << 40) - 1, 900 << 40].map(bytes);
        assert_eq!(texts, ["0", "512", "4.0K", "1.5G", "200M", "1024G", "900T"]);
    }

    #[test]
    fn percents_take_five_columns() {
        assert_eq!([0.0, 7.0, 99.9, 100.0].map(percent), ["0.0%", "7.0%", "99.9%", "100%"]);
    }

    #[test]
    fn times_take_five_columns() {
        let texts = [0, 7, 999, 1000, 9999, 10_000, 99_999, 100_000, 5_999_999, 6_000_000, 359_999_999, 360_000_000];
        let expected = ["0", "7ms", "999ms", "1.0s", "9.9s", "10s", "99s", "1m", "99m", "1h", "99h", "4d"];
        assert_eq!(texts.map(time), expected);
        assert!(time(u64::MAX).ends_with('d'));
    }

    #[test]
    fn names_lose_their_middle() {
        let name = "/kubepods.slice/pod12345/container";
        assert_eq!(shortened(name, 34), name);
        assert_eq!(shortened(name, 20), "/kubep..45/container");
        assert_eq!(shortened(name, 5), "/..er");
        assert_eq!([0, 1, 2, 3].map(|columns| shortened(name, columns)), ["", ".", "..", "..r"]);
        // A wide letter is not cut in half.
        assert!((0..30).all(|columns| width(&shortened("/\u{6f6e}\u{6d41}/\u{6f6e}\u{6d41}", columns)) <= columns));
        assert_eq!(shortened("/\u{6f6e}\u{6d41}/\u{6f6e}\u{6d41}", 8), "/..\u{6f6e}\u{6d41}");
    }

    #[test]
    fn cells_have_their_width() {
        assert_eq!((left("ab", 4), left("abcde", 4), left("", 0)), ("ab  ".into(), "abcd".into(), String::new()));
        assert_eq!((right("12", 4), right("12345", 4), right("1", 0)), ("  12".into(), "****".into(), String::new()));
        assert_eq!(left("\u{6f6e}\u{6d41}", 3), "\u{6f6e} ");
    }

    fn held(limit: Option<u64>, dirty: u64, writeback: u64, unstable: u64, elsewhere: u64) -> String {
        let held_bytes = dirty + writeback + unstable + elsewhere;
        let figures = Figures {
            held_bytes,
            limit_bytes: limit,
            dirty_bytes: dirty,
            writeback_bytes: writeback,
            unstable_bytes: unstable,
            ..Figures::default()
        };
        bar(&figures, 12)
    }

    #[test]
    fn a_bar_shows_what_is_held_and_is_full_only_at_the_limit() {
        assert_eq!(held(None, 1, 1, 1, 1), "            ");
        assert_eq!(held(Some(100), 0, 0, 0, 0), "[..........]");
        assert_eq!(held(Some(100), 1, 0, 0, 0), "[#.........]");
        assert_eq!(held(Some(100), 30, 20, 10, 0), "[###==-....]");
        assert_eq!(held(Some(100), 20, 0, 0, 20), "[##++......]");
        assert_eq!(held(Some(100), 0, 99, 0, 0), "[=========.]");
        assert_eq!(held(Some(100), 100, 0, 0, 0), "[##########]");
        assert_eq!(held(Some(100), 500, 0, 500, 0), "[#####-----]");
        assert_eq!(held(Some(0), 0, 0, 0, 0), "[..........]");
        assert_eq!(held(Some(0), 1, 0, 0, 0), "[##########]");
        assert_eq!(held(Some(u64::MAX), u64::MAX, 0, 0, 0), "[##########]");
        assert_eq!(bar(&Figures::default(), 1), " ");
        let limited = Figures { limit_bytes: Some(1), held_bytes: 1, dirty_bytes: 1, ..Figures::default() };
        assert_eq!((bar(&limited, 2), bar(&limited, 3)), ("[]".into(), "[#]".into()));
    }
}
