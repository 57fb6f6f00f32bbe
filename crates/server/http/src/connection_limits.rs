//! Connection limits, in total and per address. At the limit, the longest idle connection is
//! closed.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::uri::Authority;
use axum::http::{HeaderValue, StatusCode, Version, header};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::service::TowerToHyperService;
use tokio::sync::Notify;

use crate::unread::returning;
use crate::{Limits, Peer};

/// The connections of one server.
pub(crate) struct OpenConnections {
    limit: usize,
    address_limit: usize,
    table: Mutex<Table>,
    /// Notified when a connection has ended or become idle.
    changed: Notify,
}

#[derive(Default)]
struct Table {
    last: u64,
    open: HashMap<u64, ConnectionState>,
}

struct ConnectionState {
    /// `None` for a Unix socket.
    address: Option<IpAddr>,
    /// Requests in flight; more than one only with HTTP/2.
    busy: usize,
    /// Time at which the last request ended.
    idle_since: Instant,
    unwanted: Arc<Notify>,
}

/// Registration of one connection; dropped when it ends.
pub(crate) struct Entry {
    key: u64,
    peer: Peer,
    unwanted: Arc<Notify>,
    all: Arc<OpenConnections>,
}

impl OpenConnections {
    pub(crate) fn new(limits: &Limits) -> Self {
        let limit = limits.max_connections.max(1);
        Self {
            limit,
            address_limit: limits
                .max_connections_per_address
                .unwrap_or(limit - limit / 4),
            table: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Waits until one more connection is allowed. At the limit, closes the connection that has
    /// been idle for the longest time; a server without keep-alive would have closed it already.
    pub(crate) async fn make_room(&self) {
        loop {
            let changed = self.changed.notified();
            {
                let mut table = self.table();
                if table.open.len() < self.limit {
                    return;
                }
                if table.close_idle(|_| true) {
                    return;
                }
            }
            changed.await;
        }
    }

    /// Registers a connection. `None` if its address is at its limit and has no idle connection.
    pub(crate) fn enter(self: &Arc<Self>, peer: Peer) -> Option<Entry> {
        let address = peer.0.map(|peer| peer.ip());
        let unwanted = Arc::new(Notify::new());
        let state = ConnectionState {
            address,
            busy: 0,
            idle_since: Instant::now(),
            unwanted: unwanted.clone(),
        };
        let mut table = self.table();
        let same = |state: &ConnectionState| address.is_some() && state.address == address;
        let full = table.open.values().filter(|state| same(state)).count() >= self.address_limit;
        if full && !table.close_idle(same) {
            return None;
        }
        table.last += 1;
        let key = table.last;
        table.open.insert(key, state);
        Some(Entry {
            key,
            peer,
            unwanted,
            all: self.clone(),
        })
    }

    fn request_began(self: &Arc<Self>, key: u64) -> Busy {
        if let Some(state) = self.table().open.get_mut(&key) {
            state.busy += 1;
        }
        Busy {
            key,
            all: self.clone(),
        }
    }

    fn request_ended(&self, key: u64) {
        if let Some(state) = self.table().open.get_mut(&key) {
            state.busy -= 1;
            state.idle_since = Instant::now();
        }
        self.changed.notify_one();
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Closes the longest idle connection that matches `among`; returns whether one was found.
    fn close_idle(&mut self, among: impl Fn(&ConnectionState) -> bool) -> bool {
        let idle = |(key, state): (&u64, &ConnectionState)| {
            (state.busy == 0 && among(state)).then_some((state.idle_since, *key))
        };
        let longest = self.open.iter().filter_map(idle).min();
        let closed = longest.and_then(|(_, key)| self.open.remove(&key));
        closed.map(|state| state.unwanted.notify_one()).is_some()
    }
}

impl Entry {
    /// Ready when the connection must close to make room, even if a request has just arrived.
    pub(crate) async fn unwanted(&self) {
        self.unwanted.notified().await;
    }

    /// Wraps `router` to track the requests in flight.
    pub(crate) fn watched(&self, router: Router) -> Watched {
        Watched {
            router: TowerToHyperService::new(router),
            key: self.key,
            peer: self.peer,
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

/// A router that marks its connection busy while a request is in flight.
pub(crate) struct Watched {
    router: TowerToHyperService<Router>,
    key: u64,
    peer: Peer,
    all: Arc<OpenConnections>,
}

/// A request in flight, from its arrival to the end of its response.
struct Busy {
    key: u64,
    all: Arc<OpenConnections>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.all.request_ended(self.key);
    }
}

impl Service<Request<Incoming>> for Watched {
    type Response = Response<BusyBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<BusyBody>, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.peer);
        let busy = self.all.request_began(self.key);
        if !has_host(&request) {
            let refused = no_host().map(|body| BusyBody { body, _busy: busy });
            return Box::pin(std::future::ready(Ok(refused)));
        }
        let (request, remainder) = returning(request);
        let answer = self.router.call(request);
        Box::pin(async move {
            let mut response = answer.await?;
            remainder.settle(&mut response).await;
            Ok(response.map(|body| BusyBody { body, _busy: busy }))
        })
    }
}

/// Whether the request has exactly one valid host (RFC 9112, section 3.2). Otherwise a proxy may
/// have used a different host than this server.
fn has_host<B>(request: &Request<B>) -> bool {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (request.version(), hosts.next(), hosts.next()) {
        (_, Some(host), None) => is_host(host.as_bytes()),
        (_, Some(_), Some(_)) | (Version::HTTP_11, None, _) => false,
        (_, None, _) => true,
    }
}

/// Whether the value is `host`, `host:port` or empty.
fn is_host(value: &[u8]) -> bool {
    value.is_empty() || (!value.contains(&b'@') && Authority::try_from(value).is_ok())
}

fn no_host() -> Response<Body> {
    let text = "HTTP/1.1 needs one Host header, with a host and perhaps a port.\n";
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

/// A response body that keeps its connection busy.
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

    fn opened(total: usize, per_address: Option<usize>) -> Arc<OpenConnections> {
        Arc::new(OpenConnections::new(&Limits {
            max_connections: total,
            max_connections_per_address: per_address,
            ..Limits::default()
        }))
    }

    #[test]
    fn one_host_is_needed_and_not_more() {
        let sent = |version: Version, hosts: &[&str]| {
            let request = Request::builder().version(version).uri("/x");
            let with = |request: hyper::http::request::Builder, host: &&str| {
                request.header(header::HOST, *host)
            };
            has_host(&hosts.iter().fold(request, with).body(()).unwrap())
        };
        for good in ["a", "a:80", "[::1]:8000", "a_b.svc", ""] {
            assert!(sent(Version::HTTP_11, &[good]), "{good}");
            assert!(sent(Version::HTTP_10, &[good]), "{good}");
        }
        for wrong in ["a b", "u@a", "a/b", "[::1"] {
            assert!(!sent(Version::HTTP_11, &[wrong]), "{wrong}");
        }
        assert!(!sent(Version::HTTP_11, &[]));
        for version in [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2] {
            assert!(!sent(version, &["a", "a"]), "{version:?}");
        }
        assert!(sent(Version::HTTP_10, &[]) && sent(Version::HTTP_2, &[]));
    }

    fn peer(host: u8) -> Peer {
        Peer(Some(([127, 0, 0, host], 1).into()))
    }

    #[tokio::test]
    async fn the_longest_idle_connection_makes_room_and_a_busy_one_does_not() {
        let all = opened(2, Some(2));
        let enter = || all.enter(peer(1)).unwrap();
        let (busy, idle) = (enter(), enter());
        let _request = all.request_began(busy.key);
        all.make_room().await;
        idle.unwanted().await;
        let third = enter();
        let _requests = [all.request_began(third.key), all.request_began(third.key)];
        let full = tokio::time::timeout(Duration::from_millis(50), all.make_room());
        assert!(full.await.is_err(), "two are busy");
        drop(busy);
        all.make_room().await;
    }

    #[tokio::test]
    async fn an_address_has_a_share_and_gives_up_its_own_idle_connections() {
        let all = opened(100, Some(2));
        let (first, second) = (all.enter(peer(1)).unwrap(), all.enter(peer(1)).unwrap());
        let other = all.enter(peer(2)).unwrap();
        let _request = all.request_began(first.key);
        let third = all.enter(peer(1)).unwrap();
        second.unwanted().await;
        let _another = all.request_began(third.key);
        assert!(all.enter(peer(1)).is_none(), "both are busy");
        assert!(all.enter(peer(2)).is_some());
        assert!(all.enter(Peer(None)).is_some());
        drop(other);
    }
}
