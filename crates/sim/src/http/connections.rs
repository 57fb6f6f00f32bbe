//! Accepting connections.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};

/// When descriptors have run out, trying at once would only burn the processor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves whoever connects, until it is dropped.
pub(crate) async fn accept(listener: TcpListener, router: Router) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => serve(stream, router.clone()),
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

fn serve(stream: TcpStream, router: Router) {
    // Without it a token waits for the acknowledgement of the one before. Failing is harmless.
    let _ = stream.set_nodelay(true);
    let service = TowerToHyperService::new(router);
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    // Its errors are the client's, or faults on purpose.
    tokio::spawn(async move { drop(connection.await) });
}
