//! gRPC over the HTTP/2 server that is there: the methods, and how a stream of messages ends.

use std::convert::Infallible;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, Request, Response, header};
use axum::routing::post;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;

use crate::frames::{Frames, framed};
use crate::health;
use crate::messages::ProcessingRequest;
use crate::picker::Picker;
use crate::session::Session;
use crate::status::{Code, Status};

const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
const CHECK: &str = "/grpc.health.v1.Health/Check";
/// The services, for a server of HTTP/2. `limit`: bytes that one message may have.
pub fn router<P: Picker>(picker: P, limit: usize) -> Router {
    Router::new()
        .route(PROCESS, post(process::<P>))
        .route(CHECK, post(check::<P>))
        .fallback(unknown)
        .with_state(Shared { picker, limit })
}

#[derive(Clone)]
struct Shared<P> {
    picker: P,
    limit: usize,
}

/// `Process`: messages are read as replies are taken, so a data plane that does not read is not
/// read from.
async fn process<P: Picker>(
    State(shared): State<Shared<P>>,
    request: Request<Body>,
) -> Response<Body> {
    let exchange = Exchange {
        body: Some(request.into_body()),
        frames: Frames::new(shared.limit),
        session: Session::new(shared.picker),
    };
    let frames = stream::unfold(Some(exchange), |exchange| async {
        let mut exchange = exchange?;
        Some(match exchange.next().await {
            Ok(message) => (Ok::<_, Infallible>(Frame::data(message)), Some(exchange)),
            Err(status) => (Ok(Frame::trailers(status.headers())), None),
        })
    });
    answer(Body::new(StreamBody::new(frames)))
}

/// `grpc.health.v1.Health/Check`
async fn check<P: Picker>(
    State(shared): State<Shared<P>>,
    request: Request<Body>,
) -> Response<Body> {
    let collected = http_body_util::Limited::new(request.into_body(), health::LIMIT)
        .collect()
        .await;
    let asked = collected.map(|body| body.to_bytes()).unwrap_or_default();
    match health::check(&asked, shared.picker.ready()) {
        Ok(message) => {
            let frames: [Result<_, Infallible>; 2] = [
                Ok(Frame::data(message)),
                Ok(Frame::trailers(Status::ok().headers())),
            ];
            answer(Body::new(StreamBody::new(stream::iter(frames))))
        }
        Err(status) => ended(&status),
    }
}

async fn unknown(request: Request<Body>) -> Response<Body> {
    let text = format!("no method {}", request.uri().path());
    ended(&Status::new(Code::Unimplemented, text))
}

/// A call that ends with its header.
fn ended(status: &Status) -> Response<Body> {
    let mut response = answer(Body::empty());
    response.headers_mut().extend(status.headers());
    response
}

fn answer(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// A stream of messages both ways.
struct Exchange<P: Picker> {
    /// Until Envoy has closed its side.
    body: Option<Body>,
    frames: Frames,
    session: Session<P>,
}

impl<P: Picker> Exchange<P> {
    /// The next reply, or how the stream ends.
    async fn next(&mut self) -> Result<Bytes, Status> {
        loop {
            if let Some(reply) = self.session.reply() {
                return Ok(framed(&reply));
            }
            if self.session.is_over() {
                return Err(Status::ok());
            }
            if let Some(message) = self.frames.next::<ProcessingRequest>()? {
                self.session.saw(message).await?;
                continue;
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> Result<(), Status> {
        let frame = match &mut self.body {
            Some(body) => body.frame().await,
            None => None,
        };
        match frame {
            Some(Ok(frame)) => {
                if let Some(bytes) = frame.data_ref() {
                    self.frames.push(bytes);
                }
                Ok(())
            }
            // a reset: the call ends where it is
            Some(Err(_)) => Err(Status::ok()),
            None => {
                self.session.closed();
                Err(match self.frames.is_empty() {
                    true => Status::ok(),
                    false => Status::new(Code::InvalidArgument, "the stream ends in a message"),
                })
            }
        }
    }
}
