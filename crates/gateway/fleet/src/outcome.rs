//! The end of a request, as a verdict on its replica.

/// The end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Served,
    /// The client disconnected. No verdict on the replica.
    ClientGone,
    /// The connection could not be opened, so nothing was sent.
    ConnectFailed,
    /// A broken connection or stream, 502, 504, or a status of 500 for a request that another
    /// replica served.
    Failed,
    /// A 500 for a request that no other replica has served. It may be the request's own fault, so
    /// it does not count against the replica.
    Unclear,
    /// 429 or 503: alive but out of capacity.
    Refused,
}

impl Outcome {
    /// The outcome as a label of metrics and traces.
    pub fn word(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::ClientGone => "client_gone",
            Self::ConnectFailed | Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Unclear => "unclear",
        }
    }
}
