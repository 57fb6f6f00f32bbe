//! The open connections: a bound on their number, and which of them are idle.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::Router;
use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::service::TowerToHyperService;
use tokio::sync::Notify;

/// The connections of one server, at most `limit`.
pub(crate) struct OpenConnections {
    limit: usize,
    table: Mutex<Table>,
    /// A connection has ended, or become idle.
    changed: Notify,
}

#[derive(Default)]
struct Table {
    last: u64,
    open: HashMap<u64, State>,
}

struct State {
    /// `None` while a request is answered.
    idle_since: Option<Instant>,
    unwanted: Arc<Notify>,
}

/// One connection; dropped when it ends.
pub(crate) struct Entry {
    key: u64,
    unwanted: Arc<Notify>,
    all: Arc<OpenConnections>,
}

impl OpenConnections {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            table: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Waits until one more connection may be open. Where the limit is reached, the one that is
    /// idle longest is closed: without keep-alive it would be gone already.
    pub(crate) async fn make_room(&self) {
        loop {
            let changed = self.changed.notified();
            {
                let mut table = self.table();
                if table.open.len() < self.limit {
                    return;
                }
                if let Some(key) = table.idle_longest() {
                    if let Some(state) = table.open.remove(&key) {
                        state.unwanted.notify_one();
                    }
                    return;
                }
            }
            changed.await;
        }
    }

    pub(crate) fn enter(self: &Arc<Self>) -> Entry {
        let unwanted = Arc::new(Notify::new());
        let state = State {
            idle_since: Some(Instant::now()),
            unwanted: unwanted.clone(),
        };
        let mut table = self.table();
        table.last += 1;
        let key = table.last;
        table.open.insert(key, state);
        Entry {
            key,
            unwanted,
            all: self.clone(),
        }
    }

    fn set_idle(&self, key: u64, idle_since: Option<Instant>) {
        if let Some(state) = self.table().open.get_mut(&key) {
            state.idle_since = idle_since;
        }
        if idle_since.is_some() {
            self.changed.notify_one();
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn idle_longest(&self) -> Option<u64> {
        let idle = |(key, state): (&u64, &State)| state.idle_since.map(|since| (since, *key));
        self.open.iter().filter_map(idle).min().map(|(_, key)| key)
    }
}

impl Entry {
    /// Ready when the connection is to be closed although it may have a request.
    pub(crate) async fn unwanted(&self) {
        self.unwanted.notified().await;
    }

    /// `router`, with a note of the requests that it answers.
    pub(crate) fn watched(&self, router: Router) -> Watched {
        Watched {
            router: TowerToHyperService::new(router),
            key: self.key,
            all: self.all.clone(),
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.all.table().open.remove(&self.key);
        self.all.changed.notify_one();
    }
}

/// A router whose requests keep their connection from being idle.
pub(crate) struct Watched {
    router: TowerToHyperService<Router>,
    key: u64,
    all: Arc<OpenConnections>,
}

/// A request from its arrival to the end of its answer.
struct Busy {
    key: u64,
    all: Arc<OpenConnections>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.all.set_idle(self.key, Some(Instant::now()));
    }
}

impl Service<Request<Incoming>> for Watched {
    type Response = Response<BusyBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<BusyBody>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.all.set_idle(self.key, None);
        let busy = Busy {
            key: self.key,
            all: self.all.clone(),
        };
        let answer = self.router.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| BusyBody { body, _busy: busy })) })
    }
}

/// The body of an answer.
pub(crate) struct BusyBody {
    body: Body,
    _busy: Busy,
}

impl HttpBody for BusyBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn the_longest_idle_connection_makes_room_and_a_busy_one_does_not() {
        let all = Arc::new(OpenConnections::new(2));
        let (busy, idle) = (all.enter(), all.enter());
        all.set_idle(busy.key, None);
        all.make_room().await;
        idle.unwanted().await;
        let third = all.enter();
        all.set_idle(third.key, None);
        let full = tokio::time::timeout(Duration::from_millis(50), all.make_room());
        assert!(full.await.is_err(), "two are busy");
        drop(busy);
        all.make_room().await;
    }
}
