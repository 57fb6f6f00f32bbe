//! Request bodies that an endpoint drops before their end: drained ahead of the response, so that
//! the connection stays usable, or the response announces that it closes.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderValue, Version, header};
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::{Request, Response};

/// Bounds on draining a body: total time, bytes, and the longest pause. Closing a connection with
/// unread input resets it, and the client would lose the response.
const TIME: Duration = Duration::from_secs(10);
const BYTES: usize = 64 << 20;
const PAUSE: Duration = Duration::from_millis(200);

/// A body that returns to its [`Remainder`] if it is dropped before its end.
pub(crate) struct ReturnedBody {
    body: Option<Incoming>,
    polled: bool,
    back: Arc<Mutex<Option<Unread>>>,
}

struct Unread {
    body: Incoming,
    polled: bool,
}

/// What an endpoint has left of a request's body.
pub(crate) struct Remainder {
    /// The client sends the body after a `100 Continue`, which the first poll causes.
    waits: bool,
    http1: bool,
    back: Arc<Mutex<Option<Unread>>>,
}

/// Replaces the body of `request` by one that returns.
pub(crate) fn returning(request: Request<Incoming>) -> (Request<ReturnedBody>, Remainder) {
    let back = Arc::new(Mutex::new(None));
    let remainder = Remainder {
        waits: request.headers().contains_key(header::EXPECT),
        http1: request.version() <= Version::HTTP_11,
        back: back.clone(),
    };
    let request = request.map(|body| ReturnedBody {
        body: Some(body),
        polled: false,
        back,
    });
    (request, remainder)
}

impl Remainder {
    /// Drains what the endpoint has dropped. If its end does not come within the bounds, or the
    /// client has not begun to send it, the response announces the end of the connection.
    pub(crate) async fn settle<T>(self, response: &mut Response<T>) {
        let unread = self
            .back
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(Unread { mut body, polled }) = unread else {
            return;
        };
        let asked_for = polled || !self.waits;
        let ended = asked_for && drain(&mut body).await;
        if !ended && self.http1 {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
    }
}

/// Returns whether the end of the body came within the bounds.
async fn drain(body: &mut Incoming) -> bool {
    let all = async {
        let mut drained = 0;
        while drained <= BYTES {
            match tokio::time::timeout(PAUSE, body.frame()).await {
                Ok(Some(Ok(frame))) => drained += frame.data_ref().map_or(0, Bytes::len),
                Ok(None) => return true,
                Ok(Some(Err(_))) | Err(_) => return false,
            }
        }
        false
    };
    tokio::time::timeout(TIME, all).await.unwrap_or(false)
}

impl HttpBody for ReturnedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.polled = true;
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = std::task::ready!(Pin::new(body).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let ended = || SizeHint::with_exact(0);
        self.body.as_ref().map_or_else(ended, HttpBody::size_hint)
    }
}

impl Drop for ReturnedBody {
    fn drop(&mut self) {
        let polled = self.polled;
        if let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) {
            let mut back = self.back.lock().unwrap_or_else(PoisonError::into_inner);
            *back = Some(Unread { body, polled });
        }
    }
}
