//! Body modes and their consequences.

use crate::messages::{BodyMode, ProcessingRequest};

/// The modes of both bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Modes {
    pub(crate) request: BodyMode,
    pub(crate) response: BodyMode,
}

impl Modes {
    /// The modes named by the first message of a stream. An older Envoy that names none must be
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

    /// Whether the body arrives before the header is forwarded to the endpoint. In other modes it
    /// arrives later or not at all.
    pub(crate) fn waits_for_body(self) -> bool {
        self.sends_body_back()
            || matches!(self.request, BodyMode::Buffered | BodyMode::BufferedPartial)
    }

    /// Whether Envoy sends the whole body and forwards the one returned from here.
    pub(crate) fn sends_body_back(self) -> bool {
        self.request == BodyMode::FullDuplexStreamed
    }

    /// Like [`Self::sends_body_back`], for responses.
    pub(crate) fn sends_answer_back(self) -> bool {
        self.response == BodyMode::FullDuplexStreamed
    }
}
