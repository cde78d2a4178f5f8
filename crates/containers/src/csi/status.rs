//! Failures as codes of gRPC. A message is one line, since platforms show it in events.

use slackwater_control::exit::Failure;
use tonic::{Code, Status};

use crate::node::NodeError;
use crate::volumes::VolumeError;

/// The status of a call on this machine that failed.
pub(super) fn of_node(error: NodeError) -> Status {
    let (code, failure) = match error {
        NodeError::Invalid(failure) => (Code::InvalidArgument, failure),
        NodeError::NotFound(failure) => (Code::NotFound, failure),
        NodeError::Different(failure) => (Code::AlreadyExists, failure),
        NodeError::State(failure) => (Code::FailedPrecondition, failure),
        NodeError::Pending(failure) => (Code::Aborted, failure),
        NodeError::Deadline(failure) => (Code::DeadlineExceeded, failure),
        NodeError::Unavailable(failure) => (Code::Unavailable, failure),
        NodeError::Failed(failure) => (Code::Internal, failure),
    };
    with(code, &failure)
}

/// The status of a call on the records of volumes that failed.
pub(super) fn of_volume(error: VolumeError) -> Status {
    let (code, failure) = match error {
        VolumeError::Different(failure) => (Code::AlreadyExists, failure),
        VolumeError::Missing(failure) => (Code::NotFound, failure),
        VolumeError::Invalid(failure) => (Code::InvalidArgument, failure),
        VolumeError::OutOfRange(failure) => (Code::OutOfRange, failure),
        VolumeError::Busy(failure) => (Code::FailedPrecondition, failure),
        VolumeError::Failed(failure) => (Code::Internal, failure),
    };
    with(code, &failure)
}

/// The status of a value in a request that is not valid.
pub(super) fn invalid(failure: &Failure) -> Status {
    with(Code::InvalidArgument, failure)
}

/// A failure on one line.
pub(super) fn one_line(failure: &Failure) -> String {
    failure.to_string().replace("\n  ", "; ").replace('\n', " ")
}

fn with(code: Code, failure: &Failure) -> Status {
    Status::new(code, one_line(failure))
}

/// The value of a field that a request must have.
pub(super) fn required<'v>(value: &'v str, field: &str) -> Result<&'v str, Status> {
    if value.is_empty() { Err(Status::invalid_argument(format!("{field} is missing"))) } else { Ok(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_with_its_advice() {
        let status =
            of_node(NodeError::Deadline(Failure::failed("4 MiB left").advise("nothing is lost").advise("repeat")));
        assert_eq!((status.code(), status.message()), (Code::DeadlineExceeded, "4 MiB left; nothing is lost; repeat"));
    }
}
