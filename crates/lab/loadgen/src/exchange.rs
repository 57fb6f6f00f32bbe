//! One request on one connection, from the choice of the connection to the end of the response.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Context;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http1;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, sleep_until, timeout};

use crate::answer::{Answer, excerpt, single_document};
use crate::connect::Connect;
use crate::failure::{Failure, FailureKind};
use crate::pool::{Link, Pool};
use crate::progress::Progress;
use crate::record::Record;
use crate::stamps::Stamps;
use crate::target::Target;

/// Maximum number of bytes per read of a connection; it bounds the delay of other connections.
const READ_LIMIT: usize = 64 << 10;
/// Maximum number of body chunks parsed before other tasks run.
const TURN: u32 = 32;
/// Time-out for the end of the body after `[DONE]`. Afterwards the connection is closed.
const AFTER_DONE: Duration = Duration::from_secs(1);
/// Maximum number of bytes read of a response that is not an event stream.
const DOCUMENT_LIMIT: usize = 64 << 10;

/// State shared by all requests of a load.
pub(crate) struct Client<C: Connect> {
    pub(crate) target: Target,
    pub(crate) connect: C,
    pub(crate) pool: Pool<C>,
    pub(crate) start: Instant,
    pub(crate) progress: Arc<Progress>,
}

/// Reason why there is no response.
enum Trouble {
    /// The connection ended before any byte of a response. On a reused connection this is not a
    /// fault of the server, because a server may close idle connections at any time.
    Ended(Failure),
    Failed(Failure),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl<C: Connect> Client<C> {
    /// Time in seconds since the start of the load.
    pub(crate) fn seconds(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.start).as_secs_f64()
    }

    /// Sends a request and fills in its record. `record.ended` is set once the outcome is known.
    pub(crate) async fn exchange(&self, record: &mut Record, body: Bytes) {
        if let Err(failure) = self.attempt(record, body).await {
            record.fail(failure);
            record.ended = self.seconds(Instant::now());
        }
    }

    async fn attempt(&self, record: &mut Record, body: Bytes) -> Result<(), Failure> {
        if let Some(link) = self.pool.take() {
            match self.converse(link, record, body.clone()).await {
                Err(Trouble::Ended(_)) => record.send_again(),
                Err(Trouble::Failed(failure)) => return Err(failure),
                Ok(()) => return Ok(()),
            }
        }
        let link = self.open().await?;
        match self.converse(link, record, body).await {
            Err(Trouble::Ended(failure) | Trouble::Failed(failure)) => Err(failure),
            Ok(()) => Ok(()),
        }
    }

    async fn open(&self) -> Result<Link<C::Stream>, Failure> {
        let stamps = std::rc::Rc::new(Stamps::new());
        let limit = self.target.connect_timeout;
        let stream = timeout(limit, self.connect.connect(stamps.clone()))
            .await
            .map_err(|_| Failure::connect_timeout(limit))?
            .map_err(|e| Failure::connect(&e))?;
        Ok(Link {
            stream,
            stamps,
            since: self.seconds(Instant::now()),
        })
    }

    async fn converse(
        &self,
        link: Link<C::Stream>,
        record: &mut Record,
        body: Bytes,
    ) -> Result<(), Trouble> {
        let Link {
            stream,
            stamps,
            since,
        } = link;
        record.connected = since;
        stamps.begin();
        let mut line = Line::new(stream).await?;
        let open_body = tokio::select! {
            biased;
            ended = self.talk(&mut line, &stamps, record, body) => ended?,
            failure = silence(&stamps, self.target.idle_timeout) => return Err(failure.into()),
        };
        if let Some(stream) = line.into_idle(open_body).await {
            self.pool.put(Link {
                stream,
                stamps,
                since,
            });
        }
        Ok(())
    }

    /// Sends the request and reads the response until its outcome is known. Returns the body, whose
    /// rest is unread.
    async fn talk(
        &self,
        line: &mut Line<C::Stream>,
        stamps: &Stamps,
        record: &mut Record,
        body: Bytes,
    ) -> Result<Incoming, Trouble> {
        let request = self.request(body);
        let sent = || stamps.written().map(|at| self.seconds(at));
        let answered = line.ask(request, || self.note_sent(record, sent())).await;
        let answer = answered.map_err(|error| {
            let failure = match stamps.written() {
                Some(_) => Failure::http(&error, "before the answer"),
                None => Failure::new(
                    FailureKind::Connect,
                    format!("closed before the request was sent: {error}"),
                ),
            };
            match stamps.answered() {
                true => Trouble::Failed(failure),
                false => Trouble::Ended(failure),
            }
        })?;
        record.status = answer.status().as_u16();
        if is_event_stream(&answer) {
            Ok(self
                .stream(line, stamps, record, answer.into_body())
                .await?)
        } else {
            Ok(self.document(line, record, answer).await?)
        }
    }

