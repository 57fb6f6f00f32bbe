//! Accepting connections and closing them gracefully.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::Limits;
use crate::open::OpenConnections;
use crate::timed::Timed;

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
    pub fn accept(listener: TcpListener, router: Router, limits: Limits) -> Self {
        let (closing, patience) = oneshot::channel();
        Self {
            accepting: tokio::spawn(accept_all(listener, router, limits, patience)),
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
    limits: Limits,
    mut closing: oneshot::Receiver<Duration>,
) {
    let graceful = GracefulShutdown::new();
    let open = Arc::new(OpenConnections::new(limits.max_connections));
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
            Ok((stream, _)) => serve(stream, router.clone(), &limits, &graceful, &open),
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    };
    drop(listener);
    let _ = tokio::time::timeout(patience, graceful.shutdown()).await;
}

fn serve(
    stream: TcpStream,
    router: Router,
    limits: &Limits,
    graceful: &GracefulShutdown,
    open: &Arc<OpenConnections>,
) {
    // Without it a token waits for the acknowledgement of the one before. Failing is harmless.
    let _ = stream.set_nodelay(true);
    let entry = open.enter();
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout())
        .max_headers(limits.max_headers)
        .max_buf_size(limits.max_header_bytes)
        .serve_connection(
            TokioIo::new(Timed::new(stream, limits.write_timeout())),
            entry.watched(router),
        );
    let connection = graceful.watcher().watch(connection);
    // The connection's own errors are the client's: resets, malformed HTTP. hyper has answered what
    // can be answered.
    tokio::spawn(async move {
        tokio::select! {
            ended = connection => drop(ended),
            () = entry.unwanted() => {}
        }
    });
}
