//! Timestamps (stamps) of the bytes that a connection receives and sends.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// Timestamps of one connection. Its stream sets them, the request on it reads them.
#[derive(Debug)]
pub struct Stamps {
    received: Cell<Instant>,
    answered: Cell<bool>,
    written: Cell<Option<Instant>>,
    active: Cell<Instant>,
}

impl Stamps {
    #[expect(clippy::new_without_default, reason = "it reads the clock")]
    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            received: Cell::new(now),
            answered: Cell::new(false),
            written: Cell::new(None),
            active: Cell::new(now),
        }
    }

    /// Resets the timestamps at the start of a request.
    pub(crate) fn begin(&self) {
        self.answered.set(false);
        self.written.set(None);
        self.active.set(Instant::now());
    }

    /// Time of the first write to the socket since `begin`.
    pub(crate) fn written(&self) -> Option<Instant> {
        self.written.get()
    }

    /// Whether bytes were received since `begin`.
    pub(crate) fn answered(&self) -> bool {
        self.answered.get()
    }

    /// Time at which bytes were last received.
    pub(crate) fn received(&self) -> Instant {
        self.received.get()
    }

    /// Time at which bytes were last received or sent.
    pub(crate) fn active(&self) -> Instant {
        self.active.get()
    }

    fn wrote(&self) {
        let now = Instant::now();
        self.active.set(now);
        if self.written.get().is_none() {
            self.written.set(Some(now));
        }
    }

    fn read(&self) {
        let now = Instant::now();
        self.received.set(now);
        self.answered.set(true);
        self.active.set(now);
    }
}

/// A raw stream whose reads and writes set timestamps.
#[derive(Debug)]
pub struct Stamped<S> {
    stream: S,
    stamps: std::rc::Rc<Stamps>,
}

impl<S> Stamped<S> {
    pub fn new(stream: S, stamps: std::rc::Rc<Stamps>) -> Self {
        Self { stream, stamps }
    }

    /// The raw stream, for use that sets no timestamps.
    pub fn stream(&mut self) -> &mut S {
        &mut self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stamped<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.stamps.read();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stamped<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if matches!(polled, Poll::Ready(Ok(1..))) {
            self.stamps.wrote();
        }
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        if matches!(polled, Poll::Ready(Ok(1..))) {
            self.stamps.wrote();
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
