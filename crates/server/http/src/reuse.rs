//! Tracks the reuse of client connections. A server may close an idle connection just as the next
//! request is written to it; this race does not mean that the server failed.

use std::io::{IoSlice, Result as IoResult};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};

use axum::http::{Extensions, Uri};
use hyper::rt::{Read, Write};
use hyper_util::client::legacy::Error;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tower_service::Service;

/// Use of a connection, attached as an extra of [`Connected`].
#[derive(Debug, Clone, Default)]
struct ConnectionUse(Arc<UseCounts>);

#[derive(Debug, Default)]
struct UseCounts {
    /// Requests begun on the connection.
    requests: AtomicU32,
    /// Bytes were read since the last request began.
    heard: AtomicBool,
}

impl ConnectionUse {
    /// Records a write: the first bytes written after a read begin a new request.
    fn wrote(&self) {
        let first = self.0.requests.load(Ordering::Relaxed) == 0;
        if self.0.heard.swap(false, Ordering::Relaxed) || first {
            self.0.requests.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn read(&self) {
        self.0.heard.store(true, Ordering::Relaxed);
    }
}

/// Whether a request failed on a reused connection before the first byte of a response.
pub(crate) fn is_stale(error: &Error) -> bool {
    let mut extras = Extensions::new();
    if let Some(connected) = error.connect_info() {
        connected.get_extras(&mut extras);
    }
    let used: Option<&ConnectionUse> = extras.get();
    used.is_some_and(|ConnectionUse(counts)| {
        counts.requests.load(Ordering::Relaxed) > 1 && !counts.heard.load(Ordering::Relaxed)
    })
}

/// Connector `C` with tracking of its connections.
#[derive(Debug, Clone)]
pub(crate) struct TrackedConnector<C>(pub(crate) C);

/// A tracked connection.
pub(crate) struct TrackedStream<S> {
    stream: TokioIo<S>,
    used: ConnectionUse,
}

impl<C> Service<Uri> for TrackedConnector<C>
where
    C: Service<Uri>,
    C::Future: Send + 'static,
{
    type Response = TokioIo<TrackedStream<C::Response>>;
    type Error = C::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, C::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.0.call(uri);
        Box::pin(async move {
            Ok(TokioIo::new(TrackedStream {
                stream: TokioIo::new(connecting.await?),
                used: ConnectionUse::default(),
            }))
        })
    }
}

impl<S: Connection> Connection for TrackedStream<S> {
    fn connected(&self) -> Connected {
        self.stream.connected().extra(self.used.clone())
    }
}

impl<S: Read + Unpin> AsyncRead for TrackedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<IoResult<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.used.read();
        }
        polled
    }
}

impl<S: Write + Unpin> AsyncWrite for TrackedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<IoResult<usize>> {
        self.used.wrote();
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<IoResult<usize>> {
        self.used.wrote();
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
