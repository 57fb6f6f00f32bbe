//! The interface of an endpoint picker: its inputs and outputs.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;

/// Picks endpoints for requests. Clones share their state.
pub trait Picker: Clone + Send + Sync + 'static {
    type Call: Call;
    type Room: Room;

    /// A new, empty memory reservation for incomplete messages.
    fn room(&self) -> Self::Room;

    /// How long to wait for the rest of a message, and for the body of a waiting request.
    fn patience(&self) -> Duration;

    /// Starts a request, whose body may follow.
    ///
    /// # Errors
    /// The request is refused.
    fn begin(&self, head: Head) -> Result<Self::Call, Refusal>;

    /// Whether requests can be served; the health service reports it.
    fn ready(&self) -> bool;
}

/// Memory reservation for incomplete messages. A drop releases it.
pub trait Room: Send + 'static {
    /// Changes the reservation to `bytes` bytes. Returns false if the budget is exhausted.
    fn resize(&mut self, bytes: usize) -> bool;
}

/// What a waiting request has exceeded: the memory budget, or the time for its body.
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

    /// The error response to a request that is given up before an endpoint is picked.
    fn exceeds(&self, excess: Excess) -> Refusal;

    /// Picks an endpoint. It is called once, with all of the body that Envoy shows before the
    /// choice.
    fn pick(
        &mut self,
        seen: BodyVisibility,
    ) -> impl Future<Output = Result<Picked, Refusal>> + Send;

    /// Processes the response header.
    fn answered(&mut self, head: &AnswerHead) -> Change;

    /// Processes bytes of the response's body; returns the bytes to send in their place.
    fn pass(&mut self, bytes: Bytes) -> Bytes;

    /// Ends the response; returns bytes that were still held back.
    fn end(&mut self) -> Bytes;
}

/// The header of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Headers without HTTP/2's pseudo-headers.
    pub headers: HeaderMap,
    /// The only eligible endpoints, as `ip:port`; `None`: all are eligible.
    pub subset: Option<Vec<String>>,
}

/// How much of a request's body was visible before the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyVisibility {
    All,
    /// The body arrives after the choice, in part, or not at all: so in Envoy's body mode.
    Part,
}

/// The chosen endpoints, and the changes to the request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Picked {
    /// One or more `ip:port`, best first. Those after the first are for Envoy's retries.
    pub endpoints: Vec<String>,
    /// The whole body to be sent to the endpoint.
    pub body: Bytes,
    /// Whether `body` differs from the body that was received.
    pub is_rewritten: bool,
    pub change: Change,
}

/// Changes to the headers of a request or response.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Change {
    pub set: Vec<(HeaderName, HeaderValue)>,
    pub remove: Vec<HeaderName>,
}

/// The header of a response.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AnswerHead {
    pub status: u16,
    pub headers: HeaderMap,
    /// The endpoint that served the request, as `ip:port`, if Envoy reports it.
    pub served: Option<String>,
}

/// A response that Envoy sends without asking an endpoint: an error, or a page of the picker's own.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    pub status: u16,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub body: Bytes,
    /// Reason that Envoy writes to its access log.
    pub reason: &'static str,
}
