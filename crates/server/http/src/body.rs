//! Reads request bodies within limits of size and time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, Bytes};
use axum::http::{Request, header};
use http_body_util::BodyExt;
use hyper::body::Body as _;

use crate::Limits;

/// Upper bound on the buffer reserved for a declared `Content-Length`. Beyond it the buffer grows
/// with the received data, because a client can declare any length at no cost.
const ANNOUNCED: usize = 1 << 20;

/// Reason that a request body could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("the request body is larger than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("the request body did not arrive within {seconds} s")]
    Timeout { seconds: u64 },
    #[error("the request body ended early")]
    EndedEarly,
    #[error("the request body has a content encoding")]
    Encoded,
    #[error("other requests bring as many bytes as the server may hold")]
    Busy,
}

/// Budget for the bytes of all bodies in memory. Clones share the budget.
#[derive(Debug, Clone)]
pub struct BodyBudget {
    taken: Arc<AtomicUsize>,
    limit: usize,
    /// Number of bytes at the start of each body that are not counted.
    free: usize,
}

/// A body and its share of the budget. Dropping it returns the share.
#[derive(Debug)]
pub struct HeldBody {
    pub bytes: Vec<u8>,
    share: BodyShare,
}

/// A body's share of the budget. Dropping it returns the share.
#[derive(Debug)]
pub struct BodyShare {
    budget: BodyBudget,
    bytes: usize,
}

impl BodyBudget {
    pub fn new(limits: &Limits) -> Self {
        Self::of(limits.bodies_bytes, limits.free_body_bytes)
    }

    /// A budget of `limit` bytes; the first `free` bytes of each body are not counted.
    pub fn of(limit: usize, free: usize) -> Self {
        Self {
            taken: Arc::default(),
            limit,
            free,
        }
    }

    /// An empty share.
    pub fn share(&self) -> BodyShare {
        BodyShare {
            budget: self.clone(),
            bytes: 0,
        }
    }

    /// An empty body that may grow.
    pub fn hold(&self) -> HeldBody {
        HeldBody {
            bytes: Vec::new(),
            share: self.share(),
        }
    }
}

impl HeldBody {
    /// Appends data, up to `limit` bytes in total.
    ///
    /// # Errors
    /// [`BodyError::TooLarge`], [`BodyError::Busy`]
    pub fn push(&mut self, data: &[u8], limit: usize) -> Result<(), BodyError> {
        if data.len() > limit - self.bytes.len() {
            return Err(BodyError::TooLarge { limit });
        }
        self.share.grow(self.bytes.len() + data.len())?;
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// Splits into bytes that can be cloned cheaply, and their share of the budget.
    pub fn split(self) -> (Bytes, BodyShare) {
        (self.bytes.into(), self.share)
    }
}

impl BodyShare {
    /// Grows the share to a body of `size` bytes. If no other body is in memory, the body always
    /// fits, even if it is larger than the budget.
    ///
    /// # Errors
    /// [`BodyError::Busy`]
    pub fn grow(&mut self, size: usize) -> Result<(), BodyError> {
        let more = size
            .saturating_sub(self.budget.free)
            .saturating_sub(self.bytes);
        let grown = |taken: usize| {
            let sum = taken.checked_add(more)?;
            (more == 0 || sum <= self.budget.limit || taken == self.bytes).then_some(sum)
        };
        let taken = &self.budget.taken;
        taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, grown)
            .map_err(|_| BodyError::Busy)?;
        self.bytes += more;
        Ok(())
    }

