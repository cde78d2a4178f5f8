//! Settings of a volume or a tenant that can be changed while the daemon runs.

use std::time::Duration;

use slackwater_mount::tenants::TenantConfig;

use crate::exit::Failure;
use crate::option_values::{parse_dirty_limit, parse_duration};

/// The setting that a remount changes, and its values.
pub(crate) const READ_ONLY: &str = "read-only";
/// The setting that names a pod.
pub(crate) const NAME: &str = "name";
pub(crate) const ON: &str = "on";
pub(crate) const OFF: &str = "off";

/// A setting of a mounted volume.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum VolumeSetting {
    /// Whether its data stays out of the cache.
    Dontcache(bool),
    /// The most bytes that are not durable.
    DirtyLimit(Option<u64>),
    /// The age at which dirty data is written back.
    DirtyExpire(Option<Duration>),
}

impl VolumeSetting {
    /// # Errors
    /// The setting does not exist, or the value is invalid.
    pub(crate) fn parse(key: &str, value: &str) -> Result<Self, Failure> {
        let invalid = |why: &str| Failure::usage(format!("{key}={value}: {why}"));
        match (key, value) {
            ("dontcache", value) => Ok(Self::Dontcache(on_or_off(value)?)),
            ("dirty-limit", "none") => Ok(Self::DirtyLimit(None)),
            ("dirty-limit", size) => {
                let bytes = parse_dirty_limit(size).map_err(|why| invalid(&why))?;
                Ok(Self::DirtyLimit(Some(bytes)))
            }
            ("dirty-expire", "none") => Ok(Self::DirtyExpire(None)),
            ("dirty-expire", age) => Ok(Self::DirtyExpire(Some(parse_duration(age).map_err(invalid)?))),
            (key, _) => Err(unknown(key, "dontcache=on|off, dirty-limit=SIZE|none, dirty-expire=TIME|none")),
        }
    }
}

/// Parses `on` or `off`.
///
/// # Errors
/// It is neither.
pub(crate) fn on_or_off(value: &str) -> Result<bool, Failure> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        other => Err(Failure::usage(format!("dontcache: `{other}` is neither on nor off"))),
    }
}

/// The failure for an unknown setting.
pub(crate) fn unknown(key: &str, known: &str) -> Failure {
    Failure::usage(format!("unknown setting `{key}`")).advise(format!("known settings: {known}"))
}

/// `config` with one setting changed.
///
/// # Errors
/// The setting does not exist, or the value is invalid.
pub(crate) fn changed(config: TenantConfig, key: &str, value: &str) -> Result<TenantConfig, Failure> {
    match (key, value) {
        ("limit", "none") => Ok(TenantConfig { limit_bytes: None, ..config }),
        ("limit", size) => {
            let bytes =
                slackwater_host::size::parse(size).map_err(|error| Failure::usage(format!("limit={size}: {error}")))?;
            Ok(TenantConfig { limit_bytes: Some(bytes), ..config })
        }
        ("dontcache", "none") => Ok(TenantConfig { dontcache: None, ..config }),
        ("dontcache", value) => Ok(TenantConfig { dontcache: Some(on_or_off(value)?), ..config }),
        (key, _) => Err(unknown(key, "limit=SIZE|none, dontcache=on|off|none, of a pod name=NAMESPACE/POD|none")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_volume_are_checked() {
        let limit = |bytes| Ok(VolumeSetting::DirtyLimit(bytes));
        assert_eq!(VolumeSetting::parse("dirty-limit", "64MiB"), limit(Some(64 << 20)));
        assert_eq!(VolumeSetting::parse("dirty-limit", "none"), limit(None));
        let age = |age| Ok(VolumeSetting::DirtyExpire(age));
        assert_eq!(VolumeSetting::parse("dirty-expire", "500ms"), age(Some(Duration::from_millis(500))));
        assert_eq!(VolumeSetting::parse("dirty-expire", "none"), age(None));
        assert_eq!(VolumeSetting::parse("dontcache", "off"), Ok(VolumeSetting::Dontcache(false)));
        let wrong = [
            ("dirty-limit", "1KiB", "at least 1MiB"),
            ("dirty-limit", "lots", "dirty-limit=lots"),
            ("dirty-expire", "5", "30s"),
            ("dontcache", "none", "neither on nor off"),
            ("limit", "1MiB", "unknown setting"),
        ];
        for (key, value, why) in wrong {
            let failure = VolumeSetting::parse(key, value).unwrap_err();
            assert!(failure.what.contains(why), "{key}={value}: {failure:?}");
        }
    }

    #[test]
    fn one_setting_changes_and_the_other_stays() {
        let start = TenantConfig { limit_bytes: Some(1 << 20), dontcache: Some(true) };
        let limit = |value| changed(start, "limit", value);
        assert_eq!(limit("64MiB"), Ok(TenantConfig { limit_bytes: Some(64 << 20), ..start }));
        assert_eq!(limit("none"), Ok(TenantConfig { limit_bytes: None, ..start }));
        assert_eq!(changed(start, "dontcache", "off"), Ok(TenantConfig { dontcache: Some(false), ..start }));
        assert_eq!(changed(start, "dontcache", "none"), Ok(TenantConfig { dontcache: None, ..start }));
        assert!(limit("lots").unwrap_err().what.contains("lots"));
        assert!(changed(start, "dontcache", "1").is_err() && changed(start, "x", "1").is_err());
    }
}
