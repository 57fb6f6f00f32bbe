//! The body of a stream: bytes between the engine, which renders events, and the connection, which
//! writes them.
//!
//! What is rendered while a connection is busy leaves in one write. Nothing is refused to a client
//! that does not read: an answer has at most `max_model_len` events.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame};

#[derive(Default)]
struct State {
    buffer: BytesMut,
    end: Option<End>,
    reader: Option<Waker>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Complete,
    Cut,
}

pub(crate) struct PipeWriter {
    shared: Arc<Mutex<State>>,
}

/// The body. The guard lives as long as the connection wants it.
pub(crate) struct PipeReader<G> {
    shared: Arc<Mutex<State>>,
    _guard: G,
}

pub(crate) fn pipe() -> (PipeWriter, PipeReader<()>) {
    let shared: Arc<Mutex<State>> = Arc::default();
    let writer = PipeWriter {
        shared: shared.clone(),
    };
    let reader = PipeReader { shared, _guard: () };
    (writer, reader)
}

impl PipeReader<()> {
    /// The same reader, which drops `guard` when it is dropped.
    pub(crate) fn guarded<G>(self, guard: G) -> PipeReader<G> {
        PipeReader {
            shared: self.shared,
            _guard: guard,
        }
    }
}

fn lock(shared: &Mutex<State>) -> MutexGuard<'_, State> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wake(mut state: MutexGuard<'_, State>) {
    let waker = state.reader.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl PipeWriter {
    /// Lets `render` append.
    pub(crate) fn write(&self, render: impl FnOnce(&mut BytesMut)) {
        let mut state = lock(&self.shared);
        render(&mut state.buffer);
        wake(state);
    }

    /// Ends the body as it should end.
    pub(crate) fn finish(self) {
        self.end(End::Complete);
    }

    /// Breaks the connection once what was written has left.
    pub(crate) fn cut(self) {
        self.end(End::Cut);
    }

    fn end(&self, end: End) {
        let mut state = lock(&self.shared);
        state.end.get_or_insert(end);
        wake(state);
    }
}

impl Drop for PipeWriter {
    /// Without a [`Self::finish`] the engine is gone.
    fn drop(&mut self) {
        self.end(End::Cut);
    }
}

impl<G: Unpin> Body for PipeReader<G> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let mut state = lock(&self.shared);
        if !state.buffer.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(state.buffer.split().freeze()))));
        }
        match state.end {
            Some(End::Complete) => Poll::Ready(None),
            Some(End::Cut) => Poll::Ready(Some(Err(io::ErrorKind::ConnectionAborted.into()))),
            None => {
                state.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
