//! gRPC on top of the existing HTTP/2 server: the methods of the services, and the status of calls.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, Request, Response, header};
use axum::routing::post;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::time::{Instant, timeout_at};

use crate::frames::{Frames, framed};
use crate::health;
use crate::messages::ProcessingRequest;
use crate::picker::{Excess, Picker, Room};
use crate::session::Session;
use crate::status::{Code, Status};

const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
const CHECK: &str = "/grpc.health.v1.Health/Check";

/// Bytes of messages that a request may hold once an endpoint is picked, even if the memory budget
/// is exhausted. Otherwise the bodies of other requests could break off its response.
const SPARED: usize = 128 << 10;

/// Routes of the gRPC services, for an HTTP/2 server. `limit` is the maximum size of a message in
/// bytes.
pub fn router<P: Picker>(picker: P, limit: usize) -> Router {
    Router::new()
        .route(PROCESS, post(process::<P>))
        .route(CHECK, post(check::<P>))
        .fallback(unknown)
        .with_state(Service { picker, limit })
}

#[derive(Clone)]
struct Service<P> {
    picker: P,
    limit: usize,
}

/// Serves the method `Process`. Reads a message only after Envoy has received the replies to
/// earlier ones, which provides backpressure.
async fn process<P: Picker>(
    State(shared): State<Service<P>>,
    request: Request<Body>,
) -> Response<Body> {
    let exchange = Exchange {
        body: Some(request.into_body()),
        frames: Frames::new(shared.limit),
        room: shared.picker.room(),
        patience: shared.picker.patience(),
        deadline: None,
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

/// Serves the method `grpc.health.v1.Health/Check`.
async fn check<P: Picker>(
    State(shared): State<Service<P>>,
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

/// A response that ends a call with its header (trailers-only response).
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

/// A bidirectional stream of messages, which carries one request and its response.
struct Exchange<P: Picker> {
    /// The bytes from Envoy; `None` once Envoy has closed its side.
    body: Option<Body>,
    frames: Frames,
    /// Memory reservation for the bytes in `frames`.
    room: P::Room,
    patience: Duration,
    /// When the wait for the current message, or for the request's body, is given up.
    deadline: Option<Instant>,
    session: Session<P>,
}

impl<P: Picker> Exchange<P> {
    /// The next reply to Envoy, or the status that ends the stream.
    async fn next(&mut self) -> Result<Bytes, Status> {
        loop {
            if let Some(reply) = self.session.reply() {
                return Ok(framed(&reply));
            }
            if self.session.is_over() {
                return Err(Status::ok());
            }
            if let Some(message) = self.frames.next::<ProcessingRequest>()? {
                self.room.resize(self.frames.len());
                self.session.saw(message).await?;
                if !self.session.is_waiting() {
                    self.deadline = None;
                }
                continue;
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> Result<(), Status> {
        let waits = self.session.is_waiting() || !self.frames.is_empty();
        let patience = waits.then(|| Instant::now() + self.patience);
        self.deadline = patience.map(|latest| self.deadline.unwrap_or(latest));
        let frame = match (&mut self.body, self.deadline) {
            (Some(body), Some(deadline)) => match timeout_at(deadline, body.frame()).await {
                Ok(frame) => frame,
                Err(_) => return self.exceeds(Excess::Time),
            },
            (Some(body), None) => body.frame().await,
            (None, _) => None,
        };
        match frame {
            Some(Ok(frame)) => {
                let Some(bytes) = frame.data_ref() else {
                    return Ok(());
                };
                let size = self.frames.len() + bytes.len();
                let is_spared = self.session.has_picked() && size <= SPARED;
                if !self.room.resize(size) && !is_spared {
                    return self.exceeds(Excess::Room);
                }
                self.frames.push(bytes);
                Ok(())
            }
            // a reset ends the call
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

    /// Refuses the request if it waits for its body; otherwise ends the call with an error.
    fn exceeds(&mut self, excess: Excess) -> Result<(), Status> {
        if self.session.exceeds(excess) {
            return Ok(());
        }
        Err(match excess {
            Excess::Room => {
                let text = "other calls bring as many bytes as may be held";
                Status::new(Code::ResourceExhausted, text)
            }
            Excess::Time => Status::new(Code::DeadlineExceeded, "a message did not come whole"),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::messages::{HttpBody, HttpHeaders, Part, ProtocolConfiguration};
    use crate::picker::{AnswerHead, BodyVisibility, Call, Change, Head, Picked, Refusal};

    /// A picker whose memory budget is 1,000 bytes for all calls, and which waits 50 ms for a
    /// message.
    #[derive(Clone, Default)]
    struct Small(Arc<AtomicUsize>);

    struct SmallRoom(Small, usize);

    impl Room for SmallRoom {
        fn resize(&mut self, bytes: usize) -> bool {
            let taken = &self.0.0;
            taken.fetch_sub(self.1, Ordering::Relaxed);
            let fits = taken.load(Ordering::Relaxed) + bytes <= 1000;
            self.1 = if fits { bytes } else { 0 };
            taken.fetch_add(self.1, Ordering::Relaxed);
            fits
        }
    }

    impl Drop for SmallRoom {
        fn drop(&mut self) {
            self.resize(0);
        }
    }

    struct SmallCall;

    fn refusal(status: u16) -> Refusal {
        Refusal {
            status,
            headers: Vec::new(),
            body: Bytes::new(),
            reason: "excess",
        }
    }

    impl Picker for Small {
        type Call = SmallCall;
        type Room = SmallRoom;

        fn room(&self) -> SmallRoom {
            SmallRoom(self.clone(), 0)
        }

        fn patience(&self) -> Duration {
            Duration::from_millis(50)
        }

        fn begin(&self, _: Head) -> Result<SmallCall, Refusal> {
            Ok(SmallCall)
        }

        fn ready(&self) -> bool {
            true
        }
    }

    impl Call for SmallCall {
        fn take(&mut self, _: Bytes) -> Result<(), Refusal> {
            Ok(())
        }

        fn exceeds(&self, excess: Excess) -> Refusal {
            refusal(if excess == Excess::Room { 503 } else { 408 })
        }

        async fn pick(&mut self, seen: BodyVisibility) -> Result<Picked, Refusal> {
            match seen {
                BodyVisibility::All => Err(refusal(404)),
                BodyVisibility::Part => Ok(Picked {
                    endpoints: vec!["a:1".to_owned()],
                    is_rewritten: false,
                    body: Bytes::new(),
                    change: Change::default(),
                }),
            }
        }

        fn answered(&mut self, _: &AnswerHead) -> Change {
            Change::default()
        }

        fn pass(&mut self, bytes: Bytes) -> Bytes {
            bytes
        }

        fn end(&mut self) -> Bytes {
            Bytes::new()
        }
    }

    /// A call in which Envoy sends `sent` and then nothing more.
    fn exchange(picker: &Small, sent: Vec<u8>) -> Exchange<Small> {
        let first = stream::iter([Ok::<_, Infallible>(Bytes::from(sent))]);
        let endless = futures_util::StreamExt::chain(first, stream::pending());
        Exchange {
            body: Some(Body::from_stream(endless)),
            frames: Frames::new(10_000),
            room: picker.room(),
            patience: picker.patience(),
            deadline: None,
            session: Session::new(picker.clone()),
        }
    }

    fn header() -> Vec<u8> {
        header_of_mode(2)
    }

    fn header_of_mode(request_body_mode: i32) -> Vec<u8> {
        let request = ProcessingRequest {
            request: Some(Part::RequestHeaders(HttpHeaders::default())),
            protocol_config: Some(ProtocolConfiguration {
                request_body_mode,
                ..ProtocolConfiguration::default()
            }),
            ..ProcessingRequest::default()
        };
        framed(&request).to_vec()
    }

    /// The first bytes of a body of 800 bytes.
    fn part_of_body() -> Vec<u8> {
        let body = HttpBody {
            body: vec![b'x'; 800].into(),
            end_of_stream: true,
        };
        let request = ProcessingRequest {
            request: Some(Part::RequestBody(body)),
            ..ProcessingRequest::default()
        };
        framed(&request)[..700].to_vec()
    }

    /// The code with which a call ends, and the status with which the client was refused before, if
    /// any.
    async fn ended(mut exchange: Exchange<Small>) -> (Code, Option<u16>) {
        let mut refused = None;
        loop {
            match exchange.next().await {
                Ok(reply) if reply.windows(6).any(|word| word == b"excess") => {
                    let codes = [408u16, 503];
                    let has = |code: &&u16| {
                        let [low, high] = [**code as u8 & 0x7f | 0x80, (**code >> 7) as u8];
                        reply.windows(2).any(|pair| pair == [low, high])
                    };
                    refused = codes.iter().find(has).copied();
                }
                Ok(_) => {}
                Err(status) => return (status.code, refused),
            }
        }
    }

    #[tokio::test]
    async fn messages_that_do_not_come_whole_share_a_room() {
        let picker = Small::default();
        let mut first = exchange(&picker, [header(), part_of_body()].concat());
        let waiting = tokio::time::timeout(Duration::from_millis(20), async {
            while first.next().await.is_ok() {}
        });
        assert!(waiting.await.is_err(), "it waits for the rest");
        let held = picker.0.load(Ordering::Relaxed);
        assert!((700..1000).contains(&held), "{held}");
        // no memory for a second body: an incomplete message ends its call, and a waiting request
        // is refused
        let second = exchange(&picker, part_of_body());
        assert_eq!(ended(second).await, (Code::ResourceExhausted, None));
        let third = exchange(&picker, header());
        assert_eq!(picker.0.load(Ordering::Relaxed), held);
        drop(first);
        assert_eq!(picker.0.load(Ordering::Relaxed), 0);
        assert_eq!(ended(third).await, (Code::Ok, Some(408)));
    }

    /// Each piece ends one message and begins the next: the time limit counts for each message
    /// anew.
    #[tokio::test(start_paused = true)]
    async fn messages_that_come_in_time_have_no_end() {
        let body = HttpBody {
            body: vec![b'x'; 100].into(),
            end_of_stream: false,
        };
        let request = ProcessingRequest {
            request: Some(Part::RequestBody(body)),
            ..ProcessingRequest::default()
        };
        let message = framed(&request).to_vec();
        let (start, end) = message.split_at(50);
        let mut pieces = vec![[&header_of_mode(0), start].concat()];
        pieces.extend(vec![[end, start].concat(); 9]);
        pieces.push(end.to_vec());
        let picker = Small::default();
        let mut slow = exchange(&picker, Vec::new());
        slow.body = Some(Body::from_stream(futures_util::StreamExt::then(
            stream::iter(pieces),
            async |piece| {
                tokio::time::sleep(Duration::from_millis(30)).await;
                Ok::<_, Infallible>(Bytes::from(piece))
            },
        )));
        let mut replies = 0;
        let code = loop {
            match slow.next().await {
                Ok(_) => replies += 1,
                Err(status) => break status.code,
            }
        };
        assert_eq!((code, replies), (Code::Ok, 11));
    }

    #[tokio::test]
    async fn what_does_not_come_is_not_waited_for() {
        let picker = Small::default();
        let late = exchange(&picker, part_of_body());
        assert_eq!(ended(late).await, (Code::DeadlineExceeded, None));
        let late = exchange(&picker, [header(), part_of_body()].concat());
        assert_eq!(ended(late).await, (Code::Ok, Some(408)));
        assert_eq!(picker.0.load(Ordering::Relaxed), 0);
    }
}
