//! The body of a stream: a byte buffer between the task that renders chunks and the connection that
//! writes them.
//!
//! Chunks rendered while the connection is busy leave in one write. A client that does not read
//! fills the buffer to its cap; then the writer is told and the request is given up, so memory
//! stays bounded.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame};

/// Why nothing more can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The connection has ended.
    Gone,
    /// The client has left more than the cap unread.
    Slow,
}

#[derive(Default)]
struct State {
    buffer: BytesMut,
    ended: bool,
    reader_gone: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

type Shared = Arc<Mutex<State>>;

pub(crate) struct PipeWriter {
    shared: Shared,
    cap: usize,
}

pub(crate) struct PipeReader {
    shared: Shared,
}

/// A pipe that holds about `cap` bytes: one write may go beyond it.
pub(crate) fn pipe(cap: usize) -> (PipeWriter, PipeReader) {
    let shared = Shared::default();
    (
        PipeWriter {
            shared: shared.clone(),
            cap,
        },
        PipeReader { shared },
    )
}

fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PipeWriter {
    /// Lets `render` append to the buffer.
    pub(crate) fn write(&mut self, render: impl FnOnce(&mut BytesMut)) -> Result<(), Broken> {
        let mut state = lock(&self.shared);
        if state.reader_gone {
            return Err(Broken::Gone);
        }
        if state.buffer.len() >= self.cap {
            return Err(Broken::Slow);
        }
        render(&mut state.buffer);
        wake_reader(state);
        Ok(())
    }

    /// Writes the last words and ends the stream, whatever the client has left unread.
    pub(crate) fn finish(self, render: impl FnOnce(&mut BytesMut)) {
        render(&mut lock(&self.shared).buffer);
    }

    /// Ready when the connection has ended.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.shared);
        if state.reader_gone {
            return Poll::Ready(());
        }
        if !state
            .writer
            .as_ref()
            .is_some_and(|w| w.will_wake(cx.waker()))
        {
            state.writer = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

fn wake_reader(mut state: MutexGuard<'_, State>) {
    let waker = state.reader.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Drop for PipeWriter {
    fn drop(&mut self) {
        let mut state = lock(&self.shared);
        state.ended = true;
        wake_reader(state);
    }
}

impl Drop for PipeReader {
    fn drop(&mut self) {
        let mut state = lock(&self.shared);
        state.reader_gone = true;
        state.buffer = BytesMut::new();
        let waker = state.writer.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Body for PipeReader {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let mut state = lock(&self.shared);
        if !state.buffer.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(state.buffer.split().freeze()))));
        }
        if state.ended {
            return Poll::Ready(None);
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn writes_between_polls_leave_together() {
        let (mut writer, mut reader) = pipe(100);
        writer.write(|out| out.extend_from_slice(b"ab")).unwrap();
        writer.write(|out| out.extend_from_slice(b"cd")).unwrap();
        let frame = reader.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), "abcd");
        writer.finish(|out| out.extend_from_slice(b"end"));
        assert_eq!(reader.collect().await.unwrap().to_bytes(), "end");
    }

    #[tokio::test]
    async fn an_unread_pipe_refuses_at_its_cap() {
        let (mut writer, reader) = pipe(10);
        writer
            .write(|out| out.extend_from_slice(&[b'x'; 12]))
            .unwrap();
        assert_eq!(writer.write(|_| {}), Err(Broken::Slow));
        writer.finish(|out| out.extend_from_slice(b"!"));
        assert_eq!(reader.collect().await.unwrap().to_bytes().len(), 13);
    }

    #[tokio::test]
    async fn the_writer_hears_that_the_reader_left() {
        let (mut writer, reader) = pipe(10);
        let gone = tokio::spawn(async move {
            std::future::poll_fn(|cx| writer.poll_gone(cx)).await;
            writer.write(|_| {})
        });
        tokio::task::yield_now().await;
        drop(reader);
        assert_eq!(gone.await.unwrap(), Err(Broken::Gone));
    }
}
