//! The values of options: times, sizes, addresses and tenants. Each has one text, which all sources read and write.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use humantime::format_duration;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use slackwater_host::Printable as _;
use slackwater_host::size;
use slackwater_mount::tenants::TenantBy;

/// The words for a switch.
pub const ON: &str = "on";
pub const OFF: &str = "off";

/// A type of values with a name, its inner type, the function that reads its text, and the one that writes it.
macro_rules! value {
    ($(#[$attribute:meta])* $name:ident($inner:ty), $parse:expr, $text:expr) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, Eq, PartialEq)]
        pub struct $name(pub $inner);

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let parsed: Result<$inner, String> = $parse(text);
                parsed.map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let text: fn(&$inner) -> String = $text;
                f.write_str(&text(&self.0))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    };
}

value!(
    /// A number of bytes.
    #[derive(Copy)]
    Size(u64),
    parse_size,
    u64::to_string
);
value!(
    /// The most bytes of a volume that are not durable. A write may have 1 MiB.
    #[derive(Copy)]
    DirtyLimit(u64),
    |text| at_least(text, 1 << 20, "must be at least 1MiB; write for example 64MiB"),
    u64::to_string
);
value!(
    /// A number of bytes per second. Less would not carry one request within its time limit.
    #[derive(Copy)]
    Rate(u64),
    |text| at_least(text, 64 << 10, "must be at least 64KiB; write for example 50MiB"),
    u64::to_string
);
value!(
    /// A time.
    #[derive(Copy)]
    Age(Duration),
    parse_duration,
    |age| format_duration(*age).to_string()
);
value!(
    /// The age at which a reader follows the writer.
    #[derive(Copy)]
    Follow(Duration),
    |text| between(text, Duration::from_millis(500), "must be between 500ms and 1h; write for example 5s"),
    |age| format_duration(*age).to_string()
);
value!(
    /// The address of a port to open: `9810`, `:9810`, `127.0.0.1:9810` or `[::1]:9810`.
    #[derive(Copy)]
    Address(SocketAddr),
    parse_address,
    SocketAddr::to_string
);
value!(
    /// The way to tell tenants apart.
    #[derive(Copy)]
    By(TenantBy),
    |text: &str| text.parse().map_err(|error: <TenantBy as FromStr>::Err| error.to_string()),
    TenantBy::to_string
);
value!(
    /// The limit of a tenant, such as `/containers/a=64MiB`.
    TenantLimit((PathBuf, u64)),
    parse_tenant_limit,
    |(tenant, bytes)| format!("{}={bytes}", tenant.to_string_lossy())
);
value!(
    /// The `dontcache` setting of a tenant, such as `/containers/backup=on`.
    TenantDontcache((PathBuf, bool)),
    parse_tenant_dontcache,
    |(tenant, is_on)| format!("{}={}", tenant.to_string_lossy(), switch(*is_on))
);

/// The word for a switch.
pub fn switch(is_on: bool) -> &'static str {
    if is_on { ON } else { OFF }
}

/// Parses `on` or `off`.
///
/// # Errors
/// The text is neither.
pub fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        ON => Ok(true),
        OFF => Ok(false),
        other => Err(format!("`{}` is neither on nor off", other.printable())),
    }
}

/// Parses a time such as `30s`, `500ms`, `1.5m` or `1h`. A number without a unit is refused: the kernel's settings of
/// that kind count hundredths of a second.
///
/// # Errors
/// The text is not a time; the message has an example.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| "not a time; write for example 30s, 500ms, 5m or 1h".to_owned())
}

/// Parses the time between two samples of `top`.
///
/// # Errors
/// The text is not a time between 100 ms and one hour.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    between(text, Duration::from_millis(100), "must be between 100ms and 1h; write for example 1s")
}

/// A percentage, as a number or as a text.
///
/// # Errors
/// The value is not one from 1 to 100.
pub fn percent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Word {
        Number(u32),
        Text(String),
    }
    let percent = match Option::<Word>::deserialize(deserializer) {
        Ok(None) => return Ok(None),
        Ok(Some(Word::Number(percent))) => Some(percent),
        Ok(Some(Word::Text(text))) => text.parse().ok(),
        Err(_) => None,
    };
    let percent = percent.filter(|percent| (1..=100).contains(percent));
    percent.map(Some).ok_or_else(|| de::Error::custom("not a percentage from 1 to 100"))
}

fn parse_size(text: &str) -> Result<u64, String> {
    size::parse(text).map_err(|error| error.to_string())
}

fn at_least(text: &str, least: u64, why: &str) -> Result<u64, String> {
    Some(parse_size(text)?).filter(|bytes| *bytes >= least).ok_or_else(|| why.to_owned())
}

/// A time of at most one hour.
fn between(text: &str, least: Duration, why: &str) -> Result<Duration, String> {
    let bounds = least..=Duration::from_secs(3600);
    Some(parse_duration(text)?).filter(|time| bounds.contains(time)).ok_or_else(|| why.to_owned())
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix(':').unwrap_or(text).parse().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let address = port.or_else(|_| text.parse());
    address.map_err(|_| "not an address and a port; write for example 127.0.0.1:9810".to_owned())
}

fn parse_tenant_limit(text: &str) -> Result<(PathBuf, u64), String> {
    let (tenant, size) = text.rsplit_once('=').ok_or("not a limit; write for example /containers/a=64MiB")?;
    if tenant.is_empty() {
        return Err("no tenant before the limit; write for example /containers/a=64MiB".to_owned());
    }
    Ok((tenant.into(), parse_size(size)?))
}

fn parse_tenant_dontcache(text: &str) -> Result<(PathBuf, bool), String> {
    const EXAMPLE: &str = "write for example /containers/backup=on";
    let (tenant, word) = text.rsplit_once('=').ok_or_else(|| format!("expected a tenant and on or off; {EXAMPLE}"))?;
    if tenant.is_empty() {
        return Err(format!("no tenant before the `=`; {EXAMPLE}"));
    }
    parse_switch(word).map(|is_on| (tenant.into(), is_on)).map_err(|why| format!("{why}; {EXAMPLE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_limit_is_a_name_and_a_size() {
        let limit = |tenant: &str, bytes| Ok(TenantLimit((tenant.into(), bytes)));
        assert_eq!("/containers/a=64MiB".parse(), limit("/containers/a", 64 << 20));
        assert_eq!("uid:1000=0".parse(), limit("uid:1000", 0));
        // systemd escapes unit names, but leaves this character.
        assert_eq!("/a=b=4096".parse(), limit("/a=b", 4096));
        for (text, why) in [("64MiB", "not a limit"), ("=64MiB", "no tenant"), ("/a=", "256MiB"), ("/a=lots", "256MiB")]
        {
            let refusal = text.parse::<TenantLimit>().unwrap_err();
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
        assert_eq!("500ms".parse(), Ok(Follow(Duration::from_millis(500))));
        for text in ["0s", "499ms", "2h"] {
            assert!(text.parse::<Follow>().unwrap_err().contains("between 500ms and 1h"), "{text}");
        }
        assert_eq!("50MiB".parse(), Ok(Rate(50 << 20)));
        assert!("1000".parse::<Rate>().unwrap_err().contains("64KiB"));
        assert!("fast".parse::<Rate>().unwrap_err().contains("256MiB"));
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
