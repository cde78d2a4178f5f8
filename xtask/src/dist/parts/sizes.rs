//! The crates' shares of a binary's size, from the symbols that it has before it is stripped.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::dist::command::output;

/// How many crates are listed.
const LISTED: usize = 15;

/// Prints the sizes of code and data by crate.
pub(in crate::dist) fn print(binary: &Path) -> Result<(), String> {
    let symbols = output(Command::new("nm").args(["--print-size", "--demangle", "--radix=d"]).arg(binary))?;
    let mut sizes: Vec<_> = by_crate(&symbols).into_iter().collect();
    sizes.sort_by_key(|(name, bytes)| (std::cmp::Reverse(*bytes), name.clone()));
    let rest: u64 = sizes.iter().skip(LISTED).map(|(_, bytes)| bytes).sum();
    println!("\n{:>8}  in {}", "KiB", binary.display());
    for (name, bytes) in sizes.iter().take(LISTED) {
        println!("{:>8}  {name}", bytes / 1024);
    }
    println!("{:>8}  {} others", rest / 1024, sizes.len().saturating_sub(LISTED));
    Ok(())
}

/// Bytes of the symbols of each crate. `nm` prints address, size, type and name.
fn by_crate(symbols: &str) -> BTreeMap<String, u64> {
    let mut sizes = BTreeMap::new();
    for line in symbols.lines() {
        let mut words = line.splitn(4, ' ');
        let (_, size, kind, name) = (words.next(), words.next(), words.next(), words.next());
        let size = size.and_then(|size| size.parse::<u64>().ok());
        if let (Some(size), Some(kind), Some(name)) = (size, kind, name)
            && !kind.eq_ignore_ascii_case("b")
        {
            *sizes.entry(crate_of(name)).or_default() += size;
        }
    }
    sizes
}

/// The crate of a demangled name: the first path in it that starts with a crate.
fn crate_of(name: &str) -> String {
    let name = name.trim_start_matches(['<', '&', '*', '(', '[']);
    let name =
        ["mut ", "const ", "dyn ", "impl "].iter().fold(name, |name, word| name.strip_prefix(word).unwrap_or(name));
    let name = name.trim_start_matches(['<', '&', '*', '(', '[']);
    match name.split_once("::") {
        Some((first, _)) if first.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_') => {
            first.to_owned()
        }
        _ if name.starts_with("aws_lc_") => "aws-lc (C and assembly)".to_owned(),
        _ => "C library, and data without a name".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_count_for_the_crate_that_defines_them() {
        let symbols = "0001 0000000000000010 t slackwater::engine::sync\n0002 0000000000000005 T <slackwater::Page as core::fmt::Debug>::fmt\n\
                       0003 0000000000000007 t aws_lc_0_47_0_SHA256\n0004 0000000000000100 b slackwater::BUFFER\n0005 t no_size\n";
        let sizes = by_crate(symbols);
        assert_eq!(sizes.get("slackwater"), Some(&15));
        assert_eq!(sizes.get("aws-lc (C and assembly)"), Some(&7));
        assert_eq!(sizes.len(), 2);
    }
}
