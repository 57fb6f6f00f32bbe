//! The picker interface: its inputs and outputs.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;

/// Picks endpoints. Clones share their state.
pub trait Picker: Clone + Send + Sync + 'static {
    type Call: Call;
    type Room: Room;

    /// A memory reservation for incomplete messages.
    fn room(&self) -> Self::Room;

    /// Time-out for a message, and for the body of a waiting request.
    fn patience(&self) -> Duration;

    /// Starts a request, whose body may follow.
    ///
    /// # Errors
    /// The request is refused.
    fn begin(&self, head: Head) -> Result<Self::Call, Refusal>;

    /// Whether requests can be served; reported by the health service.
    fn ready(&self) -> bool;
}

/// Memory reservation for incomplete data, released on drop.
pub trait Room: Send + 'static {
    /// Changes the reservation to `bytes`; false if the budget is exhausted.
    fn resize(&mut self, bytes: usize) -> bool;
}

/// The exceeded resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Excess {
    Room,
    Time,
}

/// A request from its header to the end of its response. A drop before [`Self::end`] means that the
/// client disconnected.
pub trait Call: Send + 'static {
    /// Adds bytes of the request's body.
    ///
    /// # Errors
    /// The body is too large.
    fn take(&mut self, bytes: Bytes) -> Result<(), Refusal>;

    /// The error response to a request abandoned before the choice of an endpoint.
    fn exceeds(&self, excess: Excess) -> Refusal;

    /// Picks an endpoint; called once, with all of the body that will be visible.
    fn pick(&mut self, seen: Seen) -> impl Future<Output = Result<Picked, Refusal>> + Send;

    /// Processes the response header.
    fn answered(&mut self, head: &AnswerHead) -> Change;

    /// Processes bytes of the response; returns the bytes to send instead.
    fn pass(&mut self, bytes: Bytes) -> Bytes;

    /// Ends the response; returns bytes held back.
    fn end(&mut self) -> Bytes;
}

/// The header of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Without the pseudo-headers.
    pub headers: HeaderMap,
    /// The only eligible endpoints, `ip:port`; `None`: all.
    pub subset: Option<Vec<String>>,
}

/// How much of a request's body was visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    All,
    /// In Envoy's body mode it arrives too late, in part, or not at all.
    Part,
}

/// The chosen endpoints, and the changes of the request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Picked {
    /// `ip:port`, best first, at least one; the rest are for Envoy's retries.
    pub endpoints: Vec<String>,
    /// The whole body for the endpoint.
    pub body: Bytes,
    /// Whether `body` differs from the received one.
    pub is_rewritten: bool,
    pub change: Change,
}

/// Changes of a header.
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
    /// The endpoint that served it, `ip:port`, if reported by Envoy.
    pub served: Option<String>,
}

/// An immediate response: an error, or a page that the picker answers itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    pub status: u16,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub body: Bytes,
    /// Reason for Envoy's access log.
    pub reason: &'static str,
}
