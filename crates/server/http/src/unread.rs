//! Request bodies that an endpoint drops before their end: drained ahead of the response, so that
//! the connection stays usable, or the response announces that it closes.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderValue, StatusCode, Version, header};
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::{Request, Response};
use tokio::sync::oneshot;

/// Bounds on draining a body: total time, bytes, and the longest pause. Closing a connection with
/// unread input resets it, and the client would lose the response.
const TIME: Duration = Duration::from_secs(10);
const BYTES: usize = 64 << 20;
const PAUSE: Duration = Duration::from_millis(200);

/// A body that returns to its [`Remainder`] if it is dropped before its end.
pub(crate) struct ReturnedBody {
    body: Option<Incoming>,
    polled: bool,
    back: Option<oneshot::Sender<Unread>>,
}

struct Unread {
    body: Incoming,
    polled: bool,
}

/// The unread rest of a request's body.
pub(crate) struct Remainder {
    /// The client sends the body after `100 Continue`, which the first poll triggers.
    waits: bool,
    http1: bool,
    back: oneshot::Receiver<Unread>,
}

/// Wraps the body of `request`. If the body is dropped early, the [`Remainder`] gets it back.
pub(crate) fn returning(request: Request<Incoming>) -> (Request<ReturnedBody>, Remainder) {
    let (back, unread) = oneshot::channel();
    let remainder = Remainder {
        waits: request.headers().contains_key(header::EXPECT),
        http1: request.version() <= Version::HTTP_11,
        back: unread,
    };
    let request = request.map(|body| ReturnedBody {
        body: Some(body),
        polled: false,
        back: Some(back),
    });
    (request, remainder)
}

impl Remainder {
    /// Drains a body that the endpoint has dropped. The response closes the connection if the body
    /// exceeds the bounds, if its time is up, or if the client still waits for `100 Continue`.
    pub(crate) async fn settle<T>(mut self, response: &mut Response<T>) {
        let Ok(Unread { mut body, polled }) = self.back.try_recv() else {
            return;
        };
        let waits = self.waits && !polled;
        let late = response.status() == StatusCode::REQUEST_TIMEOUT;
        let ended = !waits && !late && drain(&mut body).await;
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
        let unread = self.body.take().filter(|body| !body.is_end_stream());
        if let (Some(body), Some(back)) = (unread, self.back.take()) {
            let _ = back.send(Unread { body, polled });
        }
    }
}
