//! Scripted answers of the server.

/// The server's treatment of a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// This status and body; the request is not carried out. S3 reports some errors in the body of a 200.
    Status(u16, String),
    /// The request is carried out, and then the connection is closed without an answer.
    LoseReply,
    /// The connection is closed, and the request is not carried out.
    Disconnect,
    /// No answer; the request is not carried out.
    Hang,
}

impl Answer {
    /// An error as S3 sends it.
    pub fn error(status: u16, code: &str, message: &str) -> Self {
        let body = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{message}</Message>\
             <RequestId>0</RequestId></Error>"
        );
        Self::Status(status, body)
    }
}

/// An [`Answer`], and the requests that get it.
#[derive(Clone, Debug)]
pub struct Script {
    answer: Answer,
    method: Option<&'static str>,
    part: Option<String>,
    left: u64,
}

impl Script {
    /// For each request.
    pub fn new(answer: Answer) -> Self {
        Self { answer, method: None, part: None, left: u64::MAX }
    }

    /// Only requests of this HTTP method.
    #[must_use]
    pub fn method(self, method: &'static str) -> Self {
        Self { method: Some(method), ..self }
    }

    /// Only requests with `part` in their path and query.
    #[must_use]
    pub fn under(self, part: impl Into<String>) -> Self {
        Self { part: Some(part.into()), ..self }
    }

    /// Only `requests` of those that match.
    #[must_use]
    pub fn times(self, requests: u64) -> Self {
        Self { left: requests, ..self }
    }

    pub(crate) fn judge(&mut self, method: &str, target: &str) -> Option<Answer> {
        let is_match = self.method.is_none_or(|wanted| wanted == method)
            && self.part.as_ref().is_none_or(|part| target.contains(part.as_str()));
        if !is_match || self.left == 0 {
            return None;
        }
        self.left -= 1;
        Some(self.answer.clone())
    }
}
