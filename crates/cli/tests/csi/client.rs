//! Calls over gRPC: one connection for each, so that a test sees what one call does.

use std::path::Path;

use h2::client::handshake;
use prost::Message;
use tokio::net::UnixStream;
use tonic::Code;

/// An answer other than success.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Refused {
    pub(crate) code: Code,
    pub(crate) message: String,
}

/// Whether a call was refused because something uses the volume.
pub(crate) fn is_busy(answer: &Result<(), Refused>) -> bool {
    let in_use = |refused: &Refused| refused.code == Code::FailedPrecondition && refused.message.contains("in use");
    answer.as_ref().is_err_and(in_use)
}

/// Whether a call ended at its deadline.
pub(crate) fn is_late(answer: &Result<(), Refused>) -> bool {
    answer.as_ref().is_err_and(|refused| refused.code == Code::DeadlineExceeded)
}

/// Bytes before a message: no compression, and its length.
const PREFIX: usize = 5;

/// Calls a method, such as `Node/NodeGetInfo`. The inner error is the answer of the plugin; a connection that breaks is
/// `None`.
pub(crate) fn try_call<A: Message + Default>(
    endpoint: &Path,
    method: &str,
    request: &impl Message,
) -> Option<Result<A, Refused>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        let stream = UnixStream::connect(endpoint).await.ok()?;
        let (mut client, connection) = handshake(stream).await.ok()?;
        let connection = tokio::spawn(connection);
        let head = http::Request::post(format!("http://csi/csi.v1.{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .unwrap();
        let (answer, mut body) = client.send_request(head, false).ok()?;
        let message = request.encode_to_vec();
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        body.send_data([&[0], &length[..], &message].concat().into(), true).ok()?;
        let answer = answer.await.ok()?;
        let refused = refusal(answer.headers());
        let mut body = answer.into_body();
        let mut bytes = Vec::new();
        while let Some(part) = body.data().await {
            let part = part.ok()?;
            body.flow_control().release_capacity(part.len()).ok()?;
            bytes.extend_from_slice(&part);
        }
        let trailers = body.trailers().await.ok()?;
        connection.abort();
        match refused.or_else(|| trailers.as_ref().and_then(refusal)) {
            Some(refused) => Some(Err(refused)),
            None => Some(Ok(A::decode(bytes.get(PREFIX..)?).unwrap())),
        }
    })
}

/// Calls a plugin that lives, as [`try_call`] does.
#[track_caller]
pub(crate) fn call<A: Message + Default>(endpoint: &Path, method: &str, request: &impl Message) -> Result<A, Refused> {
    try_call(endpoint, method, request).unwrap_or_else(|| panic!("no answer to {method}"))
}

fn refusal(headers: &http::HeaderMap) -> Option<Refused> {
    let status = tonic::Status::from_header_map(headers)?;
    let message = status.message().to_owned();
    (status.code() != Code::Ok).then_some(Refused { code: status.code(), message })
}
