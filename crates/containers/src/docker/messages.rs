//! The messages: what a platform sends, and what it gets.
//!
//! Docker reads the error of a call in `Err`, whatever the status. Podman looks at the status first. So an error has both.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use slackwater_control::exit::Failure;

/// The media type of version 1.
pub(super) const MEDIA_TYPE: &str = "application/vnd.docker.plugins.v1+json";

/// The body of a request; each call uses some of the fields.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct Request {
    /// The name of a volume.
    pub(super) name: String,
    /// The id of the user of a mount: a container, or whatever the platform counts.
    #[serde(rename = "ID")]
    pub(super) id: String,
    pub(super) opts: Option<BTreeMap<String, String>>,
}

impl Request {
    /// Reads a body. Some calls have none.
    ///
    /// # Errors
    /// The body is not a JSON object of this kind.
    pub(super) fn parse(body: &[u8]) -> Result<Self, Failure> {
        if body.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        // An array would be read as well, field by field.
        let object: Result<Map<String, Value>, _> = serde_json::from_slice(body);
        let request = object.and_then(|object| serde_json::from_value(object.into()));
        request.map_err(|error| Failure::usage(format!("the body of the request is no such JSON object: {error}")))
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Value,
}

impl Answer {
    /// The call is done; `body` is an object.
    pub(super) fn done(mut body: Value) -> Self {
        body["Err"] = "".into();
        Self { status: StatusCode::OK, body }
    }

    /// The call has failed.
    pub(super) fn failed(status: StatusCode, failure: &Failure) -> Self {
        // Platforms show it in one line.
        Self { status, body: json!({ "Err": failure.to_string().replace("\n  ", "; ") }) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use slackwater_testkit::damage;

    #[test]
    fn requests_are_those_of_docker() {
        let request =
            Request::parse(br#"{"Name": "data", "Opts": {"pool": "/srv"}, "ID": "b87d", "More": 1}"#).unwrap();
        assert_eq!((request.name.as_str(), request.id.as_str()), ("data", "b87d"));
        assert_eq!(request.opts.unwrap()["pool"], "/srv");
        for body in ["", "\n", "{}", r#"{"Opts": null}"#] {
            assert!(Request::parse(body.as_bytes()).unwrap().name.is_empty(), "{body}");
        }
        for body in ["x", "[]", r#"{"Name": 7}"#, r#"{"Opts": {"a": 1}}"#, "{} {}"] {
            assert!(Request::parse(body.as_bytes()).unwrap_err().to_string().contains("JSON"), "{body}");
        }
    }

    #[test]
    fn an_error_is_one_line() {
        let answer = Answer::failed(StatusCode::NOT_FOUND, &Failure::failed("a").advise("b"));
        assert_eq!(answer.body, json!({ "Err": "a; b" }));
    }

    proptest! {
        #![proptest_config(damage::cases())]

        #[test]
        fn damaged_requests_are_refused_or_read(body in damage::damaged(vec![br#"{"Name": "data", "Opts": {"pool": "/srv"}, "ID": "b"}"#.to_vec()])) {
            let _ = Request::parse(&body);
        }
    }
}
