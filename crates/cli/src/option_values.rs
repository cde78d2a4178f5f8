//! The values of options as text: times, sizes, addresses and tenants.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Percentage of the cache that may hold unwritten data.
pub(crate) const DIRTY_RATIO: u32 = 20;
/// Age at which dirty data is written back.
pub(crate) const DIRTY_EXPIRE: Duration = Duration::from_secs(30);

/// Parses the address of a port to open: `9810`, `:9810`, `127.0.0.1:9810` or `[::1]:9810`.
pub(crate) fn parse_address(text: &str) -> Result<SocketAddr, &'static str> {
    let port = text.strip_prefix(':').unwrap_or(text).parse().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    port.or_else(|_| text.parse()).map_err(|_| "not an address and a port; write for example 127.0.0.1:9810")
}

/// Parses a limit such as `/containers/a=64MiB`.
pub(crate) fn parse_tenant_limit(text: &str) -> Result<(PathBuf, u64), String> {
    let (tenant, size) = text.rsplit_once('=').ok_or("not a limit; write for example /containers/a=64MiB")?;
    if tenant.is_empty() {
        return Err("no tenant before the limit; write for example /containers/a=64MiB".to_owned());
    }
    let bytes = slackwater_host::size::parse(size).map_err(|error| error.to_string())?;
    Ok((tenant.into(), bytes))
}

/// Parses a tenant and its `dontcache` setting, such as `/containers/backup=on`.
pub(crate) fn parse_tenant_dontcache(text: &str) -> Result<(PathBuf, bool), String> {
    const EXAMPLE: &str = "write for example /containers/backup=on";
    let (tenant, word) = text.rsplit_once('=').ok_or_else(|| format!("expected a tenant and on or off; {EXAMPLE}"))?;
    if tenant.is_empty() {
        return Err(format!("no tenant before the `=`; {EXAMPLE}"));
    }
    match word {
        "on" => Ok((tenant.into(), true)),
        "off" => Ok((tenant.into(), false)),
        other => Err(format!("`{other}` is neither on nor off; {EXAMPLE}")),
    }
}

/// Parses a time such as `30s`, `500ms`, `1.5m` or `1h`. A number without a unit is refused: the kernel's settings of
/// that kind count hundredths of a second.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    humantime::parse_duration(text).map_err(|_| "not a time; write for example 30s, 500ms, 5m or 1h")
}

/// Parses the age at which a reader follows the writer.
pub(crate) fn parse_follow(text: &str) -> Result<Duration, &'static str> {
    let age = parse_duration(text)?;
    let is_in_bounds = (Duration::from_millis(500)..=Duration::from_secs(3600)).contains(&age);
    is_in_bounds.then_some(age).ok_or("must be between 500ms and 1h; write for example 5s")
}

/// Parses a number of bytes per second. Less would not carry one request within its time limit.
pub(crate) fn parse_upload_limit(text: &str) -> Result<u64, String> {
    let bytes = slackwater_host::size::parse(text).map_err(|error| error.to_string())?;
    let is_enough = bytes >= 64 << 10;
    is_enough.then_some(bytes).ok_or_else(|| "must be at least 64KiB; write for example 50MiB".to_owned())
}

/// Parses the most bytes of a volume that are not durable. A write may have 1 MiB.
pub(crate) fn parse_dirty_limit(text: &str) -> Result<u64, String> {
    let bytes = slackwater_host::size::parse(text).map_err(|error| error.to_string())?;
    (bytes >= 1 << 20).then_some(bytes).ok_or_else(|| "must be at least 1MiB; write for example 64MiB".to_owned())
}

/// Parses the time between two samples of `top`.
pub(crate) fn parse_interval(text: &str) -> Result<Duration, &'static str> {
    let interval = parse_duration(text)?;
    let is_in_bounds = (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&interval);
    is_in_bounds.then_some(interval).ok_or("must be between 100ms and 1h; write for example 1s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_limit_is_a_name_and_a_size() {
        let limit = |tenant: &str, bytes| Ok((tenant.into(), bytes));
        assert_eq!(parse_tenant_limit("/containers/a=64MiB"), limit("/containers/a", 64 << 20));
        assert_eq!(parse_tenant_limit("uid:1000=0"), limit("uid:1000", 0));
        // systemd escapes unit names, but leaves this character.
        assert_eq!(parse_tenant_limit("/a=b=4096"), limit("/a=b", 4096));
        for (text, why) in [("64MiB", "not a limit"), ("=64MiB", "no tenant"), ("/a=", "256MiB"), ("/a=lots", "256MiB")]
        {
            let refusal = parse_tenant_limit(text).unwrap_err();
            assert!(refusal.contains(why), "{text}: {refusal}");
        }
    }

    #[test]
    fn metrics_are_served_on_loopback_unless_an_address_is_given() {
        for text in ["9810", ":9810", "127.0.0.1:9810"] {
            assert_eq!(parse_address(text).unwrap().to_string(), "127.0.0.1:9810", "{text}");
        }
        assert_eq!(parse_address("[::1]:0").unwrap().to_string(), "[::1]:0");
        assert_eq!(parse_address("0.0.0.0:80").unwrap().to_string(), "0.0.0.0:80");
        for text in ["", ":", "localhost:9810", "127.0.0.1", "65536", "-1", "http://127.0.0.1:9810", "::1:9810x"] {
            assert!(parse_address(text).unwrap_err().contains("127.0.0.1:9810"), "{text}");
        }
    }

    #[test]
    fn an_interval_is_between_100ms_and_1h() {
        assert_eq!(parse_interval("250ms"), Ok(Duration::from_millis(250)));
        for text in ["0s", "99ms", "61m", "100years"] {
            assert!(parse_interval(text).unwrap_err().contains("between 100ms and 1h"), "{text}");
        }
        assert!(parse_interval("5").unwrap_err().contains("30s"));
    }

    #[test]
    fn settings_of_object_volumes_have_bounds() {
        assert_eq!(parse_follow("500ms"), Ok(Duration::from_millis(500)));
        for text in ["0s", "499ms", "2h"] {
            assert!(parse_follow(text).unwrap_err().contains("between 500ms and 1h"), "{text}");
        }
        assert_eq!(parse_upload_limit("50MiB"), Ok(50 << 20));
        assert!(parse_upload_limit("1000").unwrap_err().contains("64KiB"));
        assert!(parse_upload_limit("fast").unwrap_err().contains("256MiB"));
    }

    #[test]
    fn a_tenant_dontcache_setting_is_a_name_and_on_or_off() {
        assert_eq!(parse_tenant_dontcache("/containers/backup=on"), Ok(("/containers/backup".into(), true)));
        assert_eq!(parse_tenant_dontcache("/a=b=off"), Ok(("/a=b".into(), false)));
        for (text, why) in [("on", "expected a tenant"), ("=on", "no tenant"), ("/a=", "neither"), ("/a=yes", "`yes`")]
        {
            let refusal = parse_tenant_dontcache(text).unwrap_err();
            assert!(refusal.contains(why) && refusal.contains("/containers/backup=on"), "{text}: {refusal}");
        }
    }
}
