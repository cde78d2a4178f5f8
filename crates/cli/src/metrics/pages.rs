//! The pages with the metrics, and paths for probes.

use std::cell::RefCell;
use std::io;
use std::net::TcpListener;

use hyper::StatusCode;
use hyper::header::ACCEPT;

use crate::http::{self, PLAIN, Request, Response, Server, is_read, only_get, response};
use crate::metrics::render::{self, Renderer};
use crate::metrics::{Snapshot, prometheus_text};

/// Serves the result of `snapshot`, which is called once per scrape, on its own thread. `is_ready` answers probes
/// without collecting the figures of all volumes.
///
/// # Errors
/// As [`http::serve`].
pub(crate) fn serve(
    listener: TcpListener,
    snapshot: impl Fn() -> Snapshot + Send + 'static,
    is_ready: impl Fn() -> bool + Send + 'static,
) -> io::Result<Server> {
    let renderer = RefCell::new(Renderer::default());
    let metrics = move || renderer.borrow_mut().render(&snapshot());
    http::serve("sw-metrics", listener, move |request| respond(request, &metrics, &is_ready))
}

fn respond(request: &Request, metrics: &impl Fn() -> String, is_ready: &impl Fn() -> bool) -> Response {
    match request.uri().path() {
        "/metrics" | "/healthz" | "/-/healthy" | "/-/ready" if !is_read(request) => only_get(),
        "/metrics" if asks_for_openmetrics(request) => response(StatusCode::OK, render::CONTENT_TYPE, metrics()),
        "/metrics" => {
            let text = prometheus_text::of_openmetrics(&metrics());
            response(StatusCode::OK, prometheus_text::CONTENT_TYPE, text)
        }
        "/healthz" | "/-/healthy" => response(StatusCode::OK, PLAIN, "ok\n"),
        "/-/ready" if is_ready() => response(StatusCode::OK, PLAIN, "ready\n"),
        "/-/ready" => response(StatusCode::SERVICE_UNAVAILABLE, PLAIN, "starting\n"),
        _ => response(StatusCode::NOT_FOUND, PLAIN, "metrics are at /metrics\n"),
    }
}

/// Whether a client accepts OpenMetrics, as Prometheus does.
fn asks_for_openmetrics(request: &Request) -> bool {
    let accepted = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut kinds = accepted.flat_map(|value| value.split(',')).filter_map(|kind| kind.split(';').next());
    kinds.any(|kind| kind.trim().eq_ignore_ascii_case("application/openmetrics-text"))
}
