//! Coalesces small body chunks that are available at the same time.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use axum::body::{Bytes, HttpBody};
use bytes::BytesMut;
use futures_util::task::AtomicWaker;
use hyper::body::{Frame, SizeHint};

/// A chunk of at least this size is forwarded at once.
const ENOUGH: usize = 16 << 10;

/// A body that joins chunks while more are available.
///
/// hyper's client yields one chunk at a time even if it has read several, and its server writes
/// whenever the body becomes pending. Without coalescing, a stream costs one write per token,
/// although one read from a busy replica contains several tokens. A chunk is therefore held until
/// all runnable tasks have run; by then the replica's connection task has delivered the next chunk,
/// if it has one.
pub struct Gathered<B: HttpBody> {
    body: B,
    held: Option<BytesMut>,
    /// A turn of the other tasks that started when the last chunk arrived.
    turn: Option<Arc<Turn>>,
    /// The frame after the held bytes: trailers, an error or (`None`) the end.
    next: Option<Polled<B>>,
}

/// A turn of the other tasks. The runtime ends it when no task is runnable, or after some dozens of
/// tasks have run.
#[derive(Default)]
struct Turn {
    ended: AtomicBool,
    task: AtomicWaker,
}

impl Turn {
    fn begin() -> Arc<Self> {
        let turn = Arc::<Self>::default();
        let waker = Waker::from(turn.clone());
        let _ = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(&waker));
        turn
    }
}

impl Wake for Turn {
    fn wake(self: Arc<Self>) {
        self.ended.store(true, Ordering::Release);
        self.task.wake();
    }
}

type Polled<B> = Option<Result<Frame<Bytes>, <B as HttpBody>::Error>>;

impl<B: HttpBody<Data = Bytes> + Unpin> Gathered<B> {
    /// Wraps `body`.
    pub fn new(body: B) -> Self {
        Self {
            body,
            held: None,
            turn: None,
            next: None,
        }
    }

    fn hold(&mut self, piece: Bytes) {
        self.turn = None;
        match &mut self.held {
            Some(held) => held.extend_from_slice(&piece),
            None => self.held = Some(piece.into()),
        }
    }

    /// Whether the other tasks had a turn. Another poll of this body does not imply that: a
    /// connection may poll its body several times within its own turn.
    fn others_ran(&mut self, cx: &mut Context<'_>) -> bool {
        let turn = self.turn.get_or_insert_with(Turn::begin);
        turn.task.register(cx.waker());
        turn.ended.load(Ordering::Acquire)
    }

    /// Yields the held bytes.
    fn give(&mut self) -> Poll<Polled<B>> {
        Poll::Ready(self.held.take().map(|held| Ok(Frame::data(held.freeze()))))
    }
}

impl<B> HttpBody for Gathered<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Polled<B>> {
        let this = self.get_mut();
        if let Some(next) = this.next.take() {
            return Poll::Ready(next);
        }
        loop {
            if this.held.as_ref().is_some_and(|held| held.len() >= ENOUGH) {
                return this.give();
            }
            match Pin::new(&mut this.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(piece) => this.hold(piece),
                    Err(other) => return this.behind(Some(Ok(other))),
                },
                Poll::Ready(end) => return this.behind(end),
                Poll::Pending if this.held.is_none() => return Poll::Pending,
                Poll::Pending if this.others_ran(cx) => return this.give(),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let ended = match &self.next {
            Some(next) => next.is_none(),
            None => self.body.is_end_stream(),
        };
        self.held.is_none() && ended
    }

    /// Exact only before the first chunk.
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> Gathered<B> {
    /// Queues `next` behind the held bytes.
    fn behind(&mut self, next: Polled<B>) -> Poll<Polled<B>> {
        if self.held.is_none() {
            return Poll::Ready(next);
        }
        self.next = Some(next);
        self.give()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::future::poll_fn;

    use axum::http::HeaderMap;

    use super::*;

    /// A body that yields these frames one by one. At a `None` it is pending until other tasks have
    /// run.
    struct Script(VecDeque<Option<Frame<Bytes>>>);

    impl HttpBody for Script {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Polled<Self>> {
            match self.0.pop_front() {
                Some(Some(frame)) => Poll::Ready(Some(Ok(frame))),
                Some(None) => {
                    let waker = cx.waker().clone();
                    tokio::spawn(async move { waker.wake() });
                    Poll::Pending
                }
                None => Poll::Ready(None),
            }
        }
    }

    /// The frames of a gathered script: their bytes, or `*` for trailers.
    async fn gathered(script: Vec<Option<&[u8]>>) -> Vec<Vec<u8>> {
        let frame = |bytes: &[u8]| match bytes {
            b"*" => Frame::trailers(HeaderMap::new()),
            data => Frame::data(Bytes::copy_from_slice(data)),
        };
        let frames = script.into_iter().map(|bytes| bytes.map(frame)).collect();
        let mut body = Gathered::new(Script(frames));
        let mut out = Vec::new();
        while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let data = frame.into_data().unwrap_or(Bytes::from_static(b"*"));
            out.push(data.to_vec());
        }
        out
    }

    #[tokio::test]
    async fn pieces_that_are_there_are_one() {
        assert_eq!(
            gathered(vec![Some(b"a"), Some(b"b"), Some(b"c")]).await,
            [b"abc"]
        );
        // another chunk is available after the other tasks have run
        assert_eq!(gathered(vec![Some(b"a"), None, Some(b"b")]).await, [b"ab"]);
    }

    #[tokio::test]
    async fn a_piece_waits_for_one_turn_of_the_other_tasks_only() {
        let script = vec![None, Some(&b"a"[..]), None, None, Some(b"b"), None, None];
        assert_eq!(gathered(script).await, [b"a", b"b"]);
    }

    #[tokio::test]
    async fn what_is_large_goes_on() {
        let large = [0; ENOUGH];
        let script = vec![Some(&b"a"[..]), Some(&large), Some(b"b")];
        let sizes: Vec<usize> = gathered(script).await.iter().map(Vec::len).collect();
        assert_eq!(sizes, [ENOUGH + 1, 1]);
    }

    #[tokio::test]
    async fn trailers_and_the_end_come_behind() {
        assert_eq!(
            gathered(vec![Some(b"a"), Some(b"*")]).await,
            [&b"a"[..], b"*"]
        );
        assert_eq!(gathered(vec![Some(b"*")]).await, [b"*"]);
        assert!(gathered(vec![]).await.is_empty());
    }
}
