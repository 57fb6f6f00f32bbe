//! How a request ended, as far as its replica is concerned.

/// The end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Served,
    /// The client went away. Says nothing of the replica.
    ClientGone,
    /// Nothing of the request reached it.
    ConnectFailed,
    /// A broken connection or stream, 502, 504, or a status of 500 for a request that another
    /// replica served.
    Failed,
    /// A status of 500 that no other replica has contradicted. It may be the request's own fault,
    /// and says nothing of the replica.
    Unclear,
    /// 429 or 503: it is alive and has no room.
    Refused,
}