    /// Shrinks the share to a body of `size` bytes.
    pub fn shrink(&mut self, size: usize) {
        let less = self
            .bytes
            .saturating_sub(size.saturating_sub(self.budget.free));
        self.budget.taken.fetch_sub(less, Ordering::AcqRel);
        self.bytes -= less;
    }
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Reads the whole body, of at most `limit` bytes.
///
/// # Errors
/// [`BodyError`]. A declared length over the limit is rejected before the body is read; a client
/// that waits for `100 Continue` does not send it. The connection drains what is left.
pub async fn read_body(
    request: Request<Body>,
    limit: usize,
    limits: &Limits,
    budget: &BodyBudget,
) -> Result<HeldBody, BodyError> {
    let encoding = request.headers().get(header::CONTENT_ENCODING);
    let encoded = encoding.is_some_and(|e| !e.as_bytes().eq_ignore_ascii_case(b"identity"));
    let mut body = request.into_body();
    let too_large = body
        .size_hint()
        .exact()
        .is_some_and(|size| size > limit as u64);
    if too_large {
        return Err(BodyError::TooLarge { limit });
    }
    if encoded {
        return Err(BodyError::Encoded);
    }
    let patience = limits.body_timeout();
    let seconds = patience.as_secs();
    let collected = tokio::time::timeout(patience, collect(&mut body, limit, budget)).await;
    collected.unwrap_or(Err(BodyError::Timeout { seconds }))
}

async fn collect(
    body: &mut Body,
    limit: usize,
    budget: &BodyBudget,
) -> Result<HeldBody, BodyError> {
    let mut held = budget.hold();
    let announced = body.size_hint().exact().unwrap_or(0);
    let announced = usize::try_from(announced).unwrap_or(usize::MAX);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| BodyError::EndedEarly)?;
        if let Some(data) = frame.data_ref() {
            if held.bytes.capacity() == 0 {
                held.bytes
                    .reserve_exact(announced.min(limit).min(ANNOUNCED));
            }
            held.push(data, limit)?;
        }
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(limit: usize) -> BodyBudget {
        BodyBudget::new(&Limits {
            bodies_bytes: limit,
            free_body_bytes: 10,
            ..Limits::default()
        })
    }

    async fn read(budget: &BodyBudget, bytes: usize) -> Result<HeldBody, BodyError> {
        let request = Request::new(Body::from(vec![b'x'; bytes]));
        read_body(request, 1000, &Limits::default(), budget).await
    }

    #[tokio::test]
    async fn bodies_share_a_budget_and_give_it_back() {
        let budget = budget(100);
        let first = read(&budget, 70).await.unwrap();
        let second = read(&budget, 50).await.unwrap();
        assert_eq!(read(&budget, 11).await.unwrap_err(), BodyError::Busy);
        let small = read(&budget, 10).await.unwrap();
        drop((first, second));
        read(&budget, 80).await.unwrap();
        assert_eq!(small.bytes.len(), 10);
    }

    #[test]
    fn a_share_shrinks_with_its_body() {
        let budget = budget(100);
        let (mut first, mut second) = (budget.share(), budget.share());
        first.grow(90).unwrap();
        assert_eq!(second.grow(50), Err(BodyError::Busy));
        first.shrink(60);
        second.grow(60).unwrap();
        first.shrink(5);
        second.grow(110).unwrap();
        assert_eq!(first.grow(11), Err(BodyError::Busy));
        drop(second);
        first.grow(110).unwrap();
    }

    #[tokio::test]
    async fn an_announced_length_gets_room_for_itself_up_to_a_bound() {
        let limits = Limits::default();
        for (announced, most) in [(1000, 1000), (4 << 20, 2 * ANNOUNCED)] {
            let mut body = Body::new(Announced(Some(announced)));
            let held = collect(&mut body, 8 << 20, &BodyBudget::new(&limits)).await;
            let bytes = held.unwrap().bytes;
            assert_eq!(bytes, [b'x'; 10]);
            assert!(bytes.capacity() <= most, "{}", bytes.capacity());
        }
    }

    /// A body of ten bytes that declares the given length.
    struct Announced(Option<u64>);

    impl hyper::body::Body for Announced {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
            let first = self.0.take();
            let data = Bytes::from_static(&[b'x'; 10]);
            std::task::Poll::Ready(first.map(|_| Ok(hyper::body::Frame::data(data))))
        }

        fn size_hint(&self) -> hyper::body::SizeHint {
            self.0
                .map_or_else(Default::default, hyper::body::SizeHint::with_exact)
        }
    }

    #[tokio::test]
    async fn a_body_that_is_alone_fits() {
        let budget = budget(100);
        let alone = read(&budget, 900).await.unwrap();
        assert_eq!(read(&budget, 20).await.unwrap_err(), BodyError::Busy);
        drop(alone);
        let too_large = read(&budget, 1001).await.unwrap_err();
        assert_eq!(too_large, BodyError::TooLarge { limit: 1000 });
    }
}
