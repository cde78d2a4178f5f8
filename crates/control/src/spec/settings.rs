//! Settings that change while the daemon runs: those of tenants, and the names of others. Those of a volume are options
//! of its specification.

use slackwater_mount::tenants::TenantConfig;

use crate::exit::Failure;
use crate::spec::values::parse_switch;

/// The setting that a remount changes.
pub const READ_ONLY: &str = "read-only";
/// The setting that names a pod.
pub const NAME: &str = "name";

/// The failure for an unknown setting.
pub fn unknown(key: &str, known: &str) -> Failure {
    Failure::usage(format!("unknown setting `{key}`")).advise(format!("known settings: {known}"))
}

/// `config` with one setting changed.
///
/// # Errors
/// The setting does not exist, or the value is invalid.
pub fn changed(config: TenantConfig, key: &str, value: &str) -> Result<TenantConfig, Failure> {
    match (key, value) {
        ("limit", "none") => Ok(TenantConfig { limit_bytes: None, ..config }),
        ("limit", size) => {
            let bytes =
                slackwater_host::size::parse(size).map_err(|error| Failure::usage(format!("limit={size}: {error}")))?;
            Ok(TenantConfig { limit_bytes: Some(bytes), ..config })
        }
        ("dontcache", "none") => Ok(TenantConfig { dontcache: None, ..config }),
        ("dontcache", value) => {
            let is_on = parse_switch(value).map_err(|why| Failure::usage(format!("dontcache: {why}")))?;
            Ok(TenantConfig { dontcache: Some(is_on), ..config })
        }
        (key, _) => Err(unknown(key, "limit=SIZE|none, dontcache=on|off|none, of a pod name=NAMESPACE/POD|none")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
