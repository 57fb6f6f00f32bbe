//! How a request ended, as far as its replica is concerned.

/// The end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Served,
    /// The client went away. Says nothing of the replica.
    ClientGone,
    /// Nothing of the request reached it.
    ConnectFailed,
    /// A status of 500 and above, or a broken stream.
    Failed,
    /// 429 or 503: it is alive and has no room.
    Refused,
}
