//! Every dependency, on every platform and under every cfg, has a licence that fits `MIT OR Apache-2.0`.

use serde_json::Value;

use crate::cargo;

/// Licences that ask for no more than attribution. Copyleft per file (MPL) is left out on purpose.
/// `CDLA-Permissive-2.0` is that of Mozilla's list of certificate authorities, which is data.
const ACCEPTED: [&str; 12] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Checks all packages of `cargo metadata` and lists those that do not fit.
pub(crate) fn run() -> Result<(), String> {
    let metadata = cargo::metadata("--all-features")?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata names no packages")?;
    let refused = refused(packages);
    if refused.is_empty() {
        println!("{} packages, all compatible", packages.len());
        return Ok(());
    }
    for line in &refused {
        println!("{line}");
    }
    Err(format!("{} of {} packages refused; see ACCEPTED in xtask/src/licences.rs", refused.len(), packages.len()))
}

fn refused(packages: &[Value]) -> Vec<String> {
    let text = |package: &Value, key: &str| package[key].as_str().unwrap_or("none").to_owned();
    packages
        .iter()
        .filter(|package| !package["license"].as_str().is_some_and(is_compatible))
        .map(|package| {
            format!("{} {}: licence {}", text(package, "name"), text(package, "version"), text(package, "license"))
        })
        .collect()
}

/// Whether an SPDX expression can be met with [`ACCEPTED`] licences. `/` is the old spelling of `OR`.
fn is_compatible(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().collect::<Vec<_>>().into_iter().peekable();
    either(&mut words).unwrap_or(false) && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::vec::IntoIter<&'a str>>;

fn either(words: &mut Words<'_>) -> Option<bool> {
    let mut fits = both(words)?;
    while words.next_if_eq(&"OR").is_some() {
        fits |= both(words)?;
    }
    Some(fits)
}

fn both(words: &mut Words<'_>) -> Option<bool> {
    let mut fits = one(words)?;
    while words.next_if_eq(&"AND").is_some() {
        fits &= one(words)?;
    }
    Some(fits)
}

fn one(words: &mut Words<'_>) -> Option<bool> {
    let word = words.next()?;
    if word == "(" {
        let fits = either(words)?;
        return (words.next()? == ")").then_some(fits);
    }
    if words.next_if_eq(&"WITH").is_none() {
        return Some(ACCEPTED.contains(&word));
    }
    let full = format!("{word} WITH {}", words.next()?);
    Some(ACCEPTED.contains(&full.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_acceptable_choice_is_enough() {
        for expression in ["MIT", "MIT/Apache-2.0", "MPL-2.0 OR MIT", "Apache-2.0 WITH LLVM-exception OR GPL-2.0"] {
            assert!(is_compatible(expression), "{expression}");
        }
    }

    #[test]
    fn every_part_of_a_conjunction_must_fit() {
        assert!(is_compatible("(MIT OR Apache-2.0) AND Unicode-3.0"));
        assert!(!is_compatible("MIT AND MPL-2.0"));
        assert!(!is_compatible("(MIT OR MPL-2.0) AND (GPL-3.0 OR MPL-2.0)"));
    }

    #[test]
    fn unknown_exceptions_and_broken_expressions_are_refused() {
        for expression in ["", "MPL-2.0", "MIT WITH Strings", "MIT OR", "(MIT", "MIT Apache-2.0", "MIT)"] {
            assert!(!is_compatible(expression), "{expression}");
        }
    }

    #[test]
    fn a_package_without_a_licence_is_named() {
        let package = serde_json::json!({ "name": "mystery", "version": "0.1.0", "license": null });
        assert_eq!(refused(&[package]), ["mystery 0.1.0: licence none"]);
    }
}