    fn note_sent(&self, record: &mut Record, sent: Option<f64>) {
        if let (true, Some(sent)) = (record.sent.is_nan(), sent) {
            record.sent = sent;
            self.progress
                .sent
                .fetch_add(u64::from(!record.resent), Relaxed);
        }
    }

    fn request(&self, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.target.path.clone();
        *request.headers_mut() = self.target.headers.clone();
        request
    }

    async fn stream(
        &self,
        line: &mut Line<C::Stream>,
        stamps: &Stamps,
        record: &mut Record,
        mut body: Incoming,
    ) -> Result<Incoming, Failure> {
        let mut answer = Answer::new(record, self.start, self.target.keep_text);
        let mut taken = 0;
        while !answer.done() {
            let Some(frame) = line.frame(&mut body).await else {
                break;
            };
            let frame = frame.map_err(|e| Failure::http(&e, "in the middle of the stream"))?;
            if let Some(data) = frame.data_ref() {
                let events = answer.take(data, stamps.received())?;
                self.progress.note(events, data.len());
            }
            taken += 1;
            if taken % TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
        let ended = if answer.done() {
            stamps.received()
        } else {
            Instant::now()
        };
        answer.judge();
        record.ended = self.seconds(ended);
        Ok(body)
    }

    /// Reads a response that is not a stream, and records it as a failure.
    async fn document(
        &self,
        line: &mut Line<C::Stream>,
        record: &mut Record,
        answer: Response<Incoming>,
    ) -> Result<Incoming, Failure> {
        let status = answer.status();
        let mut body = answer.into_body();
        let mut bytes = Vec::new();
        while bytes.len() < DOCUMENT_LIMIT {
            match line.frame(&mut body).await {
                Some(Ok(frame)) => {
                    bytes.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new()))
                }
                Some(Err(_)) | None => break,
            }
        }
        self.progress.note(0, bytes.len());
        record.fail(match status {
            StatusCode::OK => single_document(&bytes),
            _ => Failure::new(
                FailureKind::HttpStatus,
                format!("{status}: {}", excerpt(&bytes)),
            ),
        });
        record.ended = self.seconds(Instant::now());
        Ok(body)
    }
}

/// Whether the response is an event stream. Without a content type it counts as one.
fn is_event_stream(answer: &Response<Incoming>) -> bool {
    let kind = answer.headers().get(CONTENT_TYPE);
    let kind = kind.map_or(b"".as_slice(), |value| value.as_bytes());
    answer.status() == StatusCode::OK && !kind.starts_with(b"application/json")
}

/// Returns after no bytes have been transferred for `limit`, in either direction; never returns
/// without a limit.
async fn silence(stamps: &Stamps, limit: Option<Duration>) -> Failure {
    let Some(limit) = limit else {
        return std::future::pending().await;
    };
    loop {
        let due = stamps.active() + limit;
        if due <= Instant::now() {
            return Failure::silence(limit);
        }
        sleep_until(due).await;
    }
}

/// A connection with a request in flight. It is polled only in the methods below, so that the
/// socket is read only when earlier data has been processed: a stamp is never later than its bytes.
struct Line<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static> {
    sender: http1::SendRequest<Full<Bytes>>,
    connection: http1::Connection<TokioIo<S>, Full<Bytes>>,
    closed: bool,
}

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static> Line<S> {
    async fn new(stream: S) -> Result<Self, Failure> {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(READ_LIMIT);
        let (sender, connection) = builder
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|e| Failure::http(&e, "before the request"))?;
        Ok(Self {
            sender,
            connection,
            closed: false,
        })
    }

    fn advance(&mut self, cx: &mut Context<'_>) {
        if !self.closed {
            // Errors are reported by the response or by its body.
            self.closed = self.connection.poll_without_shutdown(cx).is_ready();
        }
    }

    async fn ask(
        &mut self,
        request: Request<Full<Bytes>>,
        mut advanced: impl FnMut(),
    ) -> hyper::Result<Response<Incoming>> {
        let mut answer = pin!(self.sender.send_request(request));
        poll_fn(|cx| {
            self.advance(cx);
            advanced();
            answer.as_mut().poll(cx)
        })
        .await
    }

    async fn frame(&mut self, body: &mut Incoming) -> Option<hyper::Result<Frame<Bytes>>> {
        poll_fn(|cx| {
            self.advance(cx);
            Pin::new(&mut *body).poll_frame(cx)
        })
        .await
    }

    /// Returns the stream for reuse, if the response ends soon and the server keeps the connection
    /// open.
    async fn into_idle(mut self, mut body: Incoming) -> Option<S> {
        let rest = async { while let Some(Ok(_)) = self.frame(&mut body).await {} };
        timeout(AFTER_DONE, rest).await.ok()?;
        poll_fn(|cx| {
            self.advance(cx);
            std::task::Poll::Ready(())
        })
        .await;
        if self.closed || !self.sender.is_ready() {
            return None;
        }
        let parts = self.connection.into_parts();
        parts.read_buf.is_empty().then(|| parts.io.into_inner())
    }
}
