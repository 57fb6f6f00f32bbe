//! One exchange: from the arrival of a request to the end of its response.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::MatchedPath;
use axum::http::{Method, Request};
use axum::response::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use crate::Peer;

/// Properties of a request, known on arrival.
#[derive(Debug, Clone)]
pub struct Exchange {
    /// The route, not the path, to bound the number of label values. `none` if no route matched.
    pub handler: String,
    /// A standard HTTP method, or `OTHER`.
    pub method: &'static str,
    pub arrived: Instant,
    /// `None` for a Unix socket.
    pub peer: Option<SocketAddr>,
}

/// Result of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExchangeEnd {
    pub status: u16,
    pub duration: Duration,
    /// Bytes of the response body.
    pub bytes: u64,
    /// False if the client disconnected early or the response failed.
    pub complete: bool,
}

impl Exchange {
    /// Begins an exchange. Call it inside the router, after the route was matched.
    pub fn begin(request: &Request<Body>) -> Self {
        let matched = request.extensions().get::<MatchedPath>();
        Self {
            handler: matched.map_or("none", MatchedPath::as_str).to_owned(),
            method: method(request.method()),
            arrived: Instant::now(),
            peer: request.extensions().get::<Peer>().and_then(|peer| peer.0),
        }
    }

    /// Wraps `response` to call `end` when its body was fully written or dropped.
    pub fn observe(
        &self,
        response: Response,
        end: impl FnOnce(ExchangeEnd) + Send + 'static,
    ) -> Response {
        let status = response.status().as_u16();
        let arrived = self.arrived;
        response.map(|body| {
            let complete = body.is_end_stream();
            Body::new(ObservedBody {
                body,
                status,
                arrived,
                bytes: 0,
                complete,
                end: Some(Box::new(end)),
            })
        })
    }
}

fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        _ => "OTHER",
    }
}

struct ObservedBody {
    body: Body,
    status: u16,
    arrived: Instant,
    bytes: u64,
    complete: bool,
    end: Option<Box<dyn FnOnce(ExchangeEnd) + Send>>,
}

impl Drop for ObservedBody {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end(ExchangeEnd {
                status: self.status,
                duration: self.arrived.elapsed(),
                bytes: self.bytes,
                complete: self.complete || self.body.is_end_stream(),
            });
        }
    }
}

impl HttpBody for ObservedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                self.bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
            }
            Poll::Ready(None) => self.complete = true,
            _ => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use http_body_util::BodyExt;

    use super::*;

    fn exchange() -> Exchange {
        Exchange::begin(&Request::new(Body::empty()))
    }

    #[tokio::test]
    async fn a_whole_answer_is_complete_and_its_bytes_are_counted() {
        let (sender, ends) = channel();
        let response = Response::new(Body::from("12345"));
        let send = move |end| sender.send(end).unwrap();
        let response = exchange().observe(response, send);
        assert!(ends.try_recv().is_err(), "not before the body is gone");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(&body[..], b"12345");
        let end = ends.try_recv().unwrap();
        assert_eq!((end.status, end.bytes, end.complete), (200, 5, true));
        assert!(ends.try_recv().is_err(), "once");
    }

    #[tokio::test]
    async fn an_answer_that_is_given_up_is_not_complete() {
        let (sender, ends) = channel();
        let (writer, reader) = crate::pipe(100);
        let response = Response::new(Body::new(reader));
        drop(exchange().observe(response, move |end| sender.send(end).unwrap()));
        assert!(!ends.try_recv().unwrap().complete);
        drop(writer);
    }

    #[test]
    fn unknown_methods_share_a_name() {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = Method::from_bytes(b"BREW").unwrap();
        let begun = Exchange::begin(&request);
        assert_eq!((begun.method, begun.handler.as_str()), ("OTHER", "none"));
    }
}
