//! Which requests get an answer: by the name under which they reach this machine, and by a token.

use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use hyper::header::{AUTHORIZATION, HOST};
use hyper::http::uri::Authority;
use slackwater_control::exit::Failure;
use slackwater_control::output::shell;
use slackwater_host::Printable as _;

use crate::http::Request;

/// A shorter token could be guessed.
const TOKEN_BYTES_MIN: usize = 16;
/// A longer one does not fit into the head of a request.
const TOKEN_BYTES_MAX: usize = 1024;

/// A secret that requests must have.
pub(super) struct Token(Vec<u8>);

impl Token {
    /// Reads the token in a file that other users cannot read.
    ///
    /// # Errors
    /// The file cannot be read, or others can read it; the token is too short, too long, or not one printable word.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let shown = path.printable();
        let failed = |error: io::Error| Failure::usage(format!("--web-token-file: cannot read {shown}: {error}"));
        let file = File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(Failure::usage(format!("--web-token-file: other users can read {shown} (mode {mode:o})"))
                .advise(format!("chmod 600 {}", shell::word(path))));
        }
        let mut text = Vec::new();
        file.take(TOKEN_BYTES_MAX as u64 + 2).read_to_end(&mut text).map_err(failed)?;
        let token = text.trim_ascii();
        if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len()) || !token.iter().all(u8::is_ascii_graphic) {
            let what = format!(
                "--web-token-file: {shown} must hold one word of {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} printable letters"
            );
            return Err(Failure::usage(what)
                .advise(format!("make one: (umask 077; head -c 32 /dev/urandom | base64 > {})", shell::word(path))));
        }
        Ok(Self(token.to_vec()))
    }

    /// Whether `given` is the token. The time does not depend on how much of it is right.
    fn is(&self, given: &[u8]) -> bool {
        let mut difference = self.0.len() ^ given.len();
        for (at, byte) in self.0.iter().enumerate() {
            difference |= usize::from(byte ^ given.get(at).copied().unwrap_or_default());
            difference = black_box(difference);
        }
        difference == 0
    }
}

/// The requests that are answered.
pub(super) struct Access {
    token: Option<Token>,
}

impl Access {
    /// Access for requests with this token, from any machine.
    pub(super) fn with(token: Token) -> Self {
        Self { token: Some(token) }
    }

    /// Access for requests from this machine.
    pub(super) fn from_this_machine() -> Self {
        Self { token: None }
    }

    /// W3 of the module above: whether a request names this machine in a way that no other owner of a name can arrange.
    /// With a token every name is allowed, because a foreign page does not have the token.
    pub(super) fn allows_host(&self, request: &Request) -> bool {
        if self.token.is_some() {
            return true;
        }
        let mut hosts = request.headers().get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
        let is_host_ours = host.to_str().is_ok_and(is_address_or_localhost);
        is_host_ours && request.uri().authority().is_none_or(|authority| is_address_or_localhost(authority.as_str()))
    }

    /// Whether a request has the token, if there is one.
    pub(super) fn has_token(&self, request: &Request) -> bool {
        let Some(token) = &self.token else { return true };
        let mut given = request.headers().get_all(AUTHORIZATION).iter();
        let (Some(given), None) = (given.next(), given.next()) else { return false };
        given.as_bytes().strip_prefix(b"Bearer ").is_some_and(|given| token.is(given))
    }
}

fn is_address_or_localhost(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    !host.contains('@') && (name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_addresses_and_localhost_name_this_machine() {
        for host in ["127.0.0.1", "127.0.0.1:9811", "localhost:9811", "LOCALHOST", "[::1]:9811", "10.0.0.7:80"] {
            assert!(is_address_or_localhost(host), "{host}");
        }
        let foreign =
            ["", "evil.example", "evil.example:9811", "localhost.evil.example", "127.0.0.1.evil.example", "::1", "a b"];
        for host in foreign.into_iter().chain(["127.0.0.1@evil.example", "x@127.0.0.1", "2130706433", "[::1"]) {
            assert!(!is_address_or_localhost(host), "{host}");
        }
    }

    #[test]
    fn a_token_is_equal_only_to_itself() {
        let token = Token(b"0123456789abcdef".to_vec());
        assert!(token.is(b"0123456789abcdef"));
        for other in [&b""[..], b"0123456789abcde", b"0123456789abcdef0", b"0123456789abcdeg", b"x0123456789abcdef"] {
            assert!(!token.is(other), "{other:?}");
        }
    }

    #[test]
    fn a_file_that_others_can_read_and_a_weak_token_are_refused() {
        let path = std::env::temp_dir().join(format!("slackwater-token-{}", std::process::id()));
        let read = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Token::read(&path).map(|token| token.0).map_err(|failure| failure.to_string())
        };
        assert_eq!(read("  0123456789abcdef\n", 0o400).unwrap(), b"0123456789abcdef");
        for (text, mode, why) in [
            ("0123456789abcdef", 0o640, "chmod 600"),
            ("short", 0o600, "make one"),
            ("", 0o600, "make one"),
            ("two words are not a token", 0o600, "make one"),
            (&"x".repeat(2000), 0o600, "make one"),
        ] {
            assert!(read(text, mode).unwrap_err().contains(why), "{text}");
        }
        fs::remove_file(&path).unwrap();
        assert!(Token::read(&path).map(drop).unwrap_err().what.contains("cannot read"));
    }
}
