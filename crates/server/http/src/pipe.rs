//! The body of a stream: a byte buffer between the task that renders events and the connection that
//! writes them.
//!
//! Events rendered while the connection is busy are coalesced into one write. Memory is bounded: if
//! a client does not read, the buffer fills to its cap and then writes fail.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame};

/// Reason that a write failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteError {
    /// The connection has ended.
    Gone,
    /// The unread bytes exceed the cap.
    Slow,
}

#[derive(Debug, Default)]
struct PipeState {
    buffer: BytesMut,
    ended: bool,
    reader_gone: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

type SharedPipe = Arc<Mutex<PipeState>>;

/// The writing end. Dropping it ends the body.
#[derive(Debug)]
pub struct PipeWriter {
    shared: SharedPipe,
    cap: usize,
}

/// The reading end: the response body.
#[derive(Debug)]
pub struct PipeReader {
    shared: SharedPipe,
}

/// A pipe with a buffer of about `cap` bytes; one write may exceed it.
pub fn pipe(cap: usize) -> (PipeWriter, PipeReader) {
    let shared = SharedPipe::default();
    (
        PipeWriter {
            shared: shared.clone(),
            cap,
        },
        PipeReader { shared },
    )
}

fn lock(shared: &SharedPipe) -> MutexGuard<'_, PipeState> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PipeWriter {
    /// Lets `render` append to the buffer.
    ///
    /// # Errors
    /// The connection has ended, or the unread bytes exceed the cap.
    pub fn write(&mut self, render: impl FnOnce(&mut BytesMut)) -> Result<(), WriteError> {
        let mut state = lock(&self.shared);
        if state.reader_gone {
            return Err(WriteError::Gone);
        }
        if state.buffer.len() >= self.cap {
            return Err(WriteError::Slow);
        }
        render(&mut state.buffer);
        wake_reader(state);
        Ok(())
    }

    /// Appends the last events, regardless of the cap, and ends the stream.
    pub fn finish(self, render: impl FnOnce(&mut BytesMut)) {
        render(&mut lock(&self.shared).buffer);
    }

    /// Ready when the connection has ended.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
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

fn wake_reader(mut state: MutexGuard<'_, PipeState>) {
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
        assert_eq!(writer.write(|_| {}), Err(WriteError::Slow));
        writer.finish(|out| out.extend_from_slice(b"!"));
        assert_eq!(reader.collect().await.unwrap().to_bytes().len(), 13);
    }

    #[tokio::test]
    async fn the_writer_learns_that_the_reader_left() {
        let (mut writer, reader) = pipe(10);
        let gone = tokio::spawn(async move {
            std::future::poll_fn(|cx| writer.poll_gone(cx)).await;
            writer.write(|_| {})
        });
        tokio::task::yield_now().await;
        drop(reader);
        assert_eq!(gone.await.unwrap(), Err(WriteError::Gone));
    }
}
