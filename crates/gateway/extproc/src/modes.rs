//! Body modes (how Envoy shows bodies to the picker) and what follows from them.

use crate::messages::{BodyMode, ProcessingRequest};

/// The modes of the request's and of the response's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Modes {
    pub(crate) request: BodyMode,
    pub(crate) response: BodyMode,
}

impl Modes {
    /// The modes named by the first message of a stream. An older Envoy names none; it must be
    /// configured for `BUFFERED` requests and `STREAMED` responses.
    pub(crate) fn of(first: &ProcessingRequest) -> Self {
        match first.protocol_config {
            Some(config) => Self {
                request: config.request_body_mode(),
                response: config.response_body_mode(),
            },
            None => Self {
                request: BodyMode::Buffered,
                response: BodyMode::Streamed,
            },
        }
    }

    /// Whether the request's body arrives before its header is forwarded to the endpoint. In other
    /// modes the body arrives later or not at all.
    pub(crate) fn waits_for_body(self) -> bool {
        self.sends_body_back()
            || matches!(self.request, BodyMode::Buffered | BodyMode::BufferedPartial)
    }

    /// Whether Envoy sends the whole request body, and forwards the body that the picker sends
    /// back.
    pub(crate) fn sends_body_back(self) -> bool {
        self.request == BodyMode::FullDuplexStreamed
    }

    /// Whether Envoy sends the whole response body, and forwards the body that the picker sends
    /// back.
    pub(crate) fn sends_answer_back(self) -> bool {
        self.response == BodyMode::FullDuplexStreamed
    }
}
