//! Body modes, and what follows from them.

use crate::messages::{BodyMode, ProcessingRequest};

/// The modes of both bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Modes {
    pub(crate) request: BodyMode,
    pub(crate) response: BodyMode,
}

impl Modes {
    /// Those that the first message of a stream names. An older Envoy that names none has to
    /// be set to `BUFFERED` requests and `STREAMED` answers.
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

    /// Whether the body comes before the header is on its way to the endpoint. Bodies of the other
    /// modes come after it, or not at all.
    pub(crate) fn waits_for_body(self) -> bool {
        self.sends_body_back()
            || matches!(self.request, BodyMode::Buffered | BodyMode::BufferedPartial)
    }

    /// Whether the body goes to Envoy whole and comes back from here.
    pub(crate) fn sends_body_back(self) -> bool {
        self.request == BodyMode::FullDuplexStreamed
    }

    /// As [`Self::sends_body_back`], for answers.
    pub(crate) fn sends_answer_back(self) -> bool {
        self.response == BodyMode::FullDuplexStreamed
    }
}
