//! `slackwater daemon --web`: a page for operators, and the figures that it shows.
//!
//! | Request | Answer |
//! |---|---|
//! | `GET /` | the page: one file without foreign parts, the same for all |
//! | `GET /status.json` | the figures, as `slackwater top --json` has them; with the token if there is one |
//!
//! # Invariants
//! W1. Requests change nothing: other methods than GET and HEAD are refused.
//! W2. Only requests with the token get figures. Without a token, the server listens on a loopback address only.
//! W3. A page of another origin learns nothing. No answer allows another origin, and without a token a request must
//!     name this machine by an address or as localhost, so that no foreign name can be pointed here (DNS rebinding).
//! W4. However many clients there are, the volumes are looked at about once per second ([`figures`]).

mod access;
mod figures;

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{
    CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use slackwater_control::exit::Failure;
use slackwater_control::spec::ServerSpec;
use slackwater_control::spec::values::Address;

use crate::commands::daemon::volumes::Volumes;
use crate::http::{self, PLAIN, Request, Response, Server, is_read, only_get, response};

use self::access::{Access, Token};
use self::figures::Figures;

const PAGE: &str = include_str!("page.html");
/// Stands in the page for the word that allows its own script and style, which is another one for each answer.
const NONCE: &str = "@NONCE@";

/// A port that is open, and the requests that are answered there.
pub(super) struct Web {
    listener: TcpListener,
    access: Access,
}

impl Web {
    /// Opens the port of the configuration by `listen`, if it names one.
    ///
    /// # Errors
    /// The port is in use; the address is not one of this machine, or other machines reach it and there is no token;
    /// the file with the token cannot be used.
    pub(super) fn open(
        config: &ServerSpec,
        listen: impl FnOnce(SocketAddr) -> Result<TcpListener, Failure>,
    ) -> Result<Option<Self>, Failure> {
        let Some(Address(address)) = config.web else {
            return match &config.web_token_file {
                None => Ok(None),
                Some(_) => Err(Failure::usage("--web-token-file is given without --web")
                    .advise("give the address of the page too, such as --web 127.0.0.1:9811")),
            };
        };
        let access = access(address, config.web_token_file.as_deref())?;
        Ok(Some(Self { listener: listen(address)?, access }))
    }

    /// Serves the page and the figures of `volumes`, on its own thread.
    ///
    /// # Errors
    /// As [`http::serve`].
    pub(super) fn serve(self, volumes: &Arc<Volumes>) -> io::Result<Server> {
        let Self { listener, access } = self;
        let figures = RefCell::new(Figures::of(volumes));
        let json = move || figures.borrow_mut().json();
        http::serve("sw-web", listener, move |request| answer(request, &access, &json))
    }
}

/// W2.
fn access(address: SocketAddr, token_file: Option<&Path>) -> Result<Access, Failure> {
    match token_file {
        Some(file) => Ok(Access::with(Token::read(file)?)),
        None if address.ip().to_canonical().is_loopback() => Ok(Access::from_this_machine()),
        None => {
            Err(Failure::usage(format!("--web {address}: other machines could read the page, and there is no token"))
                .advise("use 127.0.0.1 for this machine only, or pass --web-token-file FILE"))
        }
    }
}

fn answer(request: &Request, access: &Access, json: &impl Fn() -> serde_json::Result<Arc<str>>) -> Response {
    let nonce = nonce();
    let mut response = respond(request, access, json, &nonce);
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    );
    let headers = response.headers_mut();
    if let Ok(policy) = HeaderValue::try_from(policy) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    for (name, value) in [
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn respond(
    request: &Request,
    access: &Access,
    json: &impl Fn() -> serde_json::Result<Arc<str>>,
    nonce: &str,
) -> Response {
    if !access.allows_host(request) {
        let text = "this page is served by address: use 127.0.0.1, localhost, or the address of the machine\n";
        return response(StatusCode::MISDIRECTED_REQUEST, PLAIN, text);
    }
    if !is_read(request) {
        return only_get();
    }
    match request.uri().path() {
        "/" => response(StatusCode::OK, "text/html; charset=utf-8", PAGE.replace(NONCE, nonce)),
        "/status.json" if !access.has_token(request) => {
            let mut refused = response(StatusCode::UNAUTHORIZED, PLAIN, "the token is missing or wrong\n");
            refused.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            refused
        }
        "/status.json" => match json() {
            Ok(json) => response(StatusCode::OK, "application/json", &*json),
            Err(error) => {
                let text = format!("the figures cannot be written as JSON: {error}\n");
                response(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, text)
            }
        },
        _ => response(StatusCode::NOT_FOUND, PLAIN, "the page is at /, and its figures at /status.json\n"),
    }
}

/// A random word. Without random numbers, the browser runs neither script nor style of the page.
fn nonce() -> String {
    let mut random = [0; 16];
    match rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()) {
        Ok(count) if count == random.len() => random.iter().map(|byte| format!("{byte:02x}")).collect(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests;
