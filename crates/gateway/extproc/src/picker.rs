//! What a picker is, what it learns of a request, and what it answers.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;

/// Picks endpoints. Clones are the same picker.
pub trait Picker: Clone + Send + Sync + 'static {
    type Call: Call;
    type Room: Room;

    /// Where the bytes of a message are until all of it has come.
    fn room(&self) -> Self::Room;

    /// Time for a message, and for the body of a request that is waited for.
    fn patience(&self) -> Duration;

    /// A request has begun. Its body, if any, follows.
    ///
    /// # Errors
    /// It goes no further.
    fn begin(&self, head: Head) -> Result<Self::Call, Refusal>;

    /// Whether requests can be served now: the answer of the health service.
    fn ready(&self) -> bool;
}

/// A part of the memory for what has not come whole, given back when dropped.
pub trait Room: Send + 'static {
    /// Changes the reservation to `bytes`; false where the budget has no room for it.
    fn resize(&mut self, bytes: usize) -> bool;
}

/// What a data plane takes too much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Excess {
    Room,
    Time,
}

/// A request from its header to the end of its answer. Dropped before [`Self::end`], the client
/// has left.
pub trait Call: Send + 'static {
    /// More of the request's body.
    ///
    /// # Errors
    /// It is too much.
    fn take(&mut self, bytes: Bytes) -> Result<(), Refusal>;

    /// The answer to a request that is given up before it was picked for.
    fn exceeds(&self, excess: Excess) -> Refusal;

    /// Picks, once: what was seen of the body is all that will be.
    fn pick(&mut self, seen: Seen) -> impl Future<Output = Result<Picked, Refusal>> + Send;

    /// The header of the answer has come.
    fn answered(&mut self, head: &AnswerHead) -> Change;

    /// Bytes of the answer have come; those to be sent instead.
    fn pass(&mut self, bytes: Bytes) -> Bytes;

    /// The answer is complete; bytes that were held back so far.
    fn end(&mut self) -> Bytes;
}

/// The header of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    pub method: String,
    /// With its query.
    pub path: String,
    /// Without the pseudo headers.
    pub headers: HeaderMap,
    /// The only endpoints that may be picked, `ip:port`; `None`: all.
    pub subset: Option<Vec<String>>,
}

/// How much of a request's body there was to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    All,
    /// Envoy's body mode shows it too late, in part, or not at all.
    Part,
}

/// Where a request goes, and how it changes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Picked {
    /// `ip:port`, best first, at least one: the others are for Envoy's retries.
    pub endpoints: Vec<String>,
    /// The whole body as the endpoint gets it.
    pub body: Bytes,
    /// Whether that is another one than came.
    pub is_rewritten: bool,
    pub change: Change,
}

/// What changes in a header.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Change {
    pub set: Vec<(HeaderName, HeaderValue)>,
    pub remove: Vec<HeaderName>,
}

/// The header of an answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AnswerHead {
    pub status: u16,
    pub headers: HeaderMap,
    /// The endpoint that served it, `ip:port`, where Envoy says so.
    pub served: Option<String>,
}

/// An answer without an endpoint: a refusal, or what the picker knows better than any endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    pub status: u16,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub body: Bytes,
    /// A word for Envoy's access log.
    pub reason: &'static str,
}
