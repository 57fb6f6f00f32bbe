//! Accepts connections and closes them gracefully.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::connection_limits::{Entry, OpenConnections};
use crate::line_ends::LineEnds;
use crate::listener::Socket;
use crate::preface::{Version, version_of};
use crate::timed::Timed;
use crate::{Limits, Listener};

/// Delay before the next accept after a failure, e.g. without free descriptors, to avoid a busy
/// loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Keep-alive ping interval of HTTP/2 connections.
const PING: Duration = Duration::from_secs(30);

/// The open connections of a server. Dropping it stops accepting and keeps open connections
/// running.
#[derive(Debug)]
pub struct Connections {
    /// Ends when the connections have been closed.
    accepting: JoinHandle<()>,
    closing: oneshot::Sender<Duration>,
}

impl Connections {
    /// Serves `router` on every connection. Must be called inside a tokio runtime.
    pub fn accept(listener: Listener, router: Router, limits: Limits) -> Self {
        let (closing, patience) = oneshot::channel();
        Self {
            accepting: tokio::spawn(accept_all(listener, router, limits, patience)),
            closing,
        }
    }

    /// Stops accepting and gives open connections `patience` to finish their responses.
    pub async fn close(self, patience: Duration) {
        let _ = self.closing.send(patience);
        let _ = self.accepting.await;
    }
}

/// Router and limits of all connections of a listener.
struct ConnectionContext {
    router: Router,
    limits: Limits,
}

async fn accept_all(
    listener: Listener,
    router: Router,
    limits: Limits,
    mut closing: oneshot::Receiver<Duration>,
) {
    let graceful = GracefulShutdown::new();
    let open = Arc::new(OpenConnections::new(&limits));
    let shared = Arc::new(ConnectionContext { router, limits });
    let (ending, ended) = watch::channel(());
    let patience = loop {
        let accepted = async {
            let accepted = listener.accept().await;
            open.make_room().await;
            accepted
        };
        let accepted = tokio::select! {
            accepted = accepted => accepted,
            patience = &mut closing => break patience.unwrap_or_default(),
        };
        match accepted {
            Ok((socket, peer)) => {
                let Some(entry) = open.enter(peer) else {
                    continue;
                };
                let watcher = graceful.watcher();
                let served = serve(socket, shared.clone(), entry, watcher, ended.clone());
                tokio::spawn(served);
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    };
    drop((listener, ending));
    let _ = tokio::time::timeout(patience, graceful.shutdown()).await;
}

/// Serves a connection until it ends, or is closed to make room.
async fn serve(
    socket: Socket,
    shared: Arc<ConnectionContext>,
    entry: Entry,
    watcher: Watcher,
    ended: watch::Receiver<()>,
) {
    let patience = shared.limits.write_timeout();
    let served = async {
        match socket {
            Socket::Unix(stream) => {
                let stream = Timed::new(stream, patience);
                converse(stream, &shared, &entry, watcher, ended).await;
            }
            Socket::Tcp(stream, None) => {
                let stream = Timed::new(stream, patience);
                converse(stream, &shared, &entry, watcher, ended).await;
            }
            Socket::Tcp(stream, Some(tls)) => {
                let accepted = tls.acceptor().accept(Timed::new(stream, patience));
                let accepted = tokio::time::timeout(shared.limits.header_timeout(), accepted);
                if let Ok(Ok(stream)) = accepted.await {
                    converse(stream, &shared, &entry, watcher, ended).await;
                }
            }
        }
    };
    tokio::select! {
        () = served => {}
        () = entry.unwanted() => {}
    }
}

/// Serves HTTP. Connection errors are ignored: they are the client's (resets, malformed HTTP), and
/// hyper has already sent an error response where possible.
async fn converse<S>(
    stream: S,
    shared: &ConnectionContext,
    entry: &Entry,
    watcher: Watcher,
    mut ended: watch::Receiver<()>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = &shared.limits;
    let version = tokio::time::timeout(limits.header_timeout(), version_of(stream));
    let found = tokio::select! {
        found = version => found,
        _ = ended.changed() => return,
    };
    let Ok(Ok((version, stream))) = found else {
        return;
    };
    let service = entry.watched(shared.router.clone());
    match version {
        Version::Http1 => {
            let stream = TokioIo::new(LineEnds::new(stream));
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(limits.header_timeout())
                .max_headers(limits.max_headers)
                .max_buf_size(limits.max_header_bytes)
                .serve_connection(stream, service);
            let _ = watcher.watch(connection).await;
        }
        Version::Http2 => {
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(PING)
                .max_concurrent_streams(limits.max_streams)
                .max_header_list_size(limits.max_header_bytes as u32)
                .serve_connection(TokioIo::new(stream), service);
            let _ = watcher.watch(connection).await;
        }
    }
}
