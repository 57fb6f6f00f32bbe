//! Accepting connections and closing them gracefully.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// For the whole header of a request, and for an idle connection to send its next one.
const HEADER_TIMEOUT: Duration = Duration::from_secs(75);
const MAX_HEADERS: usize = 100;
/// Bounds the header block, and what one connection buffers.
const MAX_BUFFER: usize = 64 << 10;
/// When accepting fails because descriptors have run out, trying at once would only burn the
/// processor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The open connections of a server. Dropping it accepts no more and leaves open ones running.
#[derive(Debug)]
pub struct Connections {
    /// Ends when the connections have been closed.
    accepting: JoinHandle<()>,
    closing: oneshot::Sender<Duration>,
}

impl Connections {
    /// Serves `router` on every connection, inside a tokio runtime.
    pub fn accept(listener: TcpListener, router: Router) -> Self {
        let (closing, patience) = oneshot::channel();
        Self {
            accepting: tokio::spawn(accept_all(listener, router, patience)),
            closing,
        }
    }

    /// Accepts no more and gives open connections `patience` to finish their responses.
    pub async fn close(self, patience: Duration) {
        let _ = self.closing.send(patience);
        let _ = self.accepting.await;
    }
}

async fn accept_all(
    listener: TcpListener,
    router: Router,
    mut closing: oneshot::Receiver<Duration>,
) {
    let graceful = GracefulShutdown::new();
    let patience = loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            patience = &mut closing => break patience.unwrap_or_default(),
        };
        match accepted {
            Ok((stream, _)) => serve(stream, router.clone(), graceful.watcher()),
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    };
    drop(listener);
    let _ = tokio::time::timeout(patience, graceful.shutdown()).await;
}

fn serve(stream: TcpStream, router: Router, watcher: Watcher) {
    // Without it a token waits for the acknowledgement of the one before. Failing is harmless.
    let _ = stream.set_nodelay(true);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_BUFFER)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // The connection's own errors are the client's: resets, malformed HTTP. hyper has answered what
    // can be answered.
    tokio::spawn(async move { drop(watcher.watch(connection).await) });
}
