//! The limit and other settings of one cgroup: configured, or its memory limit.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use slackwater_sync::shim::atomic::{AtomicBool, Ordering};

use crate::tenants::TenantConfig;
use crate::tenants::config_table::ConfigTable;
use slackwater_host::Printable as _;
use slackwater_host::cgroup::{Kind, Layout};

/// Limits from here on mean unlimited: v1 writes the largest number of whole pages instead of a word.
const UNLIMITED_BYTES: u64 = 1 << 62;

pub(super) struct Limits {
    /// The configured settings, by cgroup path.
    pub(super) configured: ConfigTable,
    has_warned: AtomicBool,
}

impl Limits {
    pub(super) fn new(configured: BTreeMap<PathBuf, TenantConfig>) -> Self {
        Self { configured: ConfigTable::new(configured), has_warned: AtomicBool::new(false) }
    }

    /// The settings that make the cgroup `path` a tenant: its own limit, or configured settings. Only the limit of the
    /// cgroup itself counts, not those above it; of a configured limit and a memory limit the smaller applies.
    ///
    /// A hybrid machine has the memory controller on v1, and a cgroup has the same path in both hierarchies. There the
    /// limit of a unified cgroup is in the memory hierarchy.
    pub(super) fn of(&self, layout: &Layout, kind: Kind, path: &Path) -> Option<TenantConfig> {
        let configured = self.configured.get(path);
        let of_kind = |kind: Kind| {
            let directory = layout.hierarchy(kind)?.directory(path)?;
            self.read(&directory.join(kind.limit_file()))
        };
        let of_cgroup = match kind {
            Kind::Memory => of_kind(Kind::Memory),
            Kind::Unified => of_kind(Kind::Unified).or_else(|| of_kind(Kind::Memory)),
        };
        let of_cgroup = of_cgroup.flatten().map(TenantConfig::limit);
        configured.into_iter().chain(of_cgroup).reduce(TenantConfig::and)
    }

    /// Whether reads and writes from the cgroup `path` stay out of the cache, if configured for that cgroup itself.
    pub(super) fn dontcache(&self, path: &Path) -> Option<bool> {
        self.configured.get(path)?.dontcache
    }

    /// `None` if there is no such file, `Some(None)` if it contains no limit.
    fn read(&self, file: &Path) -> Option<Option<u64>> {
        let problem = match std::fs::read_to_string(file) {
            Ok(text) => match parse(&text) {
                Ok(limit) => return Some(limit),
                Err(problem) => problem,
            },
            // The root has none, nor has any cgroup while the controller is in the other version; or the cgroup is
            // being removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => error.to_string(),
        };
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!("{}: {problem}; treated as no limit, here and in later cases", file.printable());
        }
        Some(None)
    }
}

/// Parses `memory.max` or `memory.limit_in_bytes`; `None` means unlimited.
fn parse(text: &str) -> Result<Option<u64>, String> {
    match text.trim() {
        "max" => Ok(None),
        number => match number.parse::<u64>() {
            Ok(bytes) => Ok((bytes < UNLIMITED_BYTES).then_some(bytes)),
            Err(_) => Err(format!("`{}` is not a limit in bytes", number.escape_default())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_both_versions_are_read() {
        assert_eq!(parse("max\n"), Ok(None));
        assert_eq!(parse("1073741824\n"), Ok(Some(1 << 30)));
        assert_eq!(parse("0\n"), Ok(Some(0)));
        // Values of v1 with pages of 4 KiB and of 64 KiB.
        assert_eq!(parse("9223372036854771712\n"), Ok(None));
        assert_eq!(parse("9223372036854710272\n"), Ok(None));
    }

    #[test]
    fn malformed_limits_are_rejected() {
        for text in ["", "\n", "-1", "1 2", "12kB", "99999999999999999999", "\u{0}"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
